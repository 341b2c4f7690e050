"""The agent's side of holder/protocol.py: blocking calls with deadlines, a connection each, usable from any thread."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from dataclasses import dataclass, fields
from typing import Final

from flashboot_agent.core.errors import (
    BadRequest,
    FlashBootError,
    InsufficientMemory,
    NotReady,
    UnknownArena,
)
from flashboot_agent.holder import protocol
from flashboot_agent.holder.protocol import Message
from flashboot_agent.memory.host import Kept
from flashboot_agent.memory.memfd import Pages, close_all

DEADLINE: Final = 10.0
CREATE_BYTES_PER_SECOND: Final = 100 << 20
"""The slowest rate at which a busy node is granted to make pages present; it sets the deadline of a create."""


class ArenaExists(BadRequest):
    """The holder has an arena of this name."""


@dataclass(frozen=True)
class HolderStats:
    instance: str
    budget_bytes: int
    used_bytes: int
    arenas: int


_ERRORS: Final[dict[str, type[FlashBootError]]] = {
    protocol.BAD_REQUEST: BadRequest,
    protocol.UNKNOWN: UnknownArena,
    protocol.EXISTS: ArenaExists,
    protocol.NO_MEMORY: InsufficientMemory,
}


class HolderClient:
    """Raises NotReady when the holder can't be reached or does not answer in time, with the path in the message."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self, arena: str, nbytes: int, pages: Pages) -> Kept:
        deadline = DEADLINE + nbytes / CREATE_BYTES_PER_SECOND
        request: Message = {"op": "create", "arena": arena, "bytes": nbytes, "pages": pages}
        return self._kept(*self._call(request, deadline=deadline))

    def get(self, arena: str) -> Kept | None:
        try:
            return self._kept(*self._call({"op": "get", "arena": arena}))
        except UnknownArena:
            return None

    def put(self, arena: str, nbytes: int, data: int, record: int) -> None:
        """Deposit duplicates; does nothing when the holder has the arena after all."""
        with contextlib.suppress(ArenaExists):
            self._call({"op": "put", "arena": arena, "bytes": nbytes}, fds=[data, record])

    def drop(self, arena: str) -> None:
        self._call({"op": "drop", "arena": arena})

    def inventory(self) -> dict[str, int]:
        """Arena → bytes of all that the holder keeps."""
        found: dict[str, int] = {}
        more = True
        while more:
            answer, _ = self._call({"op": "list", "after": max(found, default="")})
            found.update(answer["arenas"])
            more = answer["more"]
        return found

    def stats(self) -> HolderStats:
        answer, _ = self._call({"op": "stats"})
        return HolderStats(**{field.name: answer[field.name] for field in fields(HolderStats)})  # a newer one says more

    @staticmethod
    def _kept(answer: Message, fds: list[int]) -> Kept:
        return Kept(data=fds[0], record=fds[1], nbytes=answer["bytes"])

    def _call(
        self, request: Message, *, fds: list[int] | None = None, deadline: float = DEADLINE
    ) -> tuple[Message, list[int]]:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(deadline)
            try:
                sock.connect(self.path)
                sock.sendmsg([json.dumps(request).encode()], ancillary)
                data, received, _, _ = socket.recv_fds(sock, protocol.MAX_PACKET, 4)
            except TimeoutError as error:
                raise NotReady(
                    f"the holder at {self.path} gave no answer to {request['op']} in {deadline:.0f} s"
                ) from error
            except OSError as error:
                raise NotReady(f"the holder at {self.path} can't be reached: {error.strerror or error}") from error
        for fd in received:
            os.set_inheritable(fd, False)
        if not data:
            close_all(received)
            raise NotReady(f"the holder at {self.path} ended during {request['op']}")
        answer: Message = json.loads(data)
        if "error" in answer:
            close_all(received)
            raise _ERRORS.get(answer["error"], FlashBootError)(answer["message"])
        wanted = 2 if request["op"] in ("create", "get") else 0
        if len(received) != wanted:
            close_all(received)
            raise FlashBootError(f"the holder sent {len(received)} descriptors for {request['op']}; is it out of them?")
        return answer, received
