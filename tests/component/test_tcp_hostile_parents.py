"""A child of the TCP transport against parents that mean harm."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import pytest

from flashboot_agent.core.errors import (
    DeadlineExceeded,
    NotReady,
    ParentUnreachable,
    TornFrame,
    UnknownArena,
)
from flashboot_agent.transport.tcp import PullSettings, TcpTransport
from flashboot_agent.wire import frames
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.frames import Data, Trouble, encode
from flashboot_agent.wire.problem import Problem
from tests.component.memory_catalog import MIB, MemoryArena, Target
from tests.component.tcp_peers import (
    ARENA,
    DATA,
    ScriptedParent,
    StreamEnded,
    fill,
    good_meta,
    pull_from,
    read_frame,
)

HEADER_OF_4_GIB = struct.pack("<4sBBHI", b"FBCH", frames.VERSION, 2, 0, 2**32 - 1)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", TornFrame, "no chunk protocol"),
        (HEADER_OF_4_GIB, TornFrame, "4294967295 bytes"),
        (encode(Data(0, 0, 0)), TornFrame, "answered Data"),
        (b"FBCH", ParentUnreachable, "ended after 4 of 12 bytes"),
        (b"", ParentUnreachable, "ended the connection"),
        (encode(Trouble(Problem(reason="NotReady", message="later"))), NotReady, "parent-1 .*later"),
        # Of such reasons a lane makes its own node's trouble, and asks no other parent.
        (encode(Trouble(Problem(reason="InsufficientMemory", message="no"))), ParentUnreachable, "InsufficientMemory"),
        (encode(Trouble(Problem(reason="CommitRefused", message="no"))), ParentUnreachable, "parent-1 .*no"),
        (encode(Trouble(Problem(reason="Internal", message="no"))), ParentUnreachable, "parent-1 .*no"),
    ],
)
def test_a_bad_answer_to_the_request_for_metadata(answer: bytes, error: type[Exception], message: str) -> None:
    parent = ScriptedParent(lambda child: child.sendall(answer))
    with pytest.raises(error, match=message):
        pull_from(parent.address)
    parent.join(20)


def test_a_digest_table_with_another_root_is_refused(arena: MemoryArena) -> None:
    damaged = bytearray(good_meta(arena))
    damaged[-len(arena.meta.layout) - 1] ^= 1
    parent = ScriptedParent(lambda child: child.sendall(damaged))
    with pytest.raises(TornFrame, match="root"):
        pull_from(parent.address)
    parent.join(20)


def test_a_layout_with_a_flipped_bit_is_refused(arena: MemoryArena) -> None:
    """Its digits say where each tensor lies: the bytes could be right, and the weights wrong."""
    damaged = bytearray(good_meta(arena))
    damaged[-1] ^= 1
    parent = ScriptedParent(lambda child: child.sendall(damaged))
    with pytest.raises(TornFrame, match=r"the layout document of arena-1+ differs"):
        pull_from(parent.address)
    parent.join(20)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"\0" * 12, TornFrame),
        (encode(Data(MIB, 4 * MIB, MIB)), TornFrame),  # an offset that was not asked for
        (encode(Data(0, 4 * MIB, MIB - 1)), TornFrame),  # a length that was not asked for
        (encode(Data(0, 5 * MIB, MIB)), TornFrame),  # a watermark beyond the arena
        (encode(frames.Pull(0, 1, 0)), TornFrame),  # a child's word
        (HEADER_OF_4_GIB, TornFrame),
        (encode(Data(0, 4 * MIB, 0)), DeadlineExceeded),  # has it and does not give it
        (encode(Trouble(Problem(reason="UnknownArena", message="gone"))), UnknownArena),
    ],
)
def test_a_bad_answer_to_a_pull(arena: MemoryArena, answer: bytes, error: type[Exception]) -> None:
    def act(child: socket.socket) -> None:
        child.sendall(good_meta(arena))
        read_frame(child)
        child.sendall(answer)
        while child.recv(4096):
            pass

    parent = ScriptedParent(act)
    target = Target(len(DATA))
    with pytest.raises(error, match="parent-1"):
        fill(pull_from(parent.address), target)
    assert not any(target.data), "nothing was written"
    assert target.marks.received(0) == 0
    parent.join(20)


@pytest.mark.parametrize("answer", [Data(0, MIB - 1, 0), Data(0, 0, 0)])
def test_empty_answers_without_end_are_no_bytes_and_no_harm(arena: MemoryArena, answer: Data) -> None:
    """A parent that answers at once that it has nothing, as fast as it is asked: starved, and no more than that."""

    def act(child: socket.socket) -> None:
        child.sendall(good_meta(arena))
        with contextlib.suppress(StreamEnded):
            while isinstance(pull := read_frame(child), frames.Pull):
                child.sendall(encode(Data(pull.offset, answer.watermark, 0)))

    parent = ScriptedParent(act)
    pull, target = pull_from(parent.address), Target(len(DATA))
    with contextlib.closing(pull):
        step = pull.advance(target.sink(pull), 0.5)
    assert (step.state, step.starved, step.bytes_in, step.parent_end) == ("going", True, 0, answer.watermark)
    parent.join(20)


def test_large_documents_get_the_time_that_a_slow_link_takes(arena: MemoryArena) -> None:
    """The layout comes whole, and later than the deadline for the parent's first word."""
    layout = arena.meta.layout + b" " * (8 << 20)
    answer = good_meta(arena, layout)
    late = threading.Event()

    def act(sock: socket.socket) -> None:
        sock.sendall(answer[: -len(layout)])
        late.wait(1.5)  # nobody sets it: this is a link that takes its time
        sock.sendall(layout)

    parent = ScriptedParent(act)
    pull = TcpTransport().connect(Peer(node="n1", address=parent.address), ARENA, "n2", 1.0)
    assert pull.meta.layout == layout
    pull.close()


def test_a_parent_that_trickles_does_not_push_the_deadline(arena: MemoryArena) -> None:
    """One byte each now and then keeps it from being silent, but a request that it can answer is due."""
    ended = threading.Event()

    def act(child: socket.socket) -> None:
        child.sendall(good_meta(arena))
        read_frame(child)
        child.sendall(encode(Data(0, 4 * MIB, MIB)))
        while not ended.wait(0.05):
            child.sendall(b"x")

    parent = ScriptedParent(act)
    with pytest.raises(DeadlineExceeded, match="parent-1"):
        fill(pull_from(parent.address, PullSettings(poll=0.1, silence=5, overdue_floor=0.5)))
    ended.set()
    parent.join(20)
