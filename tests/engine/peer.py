"""The agent's side of wire/attach.py in a few threads, with real sockets and real memfds, for the plug-in's tests.

It keeps one arena. The first engine to say hello seeds it; later ones get it if their identity is equal. Tests bend it:
`hold` keeps engines in *coming*, `drop_all` cuts every connection, `close` takes the socket away like a stopped agent.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from flashboot_agent.core.errors import CommitRefused, FlashBootError
from flashboot_agent.core.identity import digest_of, require_equal
from flashboot_agent.wire import attach as wire
from flashboot_agent.wire.base import WireModel
from flashboot_agent.wire.layout import Layout

ARENA = "arena-" + "0" * 32
DIGEST = "xxh3:" + "0" * 16
F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE = 1033, 2, 4, 8


class Peer:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[object] = []
        """Every message that came, in order."""
        self.changed = threading.Condition()
        self.hold: wire.Coming | None = None
        self.refuse: FlashBootError | None = None
        self.memory: int | None = None
        self.nbytes = 0
        self.layout: bytes | None = None
        self.identity: dict[str, str] = {}
        self.commits_to_lose = 0
        self._connections: list[socket.socket] = []
        self.open()

    # -- what tests do ---------------------------------------------------------------------------------------

    def open(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        self.path.unlink()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept; closing alone would not
        self.drop_all()

    def drop_all(self) -> None:
        for connection in self._connections:
            with suppress(OSError):  # that engine is gone already
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def wait_for(self, kind: type, count: int = 1, seconds: float = 20) -> None:
        """Raises AssertionError unless `count` messages of the kind came in time."""
        with self.changed:
            came = self.changed.wait_for(lambda: self.count(kind) >= count, seconds)
        assert came, f"{self.count(kind)} of {count} {kind.__name__} within {seconds} s; came: {self.seen}"

    def count(self, kind: type) -> int:
        return sum(isinstance(message, kind) for message in self.seen)

    def forget(self) -> None:
        """Lose the arena."""
        if self.memory is not None:
            os.close(self.memory)
        self.memory, self.layout, self.identity = None, None, {}
        self.seen.clear()

    # -- what an agent does ----------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                listener.close()
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        identity: dict[str, str] = {}
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(connection, wire.MAX_MESSAGE, 4)
            except OSError:
                return
            if not data:
                return
            message = wire.from_engine.validate_json(data)
            with self.changed:
                self.seen.append(message)
                self.changed.notify_all()
            try:
                if isinstance(message, wire.Hello):
                    identity = message.identity
                    self._offer(connection, identity, message.attached)
                elif isinstance(message, wire.Allocate):
                    self._allocate(connection, message.bytes)
                elif isinstance(message, wire.Commit):
                    self._commit(connection, descriptors, identity)
            except FlashBootError as error:
                self._send(connection, wire.Refused(problem=error.problem()))
            except OSError:
                return
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _offer(self, connection: socket.socket, identity: dict[str, str], attached: bool) -> None:
        if self.refuse is not None:
            raise self.refuse
        while self.hold is not None:
            self._send(connection, self.hold)
            time.sleep(0.05)
        if self.layout is None:
            self._send(connection, wire.Seed(arena=ARENA))
            return
        require_equal(identity, self.identity, whose="arena")
        self._send_ready(connection)

    def _allocate(self, connection: socket.socket, nbytes: int) -> None:
        if self.memory is not None:
            os.close(self.memory)
        self.memory, self.nbytes = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), nbytes
        os.ftruncate(self.memory, nbytes)
        self._send(connection, wire.Writable(arena=ARENA, bytes=nbytes), [self.memory])

    def _commit(self, connection: socket.socket, descriptors: list[int], identity: dict[str, str]) -> None:
        if self.commits_to_lose:
            self.commits_to_lose -= 1
            connection.shutdown(socket.SHUT_RDWR)
            return
        document = os.pread(descriptors[0], wire.MAX_LAYOUT, 0)
        layout = Layout.model_validate_json(document)
        require_equal(identity, layout.identity, whose="layout")
        assert self.memory is not None
        assert layout.arena_bytes == self.nbytes
        try:
            fcntl.fcntl(self.memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)
        except OSError as error:
            raise CommitRefused(f"the engine still maps the arena for writing: {error}") from error
        self.layout, self.identity = document, layout.identity
        self._send_ready(connection)

    def _send_ready(self, connection: socket.socket) -> None:
        assert self.layout is not None
        arena = os.open(f"/proc/self/fd/{self.memory}", os.O_RDONLY | os.O_CLOEXEC)
        document = os.memfd_create("layout", os.MFD_CLOEXEC)
        os.write(document, self.layout)
        ready = wire.Ready(arena=ARENA, bytes=self.nbytes, identity=digest_of(self.identity), digest=DIGEST)
        self._send(connection, ready, [arena, document])
        os.close(arena)
        os.close(document)

    def _send(self, connection: socket.socket, message: WireModel, descriptors: list[int] | None = None) -> None:
        socket.send_fds(connection, [message.to_json()], descriptors or [])
