"""TCP, with TLS or plain, the parent's side: serves any arena of a catalog, one thread for each connection.

What always holds: a connection costs one thread, one lease and one frame of memory, whatever comes over it or does not
come; nobody keeps either longer than the deadlines of ServerSettings allow, nor has more connections than they grant.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections import Counter

from flashboot_agent.core.errors import (
    DeadlineExceeded,
    NotReady,
    ParentUnreachable,
)
from flashboot_agent.transport import address
from flashboot_agent.transport.base import ArenaCatalog, Server
from flashboot_agent.transport.channel import Channel
from flashboot_agent.transport.conversation import Conversation, ServerSettings
from flashboot_agent.transport.tls import CredentialSource, TlsContexts
from flashboot_agent.wire import frames

log = logging.getLogger(__name__)


class TcpServer(Server):
    """Listens as soon as it is made.

    Args:
        host, port: where to listen; port 0 takes a free one.
        advertise: the IP address that peers shall use, where `host` is a wildcard.
        credentials: without them connections are plain: neither encrypted nor authenticated.
    """

    def __init__(
        self,
        catalog: ArenaCatalog,
        host: str,
        port: int,
        *,
        advertise: str | None = None,
        settings: ServerSettings | None = None,
        credentials: CredentialSource | None = None,
    ) -> None:
        self._catalog = catalog
        self._settings = settings or ServerSettings()
        self._tls = TlsContexts(credentials, server=True) if credentials is not None else None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        self.address = address.join(advertise or host, self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._children: dict[Channel, threading.Thread] = {}
        self._addresses: Counter[str] = Counter()
        """Connections of each IP address."""
        self._closing = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name="chunks-accept", daemon=True)
        self._acceptor.start()

    @property
    def connections(self) -> int:
        """Open ones."""
        with self._lock:
            return len(self._children)

    def close(self) -> None:
        """Stop listening and end all connections; waits a few seconds for their threads."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() alone would not
        deadline = time.monotonic() + 5
        self._acceptor.join(5)
        self._listener.close()
        with self._lock:
            children = dict(self._children)
        for channel in children:
            channel.close()
        for channel, thread in children.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.error("the thread that serves %s did not end within 5 s", channel.peer)

    # The accepting thread

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, peer = self._listener.accept()
                channel = Channel(sock.detach(), f"child at {address.join(peer[0], peer[1])}")
            except OSError as error:
                if self._closing.is_set():
                    return
                log.warning("could not accept a connection at %s: %s", self.address, error)
                if error.errno != errno.ECONNABORTED:
                    self._closing.wait(0.1)  # out of descriptors or memory: do not spin, the backlog keeps the child
                continue
            thread = threading.Thread(
                target=self._serve, args=(channel, peer[0]), name=f"chunks-{peer[0]}", daemon=True
            )
            full = self._enter(channel, peer[0], thread)
            if full is None:
                try:
                    thread.start()
                    continue
                except RuntimeError as error:  # the process may have no more threads
                    self._leave(channel, peer[0])
                    full = f"has no thread for one more child ({error})"
            self._turn_away(channel, full)

    def _enter(self, channel: Channel, host: str, thread: threading.Thread) -> str | None:
        """Take a place, or say why there is none."""
        settings = self._settings
        with self._lock:
            if len(self._children) >= settings.connections:
                return f"already serves {settings.connections} connections"
            if self._addresses[host] >= settings.per_address:
                return f"already serves {settings.per_address} connections from {host}"
            self._children[channel] = thread
            self._addresses[host] += 1
        return None

    def _leave(self, channel: Channel, host: str) -> None:
        with self._lock:
            del self._children[channel]
            self._addresses[host] -= 1
            if not self._addresses[host]:
                del self._addresses[host]

    def _turn_away(self, channel: Channel, why: str) -> None:
        """In the accepting thread, so it must not wait: the frame fits a fresh connection's send buffer.

        Under TLS it is closed without a word, since a handshake would wait; the child tries another parent then too."""
        log.warning("turned away %s: %s %s", channel.peer, self.address, why)
        if self._tls is None:
            error = NotReady(f"{self.address} {why}; try another parent, or later")
            with contextlib.suppress(ParentUnreachable, DeadlineExceeded):
                trouble = frames.encode(frames.Trouble(error.problem()))
                channel.send(trouble, silence=0.1, whole=0.1, what="turning it away")
                channel.finish(0.1)
        channel.close()

    # A child's thread

    def _serve(self, channel: Channel, host: str) -> None:
        try:
            Conversation(channel, self._catalog, self._settings, self._tls).run()
        finally:
            channel.close()
            self._leave(channel, host)
