"""Engine plug-in ↔ agent, over the pod's own unix socket (`/flashboot/agent.sock` in the pod).

SOCK_SEQPACKET, one JSON message per packet, at most MAX_MESSAGE bytes; documents that may be larger (layouts) and
memory travel as file descriptors beside the message. The per-pod socket is the credential.

    plug-in                                   agent
    hello                                →
                                         ←    coming* (about every half second)   the arena is on its way
                                         ←    ready + [arena fd read-only, layout fd]           done
                                         ←    seed                                this pod loads the checkpoint
    allocate                             →
                                         ←    writable + [arena fd read-write, arena fd read-only]
    commit + [layout fd]                 →    refused while the plug-in still maps the arena for writing
                                         ←    ready + [arena fd read-only, layout fd]
    attached                             →
    problem | clear                      →    at any time: a trouble for status, or its end
    started                              →    from the process that listens for requests, instead of a hello
    ask                                  →    at any time, without a hello: who is there?
                                         ←    agent
                                         ←    refused                             typed; the plug-in decides, loudly

What an engine may rely on, with every arena that it is handed as ready: nobody changes its size, and nobody its bytes
as long as the pod is there. Of an immutable arena seals of the kernel hold that; of an updatable one the agent, which
gives no descriptor for writing after the commit and updates no arena that a pod has (docs/design/0025). So a seed
unmaps and closes what it wrote through before it commits.

The connection stays open for the engine's life; the agent learns of the engine's death by its end. After a restart of
the agent the plug-in connects again and says hello once more with `attached: true`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from flashboot_agent.wire.attach_socket import MAX_MESSAGE as MAX_MESSAGE  # noqa: PLC0414 - a part of the protocol
from flashboot_agent.wire.attach_socket import MOUNT_PATH as MOUNT_PATH  # noqa: PLC0414
from flashboot_agent.wire.attach_socket import PROTOCOL as PROTOCOL  # noqa: PLC0414
from flashboot_agent.wire.attach_socket import SOCKET_NAME as SOCKET_NAME  # noqa: PLC0414
from flashboot_agent.wire.base import ArenaId, Digest, WireModel
from flashboot_agent.wire.observed_pod import StartupTimes
from flashboot_agent.wire.place import Place
from flashboot_agent.wire.problem import Problem


class Hello(WireModel):
    type: Literal["hello"] = "hello"
    protocol: Literal[1] = 1
    place: Place = Place()
    identity: dict[str, str]
    """The full identity, field by field, values as strings; at most MAX_MESSAGE with everything."""
    attached: bool = False
    """True when tensors of this engine already lie in the arena (a reconnect)."""


class Allocate(WireModel):
    type: Literal["allocate"] = "allocate"
    bytes: Annotated[int, Field(gt=0, le=1 << 50)]


class Commit(WireModel):
    type: Literal["commit"] = "commit"


class Attached(WireModel):
    type: Literal["attached"] = "attached"


class Trouble(WireModel):
    type: Literal["problem"] = "problem"
    problem: Problem
    place: Place | None = None
    """Whose trouble it is; None: of the whole engine, before it has ranks."""


class Clear(WireModel):
    type: Literal["clear"] = "clear"
    place: Place | None = None
    """Whose trouble ended."""


class Started(WireModel):
    """The engine answers requests; how long its phases took. Said on a connection of its own, and again to each new
    agent."""

    type: Literal["started"] = "started"
    times: StartupTimes


class Ask(WireModel):
    """Who is there? For `flashboot doctor`; the agent's idea of the pod stays as it is."""

    type: Literal["ask"] = "ask"


class Coming(WireModel):
    type: Literal["coming"] = "coming"
    allocated: bool
    """The memory of the arenas of all ranks of this replica is reserved at full size, as far as agent and operator
    know, but for those that are seeded (the memory-sampling rule waits for this)."""
    bytes: int
    watermark: int
    note: str
    """What it waits for, for the engine's log."""


class Ready(WireModel):
    type: Literal["ready"] = "ready"
    arena: ArenaId
    bytes: int
    identity: Digest
    digest: Digest
    layout_digest: Digest
    """Of the layout document beside the message; the plug-in compares it before it binds."""


class Seed(WireModel):
    type: Literal["seed"] = "seed"
    arena: ArenaId


class Writable(WireModel):
    """Map the whole file (fstat's size), which is `bytes` rounded up to whole huge pages where the node has them.

    A mapping of the read-only descriptor forbids no seal. An engine without rights could not make one of the other."""

    type: Literal["writable"] = "writable"
    arena: ArenaId
    bytes: int


class Refused(WireModel):
    type: Literal["refused"] = "refused"
    problem: Problem


class Agent(WireModel):
    type: Literal["agent"] = "agent"
    protocol: Literal[1] = PROTOCOL
    node: str
    version: str


FromEngine = Annotated[
    Hello | Allocate | Commit | Attached | Trouble | Clear | Started | Ask, Field(discriminator="type")
]
FromAgent = Annotated[Coming | Ready | Seed | Writable | Refused | Agent, Field(discriminator="type")]

from_engine: TypeAdapter[FromEngine] = TypeAdapter(FromEngine)
from_agent: TypeAdapter[FromAgent] = TypeAdapter(FromAgent)
