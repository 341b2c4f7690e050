"""Asking without Python: what the module `_ahead` takes, Python would take; all else it leaves to Python, whole.

tests/property/test_ahead_agrees.py holds the two to each other; tests/engine/test_ahead.py makes tensors of what is
taken.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent._ahead import Ahead
from flashboot_agent.wire.attach import Coming, Seed
from flashboot_agent.wire.attach_socket import ATTACHED, MAX_MESSAGE
from tests.layouts import plain, small
from tests.offers import ARENA, DOCUMENT, HELLO, LAYOUT, XXH, Agent, asked, ready


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
