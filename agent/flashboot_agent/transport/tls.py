"""TLS contexts of a rotating certificate: one a side, made anew when the credentials change.

Running connections go on with what they were opened with; a certificate lives much longer than a clone.
"""

from __future__ import annotations

import threading
from typing import Protocol

from flashboot_agent._native import TlsContext
from flashboot_agent.core.errors import NotReady


class Credentials(Protocol):
    """PEM, each."""

    @property
    def certificate(self) -> bytes: ...

    @property
    def key(self) -> bytes: ...

    @property
    def ca(self) -> bytes: ...


class CredentialSource(Protocol):
    """What a transport needs of trust/credentials.py."""

    @property
    def version(self) -> int:
        """Rises with every change."""

    def current(self) -> Credentials | None:
        """None while there is no certificate that counts."""


class TlsContexts:
    """The present context of one side. Thread-safe."""

    def __init__(self, source: CredentialSource, *, server: bool) -> None:
        self._source = source
        self._server = server
        self._lock = threading.Lock()
        self._made: tuple[int, TlsContext] | None = None

    def present(self) -> TlsContext:
        """Raises NotReady while this node has no certificate that counts."""
        with self._lock:
            version = self._source.version  # before the credentials: a change in between is seen by the next call
            credentials = self._source.current()
            if credentials is None:
                raise NotReady(
                    "this node's agent has no valid certificate yet; the operator brings one as soon as it runs"
                )
            if self._made is None or self._made[0] != version:
                self._made = (
                    version,
                    TlsContext(credentials.certificate, credentials.key, credentials.ca, server=self._server),
                )
            return self._made[1]
