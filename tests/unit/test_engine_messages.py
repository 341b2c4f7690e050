"""The engine's own reading and writing of the attach protocol, held to the models of wire/attach.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashboot_agent.engine import messages
from flashboot_agent.wire import attach
from flashboot_agent.wire.attach_socket import ATTACHED, hello
from flashboot_agent.wire.place import Place
from flashboot_agent.wire.problem import Problem

AGENT = Path(messages.__file__).parents[2]
ARENA, SHA, XXH = "arena-" + "a" * 32, "sha256:" + "1" * 64, "xxh3:" + "2" * 16
PROBLEM = Problem(reason="NotReady", message="later: ä")
texts = st.text(st.characters(codec="utf-8"), max_size=20)
places = st.builds(Place, pp=st.integers(0, 4095), tp=st.integers(0, 4095), draft=st.integers(0, 255))

SAID: list[tuple[Any, Any]] = [
    (
        attach.Coming(allocated=True, bytes=7, watermark=3, note="ä"),
        messages.Coming(allocated=True, bytes=7, watermark=3, note="ä"),
    ),
    (
        attach.Ready(arena=ARENA, bytes=7, identity=SHA, digest=XXH, layout_digest=SHA),
        messages.Ready(arena=ARENA, bytes=7, digest=XXH, layout_digest=SHA),
    ),
    (attach.Seed(arena=ARENA), messages.Seed(arena=ARENA)),
    (attach.Writable(arena=ARENA, bytes=7), messages.Writable(arena=ARENA, bytes=7)),
    (attach.Refused(problem=PROBLEM), messages.Refused(problem=PROBLEM)),
    (attach.Agent(node="n1", version="1.2.3"), messages.Agent(node="n1", version="1.2.3")),
]


@pytest.mark.parametrize(("said", "heard"), SAID)
def test_what_an_agent_says_is_heard(said: Any, heard: Any) -> None:
    assert messages.read(said.to_json()) == heard
    assert messages.kind_of(heard) == said.type


def test_every_message_of_an_agent_is_known() -> None:
    kinds = {model.__name__.lower() for model in attach.FromAgent.__origin__.__args__}  # type: ignore[attr-defined]
    assert kinds == {said.type for said, _ in SAID}


@pytest.mark.parametrize("said", [said for said, _ in SAID])
def test_a_field_more_or_less_or_of_another_type_is_no_message(said: Any) -> None:
    fields = json.loads(said.to_json())
    for name in fields:
        for other in ({key: value for key, value in fields.items() if key != name}, {**fields, name: [1]}):
            with pytest.raises(ValueError):  # noqa: PT011 - the channel tells it as a TornFrame
                messages.read(json.dumps(other).encode())
    with pytest.raises(ValueError, match="has"):
        messages.read(json.dumps({**fields, "more": 1}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{}", b'{"type":["seed"]}', b'{"type":"hello"}', b"1e999"])
def test_nonsense_is_no_message(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, or ours
        messages.read(data)


@given(places, st.dictionaries(texts, texts, max_size=4), st.booleans())
def test_a_hello_is_what_the_models_would_write(place: Place, identity: dict[str, str], attached: bool) -> None:
    written = hello(place, identity, attached=attached)
    assert written == attach.Hello(place=place, identity=identity, attached=attached).to_json()


def test_everything_else_that_is_said_is_what_the_models_would_write() -> None:
    place = Place(pp=1, tp=2)
    assert attach.Attached().to_json() == ATTACHED
    assert messages.allocate(5) == attach.Allocate(bytes=5).to_json()
    assert messages.commit() == attach.Commit().to_json()
    assert messages.clear() == attach.Clear().to_json()
    assert messages.clear(place) == attach.Clear(place=place).to_json()
    assert messages.trouble(PROBLEM, place) == attach.Trouble(problem=PROBLEM, place=place).to_json()


@pytest.mark.parametrize(
    "place", [b'{"pp":-1}', b'{"tp":4096}', b'{"draft":256}', b'{"tp":"x"}', b'{"ep":1}', b"[0,0,0]", b"null"]
)
def test_a_place_out_of_bounds_is_refused_by_the_models(place: bytes) -> None:
    with pytest.raises(ValueError, match="place"):
        attach.from_engine.validate_json(b'{"type":"hello","identity":{},"place":' + place + b"}")


def test_asking_for_weights_imports_neither_pydantic_nor_torch_and_little_of_ours() -> None:
    """Each module of ours takes some 0.2 ms to import, while the process waits."""
    code = (
        "import sys, flashboot_agent.api\n"
        "print(*{'pydantic', 'torch', 'argparse', 'asyncio'} & sys.modules.keys())\n"
        "print(*sorted(name.partition('.')[2] for name in sys.modules if name.startswith('flashboot_agent.')))\n"
    )
    env = {"PYTHONPATH": str(AGENT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60, check=True)
    others, ours = done.stdout.splitlines()
    assert others == ""
    assert ours.split() == [
        *("_ahead", "api", "engine", "engine.begun", "engine.collector", "engine.installed", "engine.request"),
        *("wire", "wire.attach_socket", "wire.place"),
    ]
