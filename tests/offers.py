"""The other side of an engine's first question: an agent that answers one hello with one packet; what may be in it."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from flashboot_agent._ahead import Ahead
from flashboot_agent.core.identity import document_digest
from flashboot_agent.wire.attach import Ready
from flashboot_agent.wire.attach_socket import MAX_MESSAGE
from flashboot_agent.wire.layout_head import canonical
from tests.layouts import plain

IDENTITY: Final = {"model": "m", "notes": 'ä "quoted" \n'}
ARENA, XXH = "arena-" + "a" * 32, "xxh3:" + "2" * 16
LAYOUT = plain(3, IDENTITY)
DOCUMENT = LAYOUT.to_bytes()
HELLO = b'{"type":"hello"}'


def memory(data: bytes) -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, data)
    return descriptor


def ready(document: bytes = DOCUMENT, **changes: Any) -> bytes:
    fields = {"arena": ARENA, "bytes": LAYOUT.arena_bytes, "identity": "sha256:" + "1" * 64, "digest": XXH}
    return Ready(**{**fields, "layout_digest": document_digest(document), **changes}).to_json()


class Agent:
    """Answers one hello with one packet, and hears what comes after it."""

    def __init__(self, packet: bytes | None, files: list[bytes]) -> None:
        """packet: None to say nothing."""
        self.path = str(Path(tempfile.mkdtemp(prefix="fb-")) / "agent.sock")
        self.heard: list[bytes] = []
        self._packet, self._files = packet, [memory(each) for each in files]
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            self.heard.append(connection.recv(MAX_MESSAGE))
            if self._packet is not None:
                socket.send_fds(connection, [self._packet], self._files)
            while data := connection.recv(MAX_MESSAGE):
                self.heard.append(data)

    def close(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the connection was ended"
        self._listener.close()
        for file in self._files:
            os.close(file)
        os.unlink(self.path)
        os.rmdir(os.path.dirname(self.path))


def asked(identity: dict[str, str] = IDENTITY) -> Ahead:
    return Ahead(canonical(identity))
