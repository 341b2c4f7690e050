"""The line to one plug-in: typed messages out, packets in.

Packets are read ahead by a task of its own, so that a wait for other things ends by a packet, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Literal

from flashboot_agent.core.errors import ArenaUpdating, BadRequest, DeadlineExceeded, FlashBootError
from flashboot_agent.logs import Log
from flashboot_agent.memory import memfd
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.packets import Packet, PacketSocket
from flashboot_agent.wire import attach
from flashboot_agent.wire.base import WireModel

log = Log(__name__)

MOST: Final = 16
"""Packets that nobody looked at yet; more stay in the socket."""


class Line:
    """From `start` to `close`, which closes what nobody took."""

    def __init__(self, socket: PacketSocket, pod: str, seconds: float) -> None:
        """pod: its UID, for the log. seconds: how long a plug-in may take no message."""
        self._socket = socket
        self._pod = pod
        self._seconds = seconds
        self._packets: asyncio.Queue[Packet | BadRequest | Literal["end"]] = asyncio.Queue(maxsize=MOST)
        self._reader: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._reader = asyncio.create_task(self._read())

    def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        while not self._packets.empty():
            if isinstance(packet := self._packets.get_nowait(), Packet):
                packet.close()
        self._socket.close()

    async def send(self, message: WireModel, fds: Sequence[int] = ()) -> None:
        """Raises OSError, DeadlineExceeded."""
        await self._socket.send(message.to_json(), fds, self._seconds)

    async def refuse(self, error: FlashBootError) -> None:
        log.warning("refused", pod=self._pod, reason=error.reason, why=str(error))
        try:
            await self.send(attach.Refused(problem=error.problem()))
        except (OSError, DeadlineExceeded) as gone:
            log.info("plug-in gone", pod=self._pod, why=str(gone))

    async def hand_over(self, arena: Arena) -> None:
        """A sealed arena and its layout. Raises OSError, DeadlineExceeded, ArenaUpdating."""
        record = arena.record
        if record.state != "sealed":
            raise ArenaUpdating(f"{arena.name} is {record.state}; ask again")
        assert record.identity is not None
        assert record.digest is not None
        assert record.layout_digest is not None
        fds: list[int] = []
        try:
            fds.append(arena.export(writable=False))
            fds.append(arena.export_layout())
            message = attach.Ready(
                arena=arena.name,
                bytes=arena.nbytes,
                identity=record.identity,
                digest=record.digest,
                layout_digest=record.layout_digest,
            )
            await self.send(message, fds)
        finally:
            memfd.close_all(fds)

    async def next(
        self, seconds: float | None, news: Coroutine[Any, Any, None] | None = None
    ) -> Packet | Literal["end"] | None:
        """The next packet, `end` when the peer is gone; None after `seconds`, or when `news` ends before.

        Raises BadRequest for a packet that makes no sense; nothing comes after it."""
        get = asyncio.create_task(self._packets.get())
        waits: set[asyncio.Task[Any]] = {get}
        if news is not None:
            waits.add(asyncio.create_task(news))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not get.done():
                return None
            packet = get.result()
            if isinstance(packet, BadRequest):
                raise packet
            return packet
        finally:
            for task in waits:
                task.cancel()

    async def _read(self) -> None:
        while True:
            try:
                packet: Packet | BadRequest | Literal["end"] = await self._socket.receive() or "end"
            except BadRequest as error:
                packet = error
            except OSError:
                packet = "end"
            await self._packets.put(packet)
            if not isinstance(packet, Packet):
                return
