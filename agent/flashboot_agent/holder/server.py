"""The holder's poll loop: sockets in, descriptors out, creates advanced a step at a time in between.

One request per connection. A connection that says nothing for CLIENT_DEADLINE is closed, so that no peer can pile up
descriptors here.
"""

from __future__ import annotations

import array
import json
import os
import selectors
import socket
import time
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from flashboot_agent.holder import protocol
from flashboot_agent.holder.protocol import Message
from flashboot_agent.holder.shelf import Shelf, ShelfError, Slot
from flashboot_agent.listener import listen

CLIENT_DEADLINE: Final = 10.0
TICK: Final = 1.0
OWN_USER: Final = 0o600
"""Only the agent, which runs as the same user, may connect."""


@dataclass
class Client:
    sock: socket.socket
    since: float
    job: Generator[None, None, Slot] | None = None


class HolderServer:
    """Serves until `stop` was called (from a signal handler, too)."""

    def __init__(self, path: str, shelf: Shelf) -> None:
        self.shelf = shelf
        self.instance = str(uuid.uuid4())
        self._stopped = False
        self._wake, self._woken = socket.socketpair()
        self._clients: dict[int, Client] = {}
        self._selector = selectors.DefaultSelector()
        self._server = listen(*os.path.split(path), mode=OWN_USER, backlog=64)
        for sock in (self._server, self._woken):
            self._selector.register(sock, selectors.EVENT_READ)

    def stop(self) -> None:
        self._stopped = True
        self._wake.send(b"!")  # a poll goes on after a signal; this ends it

    def serve(self) -> None:
        while not self._stopped:
            busy = [client for client in self._clients.values() if client.job is not None]
            for key, _ in self._selector.select(0 if busy else TICK):
                if key.fileobj is self._server:
                    self._accept()
                elif key.fileobj is not self._woken:
                    self._readable(self._clients[key.fd])
            for client in busy:
                if client.job is not None:
                    self._advance(client)
            self._expire()
        for client in list(self._clients.values()):
            self._close(client)
        for sock in (self._server, self._wake, self._woken):
            sock.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._server.accept()
        except OSError:  # it went away between poll and accept, or we are out of descriptors: the next tick tries again
            return
        sock.setblocking(False)
        self._clients[sock.fileno()] = Client(sock, time.monotonic())
        self._selector.register(sock, selectors.EVENT_READ)

    def _readable(self, client: Client) -> None:
        fds: list[int] = []
        try:
            data, fds, flags, _ = socket.recv_fds(client.sock, protocol.MAX_PACKET, 4)
        except BlockingIOError:
            return
        except OSError:
            self._close(client)
            return
        try:
            if not data or client.job is not None:  # gone, or impatient: either way a create is undone
                self._close(client)
                return
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ShelfError(protocol.BAD_REQUEST, "the packet was cut off")
            self._handle(client, data, fds)
        except ShelfError as error:
            self._reply(client, {"error": error.kind, "message": str(error)})
        finally:
            for fd in fds:
                os.close(fd)

    def _handle(self, client: Client, data: bytes, fds: list[int]) -> None:
        message = _parse(data)
        op = message.get("op")
        if op == "stats":
            self._reply(client, self._stats())
        elif op == "list":
            arenas, more = self.shelf.inventory(str(message.get("after", "")))
            self._reply(client, {"arenas": arenas, "more": more})
        elif op == "get":
            self._give(client, self.shelf.get(_arena(message)))
        elif op == "drop":
            self._reply(client, {"dropped": self.shelf.drop(_arena(message))})
        elif op == "put":
            if len(fds) != 2:
                raise ShelfError(protocol.BAD_REQUEST, f"put wants two descriptors, got {len(fds)}")
            self.shelf.put(_arena(message), _bytes(message), fds[0], fds[1])
            fds.clear()  # the shelf's now
            self._reply(client, {})
        elif op == "create":
            pages = message.get("pages", "small")
            if pages not in ("hugetlb", "transparent", "small"):
                raise ShelfError(protocol.BAD_REQUEST, f"no such pages: {pages!r}")
            client.job = self.shelf.create(_arena(message), _bytes(message), pages)
            self._advance(client)
        else:
            raise ShelfError(protocol.BAD_REQUEST, f"no such op: {op!r}")

    def _advance(self, client: Client) -> None:
        assert client.job is not None
        try:
            next(client.job)
        except StopIteration as done:
            client.job = None
            self._give(client, done.value)
        except ShelfError as error:
            client.job = None
            self._reply(client, {"error": error.kind, "message": str(error)})

    def _give(self, client: Client, slot: Slot) -> None:
        self._reply(client, {"bytes": slot.nbytes}, [slot.data, slot.record])

    def _reply(self, client: Client, message: Message, fds: list[int] | None = None) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            client.sock.sendmsg([json.dumps(message).encode()], ancillary)
        except OSError:  # the client is gone; what it asked for is on the shelf, where its successor finds it
            pass
        finally:
            self._close(client)

    def _stats(self) -> Message:
        return {
            "instance": self.instance,
            "budget_bytes": self.shelf.budget_bytes,
            "used_bytes": self.shelf.used_bytes,
            "arenas": len(self.shelf.slots),
        }

    def _expire(self) -> None:
        too_old = time.monotonic() - CLIENT_DEADLINE
        for client in [c for c in self._clients.values() if c.job is None and c.since < too_old]:
            self._close(client)

    def _close(self, client: Client) -> None:
        if self._clients.pop(client.sock.fileno(), None) is None:
            return
        if client.job is not None:
            client.job.close()
            client.job = None
        self._selector.unregister(client.sock)
        client.sock.close()


def _parse(data: bytes) -> Message:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ShelfError(protocol.BAD_REQUEST, f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise ShelfError(protocol.BAD_REQUEST, "not a JSON object")
    return message


def _arena(message: Message) -> str:
    arena = message.get("arena")
    if not isinstance(arena, str) or not protocol.ARENA.fullmatch(arena):
        raise ShelfError(protocol.BAD_REQUEST, f"not the name of an arena: {arena!r}")
    return arena


def _bytes(message: Message) -> int:
    nbytes = message.get("bytes")
    if not isinstance(nbytes, int) or isinstance(nbytes, bool) or not 0 < nbytes <= 1 << 50:
        raise ShelfError(protocol.BAD_REQUEST, f"not a size in bytes: {nbytes!r}")
    return nbytes
