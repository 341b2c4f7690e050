"""Asking without Python: what the module `_ahead` takes, Python would take; all else it leaves to Python, whole.

The other side of the socket is here; tests/engine/test_ahead.py makes tensors of what was taken.
"""

from __future__ import annotations

import json
import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent import _native
from flashboot_agent._ahead import Ahead
from flashboot_agent.core.identity import document_digest
from flashboot_agent.engine import messages
from flashboot_agent.wire.attach import Coming, Ready, Seed
from flashboot_agent.wire.attach_socket import ATTACHED, MAX_MESSAGE
from flashboot_agent.wire.layout import Layout, LayoutError
from flashboot_agent.wire.layout_entries import Segment
from flashboot_agent.wire.layout_head import canonical
from tests.layouts import parts, plain, sealed, small

IDENTITY = {"model": "m", "notes": 'ä "quoted" \n'}
ARENA, XXH = "arena-" + "a" * 32, "xxh3:" + "2" * 16
LAYOUT = plain(3, IDENTITY)
DOCUMENT = LAYOUT.to_bytes()
HELLO = b'{"type":"hello"}'
texts = st.text(st.characters(codec="utf-8"), max_size=20)


def memory(data: bytes) -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, data)
    return descriptor


def ready(document: bytes = DOCUMENT, **changes: Any) -> bytes:
    fields = {"arena": ARENA, "bytes": LAYOUT.arena_bytes, "identity": "sha256:" + "1" * 64, "digest": XXH}
    return Ready(**{**fields, "layout_digest": document_digest(document), **changes}).to_json()


