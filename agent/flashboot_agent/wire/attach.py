"""Engine plug-in ↔ agent, over the pod's own unix socket (`/flashboot/agent.sock` in the pod).

SOCK_SEQPACKET, one JSON message per packet, at most MAX_MESSAGE bytes; documents that may be larger (layouts) and
memory travel as file descriptors beside the message. The per-pod socket is the credential.

    plug-in                                   agent
    hello                                →
                                         ←    coming* (about every half second)   the arena is on its way
                                         ←    ready + [arena fd read-only, layout fd]           done
                                         ←    seed                                this pod loads the checkpoint
    allocate                             →
                                         ←    writable + [arena fd read-write]
    commit + [layout fd]                 →    refused while the plug-in still maps the arena for writing
                                         ←    ready + [arena fd read-only, layout fd]
    attached                             →
    problem | clear                      →    at any time: a trouble for status, or its end
                                         ←    refused                             typed; the plug-in decides, loudly

The connection stays open for the engine's life; the agent learns of the engine's death by its end. After a restart of
the agent the plug-in connects again and says hello once more with `attached: true`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from flashboot_agent.wire.base import ArenaId, Digest, WireModel
from flashboot_agent.wire.control import Place, Problem

SOCKET_NAME: Final = "agent.sock"
MOUNT_PATH: Final = "/flashboot"
MAX_MESSAGE: Final = 65536
"""Bytes of one packet; Linux refuses packets above the socket's send buffer (212,992 by default)."""

MAX_LAYOUT: Final = 64 << 20
"""Bytes of a layout document; a hundred thousand tensors fit several times."""


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


class Clear(WireModel):
    type: Literal["clear"] = "clear"


class Coming(WireModel):
    type: Literal["coming"] = "coming"
    allocated: bool
    """The arena's memory is reserved at full size (the memory-sampling rule waits for this)."""
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


class Seed(WireModel):
    type: Literal["seed"] = "seed"
    arena: ArenaId


class Writable(WireModel):
    """Map the whole file (fstat's size), which is `bytes` rounded up to whole huge pages where the node has them."""

    type: Literal["writable"] = "writable"
    arena: ArenaId
    bytes: int


class Refused(WireModel):
    type: Literal["refused"] = "refused"
    problem: Problem


FromEngine = Annotated[Hello | Allocate | Commit | Attached | Trouble | Clear, Field(discriminator="type")]
FromAgent = Annotated[Coming | Ready | Seed | Writable | Refused, Field(discriminator="type")]

from_engine: TypeAdapter[FromEngine] = TypeAdapter(FromEngine)
from_agent: TypeAdapter[FromAgent] = TypeAdapter(FromAgent)
