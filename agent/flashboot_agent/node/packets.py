"""SOCK_SEQPACKET on the event loop: one packet with descriptors in, one out. asyncio has no transport for it."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from flashboot_agent.core.errors import BadRequest, DeadlineExceeded
from flashboot_agent.wire.attach import MAX_MESSAGE

MAX_FDS: Final = 8


@dataclass
class Packet:
    """`fds` belong to the receiver."""

    data: bytes
    fds: list[int] = field(default_factory=list)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


class PacketSocket:
    """A connected, non-blocking socket of the running loop."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock

    async def receive(self) -> Packet | None:
        """The next packet, or None at the end. Raises BadRequest for one that was cut off, OSError."""
        while True:
            try:
                data, fds, flags, _ = socket.recv_fds(self._sock, MAX_MESSAGE, MAX_FDS)
            except BlockingIOError:
                await self._ready(write=False)
                continue
            packet = Packet(data, fds)
            for fd in fds:
                os.set_inheritable(fd, False)
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                packet.close()
                raise BadRequest(f"a packet was cut off: at most {MAX_MESSAGE} bytes and {MAX_FDS} descriptors")
            if not data:
                packet.close()
                return None
            return packet

    async def send(self, data: bytes, fds: Sequence[int], seconds: float) -> None:
        """Raises DeadlineExceeded when the peer takes nothing for `seconds`, OSError when it is gone."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while True:
            try:
                self._sock.sendmsg([data], ancillary)
                return
            except BlockingIOError:
                try:
                    await asyncio.wait_for(self._ready(write=True), seconds)
                except TimeoutError:
                    raise DeadlineExceeded(f"the peer took no message for {seconds:.0f} s") from None

    def close(self) -> None:
        self._sock.close()

    async def _ready(self, *, write: bool) -> None:
        loop = asyncio.get_running_loop()
        fd = self._sock.fileno()
        future: asyncio.Future[None] = loop.create_future()
        add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        add(fd, wake)
        try:
            await future
        finally:
            remove(fd)
