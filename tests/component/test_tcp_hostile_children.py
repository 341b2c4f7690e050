"""The TCP server against children that mean harm, or say nothing."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

import pytest

from flashboot_agent.core.errors import (
    NotReady,
)
from flashboot_agent.transport.tcp_server import TcpServer
from flashboot_agent.wire import frames
from flashboot_agent.wire.frames import Data, MetaReply, MetaRequest, Trouble, encode
from tests.component.agents import eventually
from tests.component.memory_catalog import MIB, MemoryArena, MemoryCatalog, until
from tests.component.tcp_peers import (
    ARENA,
    DATA,
    Start,
    fill,
    pull_from,
    read_frame,
)


def raw_child(server: TcpServer) -> socket.socket:
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def introduce(child: socket.socket) -> None:
    child.sendall(encode(MetaRequest(arena=ARENA, child="child-1")))
    meta = read_frame(child)
    assert isinstance(meta, MetaReply)
    left = meta.digests_bytes + meta.layout_bytes
    while left:
        left -= len(child.recv(left))


@pytest.mark.parametrize(
    ("sent", "reason", "message"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "TornFrame", "no chunk protocol"),
        (struct.pack("<4sBBHI", b"FBCH", frames.VERSION, 1, 0, 2**31), "TornFrame", "2147483648 bytes"),
        (struct.pack("<4sBBHI", b"FBCH", 9, 1, 0, 2), "TornFrame", "version 9"),
        (encode(frames.Pull(0, 1, 0)), "BadRequest", "first frame must be MetaRequest"),
        (struct.pack("<4sBBHI", b"FBCH", frames.VERSION, 1, 0, 2) + b"{}", "TornFrame", "arena"),
    ],
)
def test_a_hostile_first_frame(start: Start, sent: bytes, reason: str, message: str) -> None:
    server = start()
    with raw_child(server) as child:
        child.sendall(sent)
        trouble = read_frame(child)
        assert isinstance(trouble, Trouble)
        assert trouble.problem.reason == reason
        assert message in trouble.problem.message
        assert child.recv(1) == b"", "and it hangs up"
    assert fill(pull_from(server.address)).data == DATA, "others are served as before"


@pytest.mark.parametrize(
    "sent",
    [
        encode(frames.Pull(len(DATA) - 1, 2, 0)),  # beyond the arena
        encode(MetaRequest(arena=ARENA, child="child-1")),  # a second time
        encode(frames.Pull(0, 1, 0))[:-16] + struct.pack("<QII", 0, frames.MAX_PULL + 1, 0),
        encode(frames.Pull(0, 1, 0))[:-16] + struct.pack("<QII", 0, 0, 0),
        encode(frames.Pull(0, 1, 0))[:-16] + struct.pack("<QII", 2**64 - 1, 1, 0),
        encode(frames.Pull(0, 1, 0))[:-16] + struct.pack("<QII", 0, 1, frames.MAX_WAIT_MS + 1),
        struct.pack("<4sBBHI", b"FBCH", frames.VERSION, 3, 0, 2**31),
    ],
)
def test_a_hostile_request_ends_the_connection_with_a_word(start: Start, sent: bytes) -> None:
    server = start()
    with raw_child(server) as child:
        introduce(child)
        child.sendall(sent + encode(frames.Pull(0, 1, 0)) * 3)
        trouble = read_frame(child)
        assert isinstance(trouble, Trouble)
        assert trouble.problem.reason == "TornFrame"
        assert child.recv(1) == b""
    assert fill(pull_from(server.address)).data == DATA, "others are served as before"


def test_a_request_is_answered_as_often_as_it_is_sent(start: Start, arena: MemoryArena) -> None:
    """A replay costs its own bytes and nothing else: no state, no memory, and the marks of nobody."""
    with raw_child(start()) as child:
        introduce(child)
        for _ in range(200):
            child.sendall(encode(frames.Pull(4096, 4096, 0)))
            data = read_frame(child)
            assert data == Data(4096, len(DATA), 4096)
            got = b""
            while len(got) < 4096:
                got += child.recv(4096 - len(got))
            assert got == DATA[4096:8192]
    eventually(lambda: arena.bytes_out == 200 * 4096, "accounted")


def gone(server: TcpServer, arena: MemoryArena) -> bool:
    """No connection and no lease is left."""
    deadline = time.monotonic() + 20
    changed = threading.Event()
    while time.monotonic() < deadline and (server.connections or arena.children):
        changed.wait(0.01)
    return not server.connections and not arena.children


def test_a_child_that_says_nothing_is_given_up(start: Start, arena: MemoryArena) -> None:
    server = start(hello=0.2, idle=0.2)
    with raw_child(server) as mute, raw_child(server) as half, raw_child(server) as idle:
        half.sendall(b"FBCH")
        introduce(idle)
        for child in (mute, half, idle):
            assert child.recv(1) == b""
        assert gone(server, arena)


def test_a_child_that_trickles_a_request_is_given_up(start: Start, arena: MemoryArena) -> None:
    server = start(hello=0.3)
    with raw_child(server) as child, contextlib.suppress(ConnectionError):
        wait = threading.Event()
        for byte in encode(MetaRequest(arena=ARENA, child="child-1"))[:-1] * 5:
            child.sendall(bytes([byte]))
            wait.wait(0.02)
    assert gone(server, arena)


def test_a_child_that_takes_nothing_is_given_up(start: Start, arena: MemoryArena) -> None:
    """It asks for far more than the socket buffers hold, and reads none of it."""
    server = start(silence=0.3)
    with raw_child(server) as child:
        introduce(child)
        child.sendall(encode(frames.Pull(0, 4 * MIB, 0)) * 16)
        assert gone(server, arena)


def test_a_child_that_dies_in_a_long_poll_frees_its_lease(growing: MemoryArena) -> None:
    server = TcpServer(MemoryCatalog(growing), "127.0.0.1", 0)
    with raw_child(server) as child:
        introduce(child)
        child.sendall(encode(frames.Pull(0, 1, 60_000)) * 2)
        until(growing.changed, lambda: growing.children)
    assert gone(server, growing)
    server.close()


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"connections": 1}, "already serves 1 connections; try another"),
        ({"per_address": 1}, "already serves 1 connections from 127.0.0.1"),
    ],
)
def test_one_connection_too_many_is_told_so(start: Start, limits: dict[str, float], says: str) -> None:
    server = start(**limits)
    with raw_child(server) as child:
        introduce(child)
        with pytest.raises(NotReady, match=says):
            pull_from(server.address)

    def served() -> bool:
        try:
            return fill(pull_from(server.address)).data == DATA
        except NotReady:
            return False

    eventually(served, "the place is free again")


def test_a_server_closes_while_children_wait(growing: MemoryArena) -> None:
    server = TcpServer(MemoryCatalog(growing), "127.0.0.1", 0)
    with raw_child(server) as child:
        introduce(child)
        child.sendall(encode(frames.Pull(0, 1, 60_000)))
        until(growing.changed, lambda: growing.children)
        server.close()
        assert child.recv(1) == b""
    assert gone(server, growing)
