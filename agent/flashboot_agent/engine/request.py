"""What a program asks the agent for, by the public API: which weights, and how long to wait for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.engine.client import AgentClient
from flashboot_agent.engine.preflight import asked
from flashboot_agent.engine.settings import Deadlines, EngineSettings
from flashboot_agent.wire.attach import MAX_MESSAGE, MOUNT_PATH, SOCKET_NAME, Hello
from flashboot_agent.wire.control import Place

SCHEMA: Final = "tensors-1"
"""What the bytes of an arena are, for a program that asks by this API: a dictionary of tensors, as they were given."""

ONLY: Final = Place()
"""The rank of a program that has one."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Which weights, and how long to wait for them. Equal requests get equal bytes.

    Raises BadRequest when a field makes no sense; the message names it.
    """

    model: str
    revision: str
    """Immutable: never the name of two different checkpoints."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """What else decides what the bytes are: dtype, quantisation, the version of the code that makes them, …

    A process whose request differs from that of the one that loaded is refused, and told the field and both values."""
    place: Place = ONLY
    """The rank whose shard this is."""
    socket: str = f"{MOUNT_PATH}/{SOCKET_NAME}"
    connect_seconds: float = Deadlines.connect
    """For an agent that is away."""
    arena_seconds: float = Deadlines.arena
    """For the arena's first byte: another process may be loading a large checkpoint."""
    stall_seconds: float = 60.0
    """How long a clone may stand still once it runs."""

    @classmethod
    def of(
        cls, arguments: Sequence[str], *, identity: Mapping[str, str] | None = None, place: Place | None = None
    ) -> Request:
        """The request that FlashBoot's operator wrote on a pod's command line, among arguments of the program's own.

        Raises BadRequest when it did not.
        """
        found = asked(arguments)
        if found is None:
            raise BadRequest(
                "the command line has no --model-loader-extra-config with a key flashboot; FlashBoot's operator adds "
                "it to the pods of a ModelReplica. In any other pod make the Request from model and revision"
            )
        deadlines, settings = Deadlines.of(), found.settings
        return cls(
            model=settings.model,
            revision=settings.revision,
            identity=identity or {},
            place=place or ONLY,
            socket=settings.socket,
            connect_seconds=deadlines.connect,
            arena_seconds=deadlines.arena,
            stall_seconds=settings.clone_timeout_seconds,
        )

    def __post_init__(self) -> None:
        for name in ("connect_seconds", "arena_seconds"):
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
                raise BadRequest(f"{name} must be a positive number of seconds, not {seconds!r}")
        if not isinstance(self.place, Place):
            raise BadRequest(f"place must be a Place, not {self.place!r}")
        try:
            self._settings()
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            name = "stall_seconds" if name == "clone_timeout_seconds" else name
            raise BadRequest(f"{name}: {first['msg']}") from error
        for key, value in self.identity.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise BadRequest(f"identity: {key!r}: {value!r}; names and values are strings")
            if key in self._own():
                raise BadRequest(f"identity: {key!r} is filled in by FlashBoot; choose another name")
        try:
            size = len(Hello(place=self.place, identity=self.full_identity()).to_json())
        except ValueError as error:  # half a surrogate pair, which no message carries
            raise BadRequest(f"identity: a name or value is no text that UTF-8 can carry: {error}") from error
        if size > MAX_MESSAGE:
            raise BadRequest(
                f"identity: {size} bytes with everything, at most {MAX_MESSAGE} are carried; hash long values"
            )

    def full_identity(self) -> dict[str, str]:
        """The fields that are compared, with those that FlashBoot adds."""
        return {**self._own(), **self.identity}

    def _own(self) -> dict[str, str]:
        import torch

        return {
            "schema": SCHEMA,
            "model": self.model,
            "revision": self.revision,
            "place": str(self.place),
            "torch": str(torch.__version__),
            "byteorder": sys.byteorder,
        }

    def _settings(self) -> EngineSettings:
        return EngineSettings(
            model=self.model, revision=self.revision, socket=self.socket, clone_timeout_seconds=self.stall_seconds
        )

    def client(self) -> AgentClient:
        """A conversation with the agent, not begun yet."""
        deadlines = Deadlines(connect=self.connect_seconds, arena=self.arena_seconds)
        return AgentClient(self._settings(), deadlines, self.place, self.full_identity())
