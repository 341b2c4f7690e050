"""The agent's side of wire/attach.py in a few threads, with real sockets and real memfds, for the plug-in's tests.

It keeps one arena per rank. The first engine of a rank to say hello seeds it; later ones get it if their identity is
equal. Tests bend it: `hold` keeps engines in *coming*, `late` says that ranks have no memory yet, `drop_all` cuts every
connection, `close` takes the socket away like a stopped agent.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from flashboot_agent.core.errors import CommitRefused, FlashBootError
from flashboot_agent.core.identity import digest_of, document_digest, require_equal
from flashboot_agent.version import own_version
from flashboot_agent.wire import attach as wire
from flashboot_agent.wire.base import WireModel
from flashboot_agent.wire.layout import MAX_LAYOUT, Layout
from flashboot_agent.wire.place import Place

ARENA = "arena-" + "0" * 32
"""Of rank tp0."""
DIGEST = "xxh3:" + "0" * 16
F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE = 1033, 2, 4, 8


@dataclass
class Arena:
    """Of one rank."""

    name: str
    memory: int | None = None
    nbytes: int = 0
    layout: bytes | None = None
    identity: dict[str, str] = field(default_factory=dict)


class Peer:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[object] = []
        """Every message that came, in order."""
        self.changed = threading.Condition()
        self.hold: wire.Coming | None = None
        self.late: set[Place] = set()
        """Ranks without memory; as an agent does, it then lets no rank of the pod measure."""
        self.refuse: FlashBootError | None = None
        self.arenas: dict[Place, Arena] = {}
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
        """Lose all arenas."""
        for arena in self.arenas.values():
            if arena.memory is not None:
                os.close(arena.memory)
        self.arenas.clear()
        self.seen.clear()

    def arena(self, place: Place) -> Arena:
        name = ARENA if place == Place() else "arena-" + str(place).encode().hex().rjust(32, "0")
        return self.arenas.setdefault(place, Arena(name))

    @property
    def nbytes(self) -> int:
        """Of the only rank's arena."""
        return self.arena(Place()).nbytes

    @property
    def layout(self) -> bytes | None:
        """Of the only rank's arena."""
        return self.arena(Place()).layout

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
        hello: wire.Hello | None = None
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
                    hello = message
                    self._offer(connection, hello)
                elif isinstance(message, wire.Ask):
                    self._send(connection, wire.Agent(node="peer", version=own_version()))
                elif isinstance(message, wire.Allocate) and hello is not None:
                    self._allocate(connection, self.arena(hello.place), message.bytes)
                elif isinstance(message, wire.Commit) and hello is not None:
                    self._commit(connection, descriptors, hello)
            except FlashBootError as error:
                self._send(connection, wire.Refused(problem=error.problem()))
            except OSError:
                return
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _offer(self, connection: socket.socket, hello: wire.Hello) -> None:
        if self.refuse is not None:
            raise self.refuse
        arena = self.arena(hello.place)
        while self.hold is not None:
            self._send(connection, self.hold)
            time.sleep(0.05)
        while self.late:
            note = f"no memory is reserved yet for rank {', '.join(map(str, self.late))} of this pod"
            self._send(connection, wire.Coming(allocated=False, bytes=arena.nbytes, watermark=arena.nbytes, note=note))
            time.sleep(0.05)
        if arena.layout is None:
            self._send(connection, wire.Seed(arena=arena.name))
            return
        require_equal(hello.identity, arena.identity, whose="arena")
        self._send_ready(connection, arena)

    def _allocate(self, connection: socket.socket, arena: Arena, nbytes: int) -> None:
        if arena.memory is not None:
            os.close(arena.memory)
        memory = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        arena.memory, arena.nbytes = memory, nbytes
        os.ftruncate(memory, nbytes)
        readable = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
        self._send(connection, wire.Writable(arena=arena.name, bytes=nbytes), [memory, readable])
        os.close(readable)

    def _commit(self, connection: socket.socket, descriptors: list[int], hello: wire.Hello) -> None:
        if self.commits_to_lose:
            self.commits_to_lose -= 1
            connection.shutdown(socket.SHUT_RDWR)
            return
        arena = self.arena(hello.place)
        document = os.pread(descriptors[0], MAX_LAYOUT, 0)
        layout = Layout.from_bytes(document)
        require_equal(hello.identity, layout.identity, whose="layout")
        assert arena.memory is not None
        assert layout.arena_bytes == arena.nbytes
        try:
            fcntl.fcntl(arena.memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)
        except OSError as error:
            raise CommitRefused(f"the engine still maps the arena for writing: {error}") from error
        arena.layout, arena.identity = document, layout.identity
        self._send_ready(connection, arena)

    def _send_ready(self, connection: socket.socket, arena: Arena) -> None:
        assert arena.layout is not None
        memory = os.open(f"/proc/self/fd/{arena.memory}", os.O_RDONLY | os.O_CLOEXEC)
        document = os.memfd_create("layout", os.MFD_CLOEXEC)
        os.write(document, arena.layout)
        ready = wire.Ready(
            arena=arena.name,
            bytes=arena.nbytes,
            identity=digest_of(arena.identity),
            digest=DIGEST,
            layout_digest=document_digest(arena.layout),
        )
        self._send(connection, ready, [memory, document])
        os.close(memory)
        os.close(document)

    def _send(self, connection: socket.socket, message: WireModel, descriptors: list[int] | None = None) -> None:
        socket.send_fds(connection, [message.to_json()], descriptors or [])
