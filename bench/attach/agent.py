"""As much of an agent as hands one sealed arena to everybody who asks, for timing the engine's side of an attach."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

from flashboot_agent.core.identity import digest_of, document_digest
from flashboot_agent.memory.memfd import sealed_copy
from flashboot_agent.wire import attach


class Agent:
    """Serves until the process ends."""

    def __init__(self, path: Path, descriptor: int, document: bytes, identity: dict[str, str]) -> None:
        self._ready = attach.Ready(
            arena="arena-" + "0" * 32,
            bytes=os.fstat(descriptor).st_size,
            identity=digest_of(identity),
            digest="xxh3:" + "0" * 16,
            layout_digest=document_digest(document),
        ).to_json()
        self._descriptors = [descriptor, sealed_copy("layout", document)]
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(attach.MAX_MESSAGE):
                if isinstance(attach.from_engine.validate_json(data), attach.Hello):
                    socket.send_fds(connection, [self._ready], self._descriptors)
