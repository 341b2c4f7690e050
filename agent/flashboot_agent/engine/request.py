"""What a program asks the agent for, by the public API: which weights, and how long to wait for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from flashboot_agent.engine.installed import torch_version
from flashboot_agent.wire.attach_socket import MAX_MESSAGE, MOUNT_PATH, SOCKET_NAME, hello
from flashboot_agent.wire.place import MOST, Place

if TYPE_CHECKING:
    from flashboot_agent.core.errors import BadRequest
    from flashboot_agent.engine.client import AgentClient

SCHEMA: Final = "tensors-1"
"""What the bytes of an arena are, for a program that asks by this API: a dictionary of tensors, as they were given."""

ONLY: Final = Place()
"""The rank of a program that has one."""

MOST_PATH: Final = 107
"""Bytes of a socket's path; Linux allows no more."""

CONNECT_SECONDS: Final = 600.0
"""For an agent that is away."""
ARENA_SECONDS: Final = 1800.0
"""For an arena's first byte: another process may be loading a large checkpoint."""


class Request:
    """Which weights, and how long to wait for them. Equal requests get equal bytes.

    No dataclass, and nothing of pydantic: making either takes a good part of the time that an attach may take."""

    def __init__(
        self,
        *,
        model: str,
        revision: str,
        identity: Mapping[str, str] | None = None,
        place: Place = ONLY,
        socket: str = f"{MOUNT_PATH}/{SOCKET_NAME}",
        connect_seconds: float = CONNECT_SECONDS,
        arena_seconds: float = ARENA_SECONDS,
        stall_seconds: float = 60.0,
    ) -> None:
        """
        Args:
            model: what the bytes are of.
            revision: immutable; never the name of two different checkpoints.
            identity: what else decides what the bytes are: dtype, quantisation, the version of the code that makes
                them, … A process whose request differs from that of the one that loaded is refused, and told the field
                and both values.
            place: the rank whose shard this is.
            socket: of the pod.
            connect_seconds: for an agent that is away.
            arena_seconds: for the arena's first byte: another process may be loading a large checkpoint.
            stall_seconds: how long a clone may stand still once it runs.

        Raises BadRequest when one makes no sense; the message names it.
        """
        self.model = model
        self.revision = revision
        self.identity = dict(identity or {})
        self.place = place
        self.socket = socket
        self.connect_seconds = connect_seconds
        self.arena_seconds = arena_seconds
        self.stall_seconds = stall_seconds
        self._check()

    @classmethod
    def of(
        cls, arguments: Sequence[str], *, identity: Mapping[str, str] | None = None, place: Place | None = None
    ) -> Request:
        """The request that FlashBoot's operator wrote on a pod's command line, among arguments of the program's own.

        Raises BadRequest when it did not.
        """
        from flashboot_agent.engine.deadlines import Deadlines
        from flashboot_agent.engine.preflight import asked

        found = asked(arguments)
        if found is None:
            raise _bad_request(
                "the command line has no --model-loader-extra-config with a key flashboot; FlashBoot's operator adds "
                "it to the pods of a ModelReplica. In any other pod make the Request from model and revision"
            )
        deadlines, settings = Deadlines.of(), found.settings
        return cls(
            model=settings.model,
            revision=settings.revision,
            identity=identity,
            place=place or ONLY,
            socket=settings.socket,
            connect_seconds=deadlines.connect,
            arena_seconds=deadlines.arena,
            stall_seconds=settings.clone_timeout_seconds,
        )

    def full_identity(self) -> dict[str, str]:
        """The fields that are compared, with those that FlashBoot adds."""
        return {**self._own(), **self.identity}

    def client(self) -> AgentClient:
        """A conversation with the agent, not begun yet."""
        from flashboot_agent.engine.client import AgentClient
        from flashboot_agent.engine.deadlines import Deadlines

        deadlines = Deadlines(connect=self.connect_seconds, arena=self.arena_seconds)
        return AgentClient(self.socket, deadlines, self.stall_seconds, self.place, self.full_identity())

    def _own(self) -> dict[str, str]:
        return {
            "schema": SCHEMA,
            "model": self.model,
            "revision": self.revision,
            "place": str(self.place),
            "torch": torch_version(),
            "byteorder": sys.byteorder,
        }

    def _check(self) -> None:
        for name, text in (("model", self.model), ("revision", self.revision), ("socket", self.socket)):
            if not isinstance(text, str) or not text:
                raise _bad_request(f"{name}: must be some text, not {text!r}")
        if len(self.socket.encode("utf-8", "surrogateescape")) > MOST_PATH:
            raise _bad_request(f"socket: a path of at most {MOST_PATH} bytes, not {self.socket!r}")
        for name in ("connect_seconds", "arena_seconds", "stall_seconds"):
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
                raise _bad_request(f"{name} must be a positive number of seconds, not {seconds!r}")
        place = self.place
        if not isinstance(place, Place) or not all(
            type(number) is int and 0 <= number <= most for number, most in zip(place, MOST.values(), strict=True)
        ):
            raise _bad_request(f"place must be a Place, its numbers within {MOST}, not {place!r}")
        own = self._own()
        for key, value in self.identity.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise _bad_request(f"identity: {key!r}: {value!r}; names and values are strings")
            if key in own:
                raise _bad_request(f"identity: {key!r} is filled in by FlashBoot; choose another name")
        try:
            size = len(hello(self.place, self.full_identity(), attached=False))
        except ValueError as error:  # half a surrogate pair, which no message carries
            raise _bad_request(f"identity: a name or value is no text that UTF-8 can carry: {error}") from error
        if size > MAX_MESSAGE:
            raise _bad_request(
                f"identity: {size} bytes with everything, at most {MAX_MESSAGE} are carried; hash long values"
            )


def _bad_request(message: str) -> BadRequest:
    from flashboot_agent.core.errors import BadRequest  # late: most requests are good

    return BadRequest(message)
