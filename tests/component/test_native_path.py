"""The C++ hot path as Python sees it: names of exceptions, buffers, threads. What it does is tested in csrc/tests."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flashboot_agent import _native
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.wire import frames
from flashboot_agent.wire.problem import Problem

MIB = 1 << 20
DATA = os.urandom(MIB) * 3 + b"tail"
LONG = 20.0
AGENT = "flashboot://agent/node-1"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


@pytest.fixture
def ends() -> Iterator[tuple[_native.Stream, _native.Stream]]:
    """The child's end, the parent's end."""
    child, parent = (
        _native.Stream(sock.detach(), f"the {peer}")
        for sock, peer in zip(socket.socketpair(), ("parent", "child"), strict=True)
    )
    yield child, parent
    child.close()
    parent.close()


def make_marks(nbytes: int = len(DATA), bounds: list[tuple[int, int]] | None = None) -> _native.Marks:
    record = os.memfd_create("record")
    try:
        os.truncate(record, 8192)
        return _native.Marks(record, nbytes, bounds or [(0, nbytes)])
    finally:
        os.close(record)


def serve(stream: _native.Stream, marks: _native.Marks, served: _native.Served, memory: bytes = DATA) -> None:
    buckets = [_native.EgressBucket(0)]
    _native.serve(stream, marks, memory, served, buckets, idle=LONG, silence=LONG, reply=LONG, nice=0)


def make_puller(stream: _native.Stream, marks: _native.Marks, memory: bytearray | mmap.mmap) -> _native.LanePuller:
    return _native.LanePuller(
        stream,
        marks,
        0,
        memory,
        chunk_digests(DATA),
        request_bytes=MIB,
        in_flight=2,
        poll=0.05,
        silence=LONG,
        overdue_floor=LONG,
        nice=0,
    )


def test_the_limits_are_those_of_the_python_side() -> None:
    assert _native.SERVE_LIMIT == frames.MAX_PULL
    assert _native.DIGEST_CHUNK == DIGEST_CHUNK_BYTES


def test_a_lane_is_pulled_and_counted(ends: tuple[_native.Stream, _native.Stream], pool: ThreadPoolExecutor) -> None:
    child, parent = ends
    source, mine, served, memory = make_marks(), make_marks(), _native.Served(), bytearray(len(DATA))
    source.fill()
    serving = pool.submit(serve, parent, source, served)
    result = make_puller(child, mine, memory).advance(LONG)
    assert (result.state, result.parent_end, result.bytes_in) == ("done", len(DATA), len(DATA))
    assert not result.starved
    assert result.trouble == b""
    child.close()
    serving.result(LONG)
    assert memory == DATA
    assert served.bytes_out == len(DATA) == mine.counter(2) == source.counter(3)
    assert 0 <= served.last_byte_age < LONG
    assert mine.verified(0) == mine.received(0) == mine.total_verified == len(DATA)


def test_frames_of_the_python_side_are_understood(
    ends: tuple[_native.Stream, _native.Stream], pool: ThreadPoolExecutor
) -> None:
    child, parent = ends
    source = make_marks()
    source.set_verified(0, MIB)
    serving = pool.submit(serve, parent, source, _native.Served())
    child.send(frames.encode(frames.Pull(5, 10, 0)), b"", LONG, LONG, "asking")
    reply = bytearray(frames.HEADER.size + 20 + 10)
    assert child.recv_into(reply, LONG, LONG, "hearing") == len(reply)
    assert reply[:-10] == frames.encode(frames.Data(5, MIB, 10))
    assert reply[-10:] == DATA[5:15]
    child.close()
    serving.result(LONG)

    mine, other = (_native.Stream(sock.detach(), "the parent") for sock in socket.socketpair())
    problem = Problem(reason="UnknownArena", message="it went")
    other.send(frames.encode(frames.Trouble(problem)), b"", LONG, LONG, "telling")
    result = make_puller(mine, make_marks(), bytearray(len(DATA))).advance(LONG)
    assert result.state == "trouble"
    assert Problem.model_validate_json(result.trouble) == problem


def test_a_wrong_chunk_is_told_with_its_place(
    ends: tuple[_native.Stream, _native.Stream], pool: ThreadPoolExecutor
) -> None:
    child, parent = ends
    source, mine = make_marks(), make_marks()
    source.fill()
    wrong = bytearray(DATA)
    wrong[MIB + 7] ^= 1
    serving = pool.submit(serve, parent, source, _native.Served(), bytes(wrong))
    result = make_puller(child, mine, bytearray(len(DATA))).advance(LONG)
    assert (result.state, result.offset) == ("differs", MIB)
    assert mine.verified(0) == MIB
    assert mine.counter(4) == 1
    child.close()
    with pytest.raises(_native.StreamBroken):
        serving.result(LONG)


def test_every_failure_has_its_exception(ends: tuple[_native.Stream, _native.Stream], pool: ThreadPoolExecutor) -> None:
    child, parent = ends
    with pytest.raises(_native.StreamTimeout, match=r"the parent: .*hearing"):
        child.recv_into(bytearray(1), 0.01, LONG, "hearing")
    child.send(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n", b"", LONG, LONG, "asking")
    with pytest.raises(_native.StreamTorn, match="no chunk protocol"):
        serve(parent, make_marks(), _native.Served())
    marks = make_marks()
    waiting = pool.submit(marks.wait_valid, 0, 1, LONG)
    marks.close()
    with pytest.raises(_native.MarksClosed):
        waiting.result(LONG)
    assert marks.closed
    with pytest.raises(ValueError, match="follow on byte"):
        make_marks(10, [(1, 10)])
    with pytest.raises(ValueError, match="received to"):
        make_marks(10).set_received(0, 11)


def test_closing_wakes_a_thread_that_waits_without_the_gil(
    ends: tuple[_native.Stream, _native.Stream], pool: ThreadPoolExecutor
) -> None:
    child, _ = ends
    puller = make_puller(child, make_marks(), bytearray(len(DATA)))
    began = threading.Event()

    def work() -> None:
        began.set()
        puller.advance(LONG)

    pulling = pool.submit(work)
    assert began.wait(LONG)
    child.close()
    with pytest.raises(_native.StreamBroken, match="closed on our side"):
        pulling.result(LONG)


def test_memory_stays_pinned_as_long_as_a_puller_holds_it(ends: tuple[_native.Stream, _native.Stream]) -> None:
    memory = mmap.mmap(-1, len(DATA))
    puller = make_puller(ends[0], make_marks(), memory)
    with pytest.raises(BufferError):
        memory.close()
    del puller
    memory.close()


def test_read_only_memory_is_refused(ends: tuple[_native.Stream, _native.Stream]) -> None:
    with pytest.raises(BufferError):
        make_puller(ends[0], make_marks(), bytes(len(DATA)))  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        ends[0].recv_into(b"1", LONG, LONG, "hearing")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_lane_is_copied_from_a_mapped_parent(threads: int) -> None:
    source, mine, memory = make_marks(), make_marks(), bytearray(len(DATA))
    copier = _native.LaneCopier(source, DATA, mine, 0, memory, chunk_digests(DATA), threads=threads, nice=0)
    nothing = copier.advance(0.01)
    assert (nothing.state, nothing.starved) == ("going", True)
    source.fill()
    assert copier.advance(LONG).state == "done"
    assert memory == DATA


def test_a_nice_thread_stays_nice() -> None:
    source, mine = make_marks(), make_marks()
    copier = _native.LaneCopier(source, DATA, mine, 0, bytearray(len(DATA)), chunk_digests(DATA), threads=1, nice=7)
    seen: list[int] = []

    def work() -> None:
        copier.advance(0)
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(LONG)
    assert seen == [max(7, os.getpriority(os.PRIO_PROCESS, 0))]


def test_a_rate_may_change_while_it_counts() -> None:
    bucket = _native.EgressBucket(10)
    bucket.rate = 0
    assert bucket.rate == 0


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], _native.TlsContext]:
    """Makes contexts of `node-1`; (CA that issued its certificate, whether for a server). CAs: "ours", "theirs"."""
    folder = tmp_path_factory.mktemp("certificates")
    key_kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

    def openssl(*args: str | Path) -> None:
        subprocess.run(["openssl", *args], check=True, capture_output=True)

    for ca in ("ours", "theirs"):
        root, root_key, node = (folder / f"{ca}{end}" for end in (".pem", ".key", "-node.pem"))
        new = ("req", "-x509", *key_kind, "-days", "2")
        signed = ("-CA", root, "-CAkey", root_key, "-addext", f"subjectAltName=URI:{AGENT}")
        openssl(*new, "-keyout", root_key, "-out", root, "-subj", f"/CN={ca}")
        openssl(*new, "-keyout", node.with_suffix(".key"), "-out", node, "-subj", "/CN=node-1", *signed)

    def make(ca: str, server: bool) -> _native.TlsContext:
        node = folder / f"{ca}-node.pem"
        trusted = (folder / "ours.pem").read_bytes()
        return _native.TlsContext(node.read_bytes(), node.with_suffix(".key").read_bytes(), trusted, server=server)

    return make


def test_under_tls_a_lane_is_pulled_from_whom_it_should(
    ends: tuple[_native.Stream, _native.Stream],
    pool: ThreadPoolExecutor,
    context: Callable[[str, bool], _native.TlsContext],
) -> None:
    child, parent = ends
    source, memory = make_marks(), bytearray(len(DATA))
    source.fill()

    def work() -> None:
        parent.start_tls(context("ours", True), None, LONG)
        serve(parent, source, _native.Served())

    serving = pool.submit(work)
    assert child.tls is None
    child.start_tls(context("ours", False), AGENT, LONG)
    assert child.tls == "TLSv1.3 TLS_AES_128_GCM_SHA256"
    assert child.peer_uris == [AGENT]
    assert make_puller(child, make_marks(), memory).advance(LONG).state == "done"
    assert memory == DATA
    child.close()
    serving.result(LONG)


@pytest.mark.parametrize(("ca", "wanted"), [("theirs", AGENT), ("ours", AGENT + "0")])
def test_another_parent_is_refused(
    ca: str,
    wanted: str,
    ends: tuple[_native.Stream, _native.Stream],
    pool: ThreadPoolExecutor,
    context: Callable[[str, bool], _native.TlsContext],
) -> None:
    child, parent = ends
    pool.submit(parent.start_tls, context(ca, True), None, LONG)
    with pytest.raises(_native.TlsRefused):
        child.start_tls(context("ours", False), wanted, LONG)
    child.close()
