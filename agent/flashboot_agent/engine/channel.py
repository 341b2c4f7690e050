"""One connection to the agent: packets with file descriptors, nothing of the protocol's order.

Every operation has a timeout. A descriptor that arrives is either handed to the caller, who owns it, or closed here. An
agent that is away, or that goes away, is an OSError; a packet that makes no sense is a TornFrame.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Final

from flashboot_agent.core.errors import TornFrame
from flashboot_agent.engine.messages import FromAgent, read
from flashboot_agent.memory.memfd import close_all
from flashboot_agent.wire.attach_socket import MAX_MESSAGE

MAX_DESCRIPTORS: Final = 4
SEND_SECONDS: Final = 10.0


class Channel:
    """A connected socket. Used by one thread at a time; `close` may come from any."""

    def __init__(self, path: str, timeout: float) -> None:
        """Connect. Raises OSError (ENOENT, ECONNREFUSED, timeout …) while nobody serves `path`."""
        self.path = path
        self._kept: tuple[bytes, list[int]] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise

    @classmethod
    def over(cls, path: str, descriptor: int, kept: tuple[bytes, list[int]] | None = None) -> Channel:
        """Take over a connected socket. `kept`: a packet and its descriptors that were received on it already."""
        channel = cls.__new__(cls)
        channel.path = path
        channel._kept = kept
        channel._socket = socket.socket(fileno=descriptor)
        return channel

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Raises OSError when the agent is gone or takes nothing for SEND_SECONDS."""
        if len(message) > MAX_MESSAGE:
            raise ValueError(f"a message has {len(message)} bytes, one packet carries {MAX_MESSAGE}")
        self._socket.settimeout(SEND_SECONDS)
        socket.send_fds(self._socket, [message], list(descriptors))

    def receive(self, timeout: float) -> tuple[FromAgent, list[int]]:
        """The next message and its descriptors.

        Raises:
            TimeoutError: nothing came within `timeout` seconds.
            ConnectionError: the agent closed the connection.
            TornFrame: the packet is no message of this protocol.
        """
        if self._kept is not None:
            (data, descriptors), flags, self._kept = self._kept, 0, None
        else:
            self._socket.settimeout(timeout)
            data, descriptors, flags, _ = socket.recv_fds(
                self._socket, MAX_MESSAGE + 1, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        try:
            if not data:
                raise ConnectionResetError(f"the agent closed {self.path}")
            if len(data) > MAX_MESSAGE or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise TornFrame(f"{self.path}: a packet of more than {MAX_MESSAGE} bytes or {MAX_DESCRIPTORS} files")
            try:
                message = read(data)
            except ValueError as error:
                raise TornFrame(f"{self.path}: not a message of protocol 1: {error}"[:1000]) from error
        except BaseException:  # whatever it was: the caller does not get the descriptors
            close_all(descriptors)
            raise
        return message, descriptors

    def close(self) -> None:
        """Idempotent; wakes a `receive` in another thread."""
        with contextlib.suppress(OSError):  # not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        kept, self._kept = self._kept, None
        if kept is not None:
            close_all(kept[1])