class Agent:
    """Answers one hello with one packet, and hears what comes after it."""

    def __init__(self, packet: bytes | None, files: list[bytes]) -> None:
        """packet: None to say nothing."""
        self.path = str(Path(tempfile.mkdtemp(prefix="fb-")) / "agent.sock")
        self.heard: list[bytes] = []
        self._packet, self._files = packet, [memory(each) for each in files]
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            self.heard.append(connection.recv(MAX_MESSAGE))
            if self._packet is not None:
                socket.send_fds(connection, [self._packet], self._files)
            while data := connection.recv(MAX_MESSAGE):
                self.heard.append(data)

    def close(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the connection was ended"
        self._listener.close()
        for file in self._files:
            os.close(file)
        os.unlink(self.path)
        os.rmdir(os.path.dirname(self.path))


@pytest.fixture
def agent() -> Iterator[Callable[..., Agent]]:
    agents = []

    def agent(packet: bytes | None, files: list[bytes]) -> Agent:
        agents.append(Agent(packet, files))
        return agents[-1]

    before = len(os.listdir("/proc/self/fd"))
    yield agent
    for each in agents:
        each.close()
    assert len(os.listdir("/proc/self/fd")) == before, "no descriptor stays open"


def readable(ahead: Ahead, seconds: float) -> bool:
    return bool(select.select([ahead], [], [], seconds)[0])


def asked(identity: dict[str, str] = IDENTITY) -> Ahead:
    return Ahead(canonical(identity))


def test_a_sealed_arena_is_taken_and_the_connection_stays(agent: Callable[..., Agent]) -> None:
    there = agent(ready(), [bytes(LAYOUT.arena_bytes), DOCUMENT])
    ahead = asked()
    assert ahead.ask(there.path, HELLO, 20)
    assert (ahead.arena, ahead.nbytes, ahead.digest) == (ARENA, LAYOUT.arena_bytes, XXH)
    assert ahead.document() == DOCUMENT
    assert ahead.answer() is None
    assert not readable(ahead, 0.01), "the agent says no more"
    assert ahead.tell(ATTACHED)
    ahead.stop()
    ahead.stop()
    assert readable(ahead, 20)
    assert not ahead.tell(ATTACHED)
    there._thread.join(20)
    assert there.heard == [HELLO, ATTACHED]


def _other(**changes: Any) -> bytes:
    return json.dumps({**json.loads(ready()), **changes}).encode()


MEMORY = bytes(LAYOUT.arena_bytes)
LEFT: dict[str, tuple[bytes, list[bytes]]] = {
    "coming": (Coming(allocated=True, bytes=7, watermark=3, note="ä").to_json(), []),
    "seed": (Seed(arena=ARENA).to_json(), []),
    "no message": (b"nonsense", []),
    "another kind": (_other(type="writable"), [MEMORY, DOCUMENT]),
    "a field more": (_other(more=1), [MEMORY, DOCUMENT]),
    "a field twice": (ready()[:-1] + b',"bytes":1}', [MEMORY, DOCUMENT]),
    "no number": (_other(bytes="1"), [MEMORY, DOCUMENT]),
    "a fraction": (_other(bytes=1.5), [MEMORY, DOCUMENT]),
    "true": (_other(bytes=True), [MEMORY, DOCUMENT]),
    "no file": (ready(), []),
    "one file": (ready(), [MEMORY]),
    "three files": (ready(), [MEMORY, DOCUMENT, DOCUMENT]),
    "files the other way round": (ready(), [DOCUMENT, MEMORY]),
    "another document": (ready(), [MEMORY, DOCUMENT[:-1] + b"\0"]),
    "no document": (ready(b""), [MEMORY, b""]),
    "a short arena": (ready(), [MEMORY[:-1], DOCUMENT]),
    "an arena of fewer bytes than announced": (ready(bytes=LAYOUT.arena_bytes + 1), [MEMORY, DOCUMENT]),
    "another identity": (ready(plain(3, {"model": "n"}).to_bytes()), [MEMORY, plain(3, {"model": "n"}).to_bytes()]),
    "a model's layout": (ready(small().to_bytes()), [MEMORY, small().to_bytes()]),
}


@pytest.mark.parametrize("case", LEFT)
def test_all_else_is_left_to_python_with_its_descriptors(agent: Callable[..., Agent], case: str) -> None:
    packet, files = LEFT[case]
    there = agent(packet, files)
    ahead = asked()
    assert not ahead.ask(there.path, HELLO, 20)
    said = ahead.answer()
    assert said is not None
    connection, data, descriptors = said
    assert data == packet
    assert [os.pread(descriptor, 1 << 20, 0) for descriptor in descriptors] == files
    assert ahead.answer() is None
    for descriptor in (connection, *descriptors):
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


@pytest.mark.parametrize("case", ["coming", "one file"])
def test_what_nobody_asks_for_is_closed(agent: Callable[..., Agent], case: str) -> None:
    there = agent(*LEFT[case])
    ahead = asked()
    assert not ahead.ask(there.path, HELLO, 20)
    del ahead


@pytest.mark.parametrize(
    ("packet", "files"), [(b" " * (MAX_MESSAGE + 1), []), (ready(), [MEMORY] * 5)], ids=["too long", "too many files"]
)
def test_a_packet_that_is_none_of_the_protocol_is_no_answer(
    agent: Callable[..., Agent], packet: bytes, files: list[bytes]
) -> None:
    there = agent(packet, files)
    ahead = asked()
    assert not ahead.ask(there.path, HELLO, 20)
    assert ahead.answer() is None


def test_an_agent_that_is_silent_is_not_waited_for_longer_than_asked(agent: Callable[..., Agent]) -> None:
    there = agent(None, [])
    ahead, begun = asked(), time.monotonic()
    assert not ahead.ask(there.path, HELLO, 0.1)
    assert 0.1 <= time.monotonic() - begun < 10
    assert ahead.answer() is None


def test_an_agent_that_is_away_is_no_answer(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none.sock"), "", "x" * 200):
        ahead = asked()
        assert not ahead.ask(path, HELLO, 20)
        assert ahead.answer() is None
        assert not ahead.tell(ATTACHED)


def test_a_wait_ends_when_nobody_wants_it_any_more(agent: Callable[..., Agent]) -> None:
    there = agent(None, [])
    ahead = asked()
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(ahead.ask(there.path, HELLO, 600)))
    thread.start()
    while not there.heard:
        time.sleep(0.001)
    ahead.stop()
    thread.join(20)
    assert taken == [False]
    assert ahead.answer() is None
    assert not asked_again(ahead, there.path)


def asked_again(ahead: Ahead, path: str) -> bool:
    return ahead.ask(path, HELLO, 20)


# Held to what Python reads ----------------------------------------------------------------------------------------


def takes(document: bytes, identity: dict[str, str], nbytes: int) -> bool:
    arena = os.memfd_create("arena")
    os.ftruncate(arena, nbytes)
    try:
        return Ahead(canonical(identity)).take(ARENA, nbytes, XXH, arena, document)
    finally:
        os.close(arena)


def python_takes(document: bytes, identity: dict[str, str], nbytes: int) -> bool:
    """Whether Python reads it, and it is of plain tensors."""
    try:
        layout = Layout.from_bytes(document)
    except LayoutError:
        return False
    beside = (layout.scalars, layout.deleted, layout.structure, layout.segments)
    return (
        layout.identity == identity
        and 0 < layout.arena_bytes <= nbytes
        and beside == ({}, {}, None, [Segment(0, layout.arena_bytes)])
        and layout._head.attributes == [{}]
        and layout.table.all_in_place
    )


@given(st.dictionaries(texts, texts, max_size=4), st.integers(1, 5))
def test_a_layout_of_plain_tensors_is_taken_whatever_its_identity(identity: dict[str, str], count: int) -> None:
    layout = plain(count, identity)
    assert takes(layout.to_bytes(), identity, layout.arena_bytes)
    assert not takes(layout.to_bytes(), identity, layout.arena_bytes - 1)
    assert not takes(layout.to_bytes(), {**identity, "more": ""}, layout.arena_bytes)


@settings(max_examples=400)
@given(st.data())
def test_of_any_document_python_would_say_the_same(data: st.DataObject) -> None:
    """One or two bytes of head or tables changed, under a right checksum."""
    head, tables = map(bytearray, parts(DOCUMENT))
    for part in data.draw(st.lists(st.sampled_from([head, tables]), min_size=1, max_size=2)):
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    document = sealed(bytes(head), bytes(tables))
    expected = python_takes(document, IDENTITY, LAYOUT.arena_bytes)
    assert takes(document, IDENTITY, LAYOUT.arena_bytes) == expected


HEADS: list[Callable[[dict[str, Any]], Any]] = [
    lambda head: {**head, "arenaBytes": 0, "segments": []},
    lambda head: {**head, "arenaBytes": 1 << 60, "segments": [[0, 1 << 60]]},
    lambda head: {**head, "arenaBytes": -1536, "segments": [[0, -1536]]},
    lambda head: {**head, "segments": [[0, 512], [512, 1024]]},
    lambda head: {**head, "attributes": []},
    lambda head: {**head, "attributes": [{"a": 1}]},
    lambda head: {**head, "scalars": [[{"a": 1}, [0]]]},
    lambda head: {**head, "deleted": [[["a"], [0]]]},
    lambda head: {**head, "structure": "sha256:"},
    lambda head: {**head, "identity": {}},
    lambda head: {**head, "more": 1},
    lambda head: [head],
]


@pytest.mark.parametrize("change", HEADS)
def test_a_head_with_anything_else_in_it_is_not_taken(change: Callable[[dict[str, Any]], Any]) -> None:
    head, tables = parts(DOCUMENT)
    assert takes(sealed(head, tables), IDENTITY, LAYOUT.arena_bytes)
    document = sealed(canonical(change(json.loads(head))), tables)
    assert not takes(document, IDENTITY, LAYOUT.arena_bytes)
    assert not python_takes(document, IDENTITY, LAYOUT.arena_bytes)


@pytest.mark.parametrize("again", [lambda head: head + b" ", lambda head: head.replace(b":[0,", b":[0, ")])
def test_a_head_in_another_form_is_not_taken(again: Callable[[bytes], bytes]) -> None:
    head, tables = parts(DOCUMENT)
    document = sealed(again(head.replace(b"[[0,", b"[[0, ")), tables)
    assert not takes(document, IDENTITY, LAYOUT.arena_bytes)
    assert not python_takes(document, IDENTITY, LAYOUT.arena_bytes)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(ready()) - 1), st.integers(1, 255))
def test_an_offer_that_is_taken_reads_the_same_in_python(at: int, by: int) -> None:
    changed = bytearray(ready())
    changed[at] ^= by
    packet = bytes(changed)
    there = Agent(packet, [MEMORY, DOCUMENT])
    ahead = asked()
    if ahead.ask(there.path, HELLO, 20):
        heard = messages.read(packet)
        assert isinstance(heard, messages.Ready)
        assert (heard.arena, heard.bytes, heard.digest) == (ahead.arena, ahead.nbytes, ahead.digest)
        assert heard.layout_digest == document_digest(DOCUMENT)
    elif (said := ahead.answer()) is not None:
        for descriptor in (said[0], *said[2]):
            os.close(descriptor)
    del ahead
    there.close()


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_frame_of_a_document_is_found_by_its_lengths_and_checksum(head: bytes, tables: bytes) -> None:
    document = sealed(head, tables)
    assert _native.layout_parts(document) == (head, tables)
    for wrong in (document[:-1], document + b"\0", document[:20] + b"\xff" + document[21:], document[:12]):
        with pytest.raises(_native.Malformed):
            _native.layout_parts(wrong)
