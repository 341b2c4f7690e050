"""The plug-in's side of the attach protocol, against real sockets: patience, restarts, refusals, deadlines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.core.errors import (
    CloneFailed,
    CommitRefused,
    DeadlineExceeded,
    IdentityMismatch,
    InsufficientMemory,
    TornFrame,
    UnsupportedModel,
)
from flashboot_agent.engine import conversation, keeper
from flashboot_agent.engine.channel import Channel
from flashboot_agent.engine.client import AgentClient
from flashboot_agent.engine.deadlines import Deadlines
from flashboot_agent.engine.mapping import map_arena, unmap
from flashboot_agent.engine.offer import MustSeed, Sealed
from flashboot_agent.wire import attach as wire
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_entries import Segment
from flashboot_agent.wire.place import Place
from tests.engine import peer as peers

IDENTITY = {"model": "m", "dtype": "bfloat16"}
SHORT = Deadlines(connect=2.0, arena=20.0, preflight=2.0)
NBYTES = 4096


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(keeper, "RETRY_SECONDS", 0.05)


@pytest.fixture
def peer(socket_path: Path) -> Iterator[peers.Peer]:
    peer = peers.Peer(socket_path)
    yield peer
    if socket_path.exists():
        peer.close()


@pytest.fixture
def make(socket_path: Path) -> Iterator[Callable[..., AgentClient]]:
    made: list[AgentClient] = []

    def make(identity: dict[str, str] = IDENTITY, deadlines: Deadlines = SHORT, clone: float = 5) -> AgentClient:
        made.append(AgentClient(str(socket_path), deadlines, clone, Place(), identity))
        return made[-1]

    yield make
    for client in made:
        client.close()


def layout(identity: dict[str, str] = IDENTITY) -> bytes:
    return Layout(
        identity=identity,
        arena_bytes=NBYTES,
        segments=[Segment(offset=0, bytes=NBYTES)],
        storages=[],
        tensors=[],
        bindings=[],
    ).to_bytes()


def fill(client: AgentClient) -> Sealed:
    descriptor, readable = client.allocate(NBYTES)
    os.close(readable)
    mapping = map_arena(descriptor, NBYTES, writable=True)
    os.close(descriptor)
    mapping[:5] = b"bytes"
    unmap(mapping, "test")
    return client.commit(layout(), NBYTES)


def seeded(make: Callable[..., AgentClient]) -> None:
    client = make()
    assert client.wait() == MustSeed(arena=peers.ARENA)
    os.close(fill(client).descriptor)
    client.attached()


def in_background(action: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(action())
        except Exception as error:  # noqa: BLE001 # the test looks at it
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def test_the_first_seeds_and_the_second_attaches(peer: peers.Peer, make: Callable[..., AgentClient]) -> None:
    seeded(make)
    second = make()
    offer = second.wait()
    assert isinstance(offer, Sealed)
    mapping = map_arena(offer.descriptor, offer.nbytes, writable=False)
    assert mapping[:5] == b"bytes"
    assert offer.layout == layout()
    with pytest.raises(PermissionError):
        map_arena(offer.descriptor, offer.nbytes, writable=True)
    mapping.close()
    os.close(offer.descriptor)
    second.attached()
    peer.wait_for(wire.Attached, 2)


def test_an_agent_that_is_away_is_waited_for(
    socket_path: Path, make: Callable[..., AgentClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()
    monkeypatch.setattr(time, "sleep", lambda _: failed.set())
    thread, result = in_background(make().wait)
    assert failed.wait(10), "it found an agent where none was"
    peer = peers.Peer(socket_path)
    thread.join(10)
    assert result == [MustSeed(arena=peers.ARENA)]
    peer.close()


def test_a_dead_socket_and_a_deadline_name_socket_pod_and_rank(
    socket_path: Path, make: Callable[..., AgentClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAME", "pod-7")
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(socket_path))  # nobody listens: ECONNREFUSED
    with pytest.raises(DeadlineExceeded, match=rf"pod pod-7, rank tp0, {socket_path}: no agent within 0 s"):
        make(deadlines=Deadlines(connect=0.1, arena=20.0)).wait()


def test_coming_is_waited_for_and_survives_a_restart_of_the_agent(
    peer: peers.Peer, make: Callable[..., AgentClient]
) -> None:
    seeded(make)
    peer.hold = wire.Coming(allocated=True, bytes=NBYTES, watermark=10, note="cloning from n1")
    thread, result = in_background(make().wait)
    peer.wait_for(wire.Hello, 2)
    peer.close()
    assert thread.is_alive()
    peer.open()
    peer.wait_for(wire.Hello, 4)  # the waiting one, and the attached one's keeper
    peer.hold = None
    thread.join(10)
    assert isinstance(result[0], Sealed)
    os.close(result[0].descriptor)


def test_memory_is_sampled_only_after_the_arena_is_allocated(
    peer: peers.Peer, make: Callable[..., AgentClient]
) -> None:
    peer.hold = wire.Coming(allocated=False, bytes=0, watermark=0, note="no memory yet")
    client = make()
    thread, result = in_background(client.wait_allocated)
    peer.wait_for(wire.Hello)
    thread.join(0.3)
    assert thread.is_alive()
    peer.hold = wire.Coming(allocated=True, bytes=NBYTES, watermark=0, note="allocated")
    thread.join(10)
    assert result == [NBYTES]
    peer.hold = None
    assert client.wait() == MustSeed(arena=peers.ARENA)
    assert peer.count(wire.Hello) == 1


def test_a_decision_seen_while_waiting_for_memory_is_not_lost(
    peer: peers.Peer, make: Callable[..., AgentClient]
) -> None:
    seeded(make)
    client = make()
    client.wait_allocated()
    offer = client.wait()
    assert isinstance(offer, Sealed)
    os.close(offer.descriptor)
    assert peer.count(wire.Hello) == 2


def test_a_clone_that_stands_still_ends_with_what_it_waited_for(
    peer: peers.Peer, make: Callable[..., AgentClient]
) -> None:
    peer.hold = wire.Coming(allocated=True, bytes=NBYTES, watermark=100, note="pulling from n2")
    with pytest.raises(CloneFailed, match=rf"stood at 100 of {NBYTES} bytes .* pulling from n2"):
        make(clone=0.3).wait()
    peer.hold = None


def test_no_first_byte_ends_at_its_own_deadline(peer: peers.Peer, make: Callable[..., AgentClient]) -> None:
    peer.hold = wire.Coming(allocated=True, bytes=NBYTES, watermark=0, note="waiting for the seed on n3")
    with pytest.raises(DeadlineExceeded, match=r"no byte of the arena .* waiting for the seed on n3"):
        make(deadlines=Deadlines(connect=2.0, arena=0.3), clone=0.1).wait()
    peer.hold = None


def test_another_identity_is_refused_with_the_field(peer: peers.Peer, make: Callable[..., AgentClient]) -> None:
    seeded(make)
    with pytest.raises(IdentityMismatch, match="dtype: engine 'float16', arena 'bfloat16'"):
        make(identity=IDENTITY | {"dtype": "float16"}).wait()


def test_a_refusal_that_may_pass_is_asked_again(peer: peers.Peer, make: Callable[..., AgentClient]) -> None:
    peer.refuse = InsufficientMemory("budget used up")
    thread, result = in_background(make().wait)
    peer.wait_for(wire.Hello, 2)
    peer.refuse = None
    thread.join(10)
    assert result == [MustSeed(arena=peers.ARENA)]


def test_a_commit_is_refused_while_the_arena_is_mapped_for_writing(
    peer: peers.Peer, make: Callable[..., AgentClient]
) -> None:
    client = make()
    client.wait()
    descriptor, readable = client.allocate(NBYTES)
    os.close(readable)
    mapping = map_arena(descriptor, NBYTES, writable=True)
    os.close(descriptor)
    with pytest.raises(CommitRefused):
        client.commit(layout(), NBYTES)
    mapping.close()
    os.close(client.commit(layout(), NBYTES).descriptor)


def test_a_view_that_is_left_on_the_writable_mapping_is_told(
    peer: peers.Peer, make: Callable[..., AgentClient]
) -> None:
    client = make()
    client.wait()
    descriptor, readable = client.allocate(NBYTES)
    os.close(readable)
    mapping = map_arena(descriptor, NBYTES, writable=True)
    os.close(descriptor)
    with memoryview(mapping), pytest.raises(CommitRefused, match="still holds a view"):
        unmap(mapping, "test")
    mapping.close()


def test_a_lost_agent_during_a_commit_is_an_oserror_and_asking_again_works(
    peer: peers.Peer, make: Callable[..., AgentClient]
) -> None:
    client = make()
    client.wait()
    peer.commits_to_lose = 1
    with pytest.raises(OSError):  # noqa: PT011 # whichever the kernel says
        fill(client)
    client.drop()
    assert client.wait() == MustSeed(arena=peers.ARENA)
    os.close(fill(client).descriptor)


def test_the_keeper_says_attached_again_after_a_restart_of_the_agent(
    peer: peers.Peer, make: Callable[..., AgentClient]
) -> None:
    seeded(make)
    peer.wait_for(wire.Attached)
    peer.close()
    peer.open()
    peer.wait_for(wire.Attached, 2)
    again = [message for message in peer.seen if isinstance(message, wire.Hello)][-1]
    assert again.attached
    assert again.identity == IDENTITY


def test_troubles_are_told_and_cleared_on_the_same_connection(
    peer: peers.Peer, make: Callable[..., AgentClient]
) -> None:
    client = make()
    client.wait()
    problem = UnsupportedModel("no").problem()
    assert client.report(problem)
    assert client.clear()
    peer.wait_for(wire.Clear)
    assert [type(message) for message in peer.seen] == [wire.Hello, wire.Trouble, wire.Clear]
    os.close(fill(client).descriptor)


def test_a_trouble_does_not_block_while_the_agent_is_away(make: Callable[..., AgentClient]) -> None:
    assert not make().report(UnsupportedModel("no").problem())


@pytest.mark.parametrize("junk", [b"not json", b'{"type":"seed"}', b'{"type":"ready","arena":"x"}', b"x" * 70000])
def test_a_packet_that_is_no_message_is_a_torn_frame(socket_path: Path, junk: bytes) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(socket_path))
        server.listen()
        channel = Channel(str(socket_path), timeout=5)
        connection, _ = server.accept()
        with connection:
            connection.send(junk)
            with pytest.raises(TornFrame):
                channel.receive(5)
        channel.close()


def test_descriptors_of_a_torn_packet_are_closed(socket_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(socket_path))
        server.listen()
        channel = Channel(str(socket_path), timeout=5)
        connection, _ = server.accept()
        reading, writing = os.pipe()
        with connection:
            socket.send_fds(connection, [b"junk"], [writing])
            os.close(writing)
            with pytest.raises(TornFrame):
                channel.receive(5)
        assert os.read(reading, 1) == b"", "the writing end is still open somewhere"
        os.close(reading)
        channel.close()


def test_an_agent_that_only_talks_nonsense_is_asked_with_pauses_and_not_for_ever(
    peer: peers.Peer, make: Callable[..., AgentClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "_offer", lambda connection, *_: connection.send(b'{"type":"from another version"}'))
    client = make(deadlines=Deadlines(connect=0.3, arena=20.0))
    with pytest.raises(DeadlineExceeded, match="no word of the agent that makes sense within 0 s"):
        client.wait()
    assert 2 <= peer.count(wire.Hello) <= 0.3 / conversation.RETRY_SECONDS + 2
