"""The attach protocol as an engine speaks it that attaches without trouble: wire/attach.py without pydantic.

Making pydantic's models takes longer than attaching to 20,000 tensors does; even six NamedTuples take a good part of
that. So what every attach says and hears is written and read here by hand, and what is rare (trouble, a refusal,
startup times) goes through the models, which are imported then. tests/unit/test_engine_messages.py holds the two to
each other.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from flashboot_agent.wire.attach_socket import PROTOCOL, message
from flashboot_agent.wire.place import Place

if TYPE_CHECKING:
    from flashboot_agent.wire.problem import Problem


def allocate(nbytes: int) -> bytes:
    return message(type="allocate", bytes=nbytes)


def commit() -> bytes:
    return message(type="commit")


def trouble(problem: Problem, place: Place | None = None) -> bytes:
    from flashboot_agent.wire.attach import Trouble

    return Trouble(problem=problem, place=place).to_json()


def clear(place: Place | None = None) -> bytes:
    return message(type="clear", place=place.fields() if place is not None else None)


class Message(SimpleNamespace):
    """What an agent said, the fields by their names; `read` makes them. Equal when all of them are."""


class Coming(Message):
    allocated: bool
    bytes: int
    watermark: int
    note: str


class Ready(Message):
    arena: str
    bytes: int
    digest: str
    layout_digest: str


class Seed(Message):
    arena: str


class Writable(Message):
    arena: str
    bytes: int


class Refused(Message):
    problem: Problem


class Agent(Message):
    node: str
    version: str


FromAgent = Coming | Ready | Seed | Writable | Refused | Agent

_SHAPES: Final[dict[str, dict[str, type]]] = {
    "coming": {"allocated": bool, "bytes": int, "watermark": int, "note": str},
    "ready": {"arena": str, "bytes": int, "identity": str, "digest": str, "layoutDigest": str},
    "seed": {"arena": str},
    "writable": {"arena": str, "bytes": int},
    "refused": {"problem": dict},
    "agent": {"protocol": int, "node": str, "version": str},
}


def read(data: bytes) -> FromAgent:
    """Raises ValueError for what is no message of an agent, or has a field more or less than it must."""
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError("no object")
    kind = fields.pop("type", None)
    shape = _SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise ValueError(f"its type is {kind!r:.100}")
    if {name: type(value) for name, value in fields.items()} != shape:
        raise ValueError(f"{kind} has {sorted(fields)!r:.500}, or one of them is of another type")
    match kind:
        case "coming":
            return Coming(**fields)
        case "ready":
            return Ready(
                arena=fields["arena"],
                bytes=fields["bytes"],
                digest=fields["digest"],
                layout_digest=fields["layoutDigest"],
            )
        case "seed":
            return Seed(**fields)
        case "writable":
            return Writable(**fields)
        case "agent":
            if fields["protocol"] != PROTOCOL:
                raise ValueError(f"it speaks protocol {fields['protocol']}")
            return Agent(node=fields["node"], version=fields["version"])
    from flashboot_agent.wire.problem import Problem

    return Refused(problem=Problem.model_validate(fields["problem"]))  # its ValidationError is a ValueError


def kind_of(said: FromAgent) -> str:
    return type(said).__name__.lower()
