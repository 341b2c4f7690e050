"""Who this agent is to its operator: the certificate exchange of wire/trust.py, and TLS for the control server.

Each handshake takes what counts at that moment, so that a rotation ends no connection. Without a certificate that
counts (a new node, or an operator that was away for a day) the server shows one that it signed itself: enough to be
enrolled, since only the operator gets past it (node/http.py).
"""

from __future__ import annotations

import ssl
from pathlib import Path

from flashboot_agent.core.errors import BadRequest, NotReady
from flashboot_agent.logs import Log
from flashboot_agent.trust import keys
from flashboot_agent.trust.credentials import CredentialStore
from flashboot_agent.trust.tls import server_context
from flashboot_agent.wire.base import now
from flashboot_agent.wire.trust import CertificateRequest

log = Log(__name__)


class NodeIdentity:
    """Loop side only, but for `context`, whose handshakes may be anywhere."""

    def __init__(self, credentials: CredentialStore, *, ca_file: Path, token_file: Path) -> None:
        self.credentials = credentials
        self._ca_file = ca_file
        self._token_file = token_file
        self._read: bytes | None = None
        self._why_no_ca = ""
        key = keys.new_key()
        self._own = keys.self_signed(key, credentials.node, now()), keys.key_pem(key)
        self._shown: tuple[int, bool] = (-1, False)
        self.context = self._newest = server_context(*self._own, b"")
        """Of the server; its handshakes switch to the newest."""
        self.context.sni_callback = self._choose

    def load(self) -> None:
        """At start: the CA, then the certificate of an earlier process."""
        self.refresh()
        self.credentials.load()
        end = self.credentials.expires_at
        if end is not None:
            log.info("certificate of an earlier process counts", until=str(end))

    def refresh(self) -> None:
        """Look at the CA file; what can't be used is told once and changes nothing."""
        try:
            ca = self._ca_file.read_bytes()
            if ca != self._read:
                self.credentials.use_ca(ca)
                self._read = ca
                log.info("CA read", path=str(self._ca_file))
            why = ""
        except (OSError, BadRequest) as error:
            why = str(error)
        if why and why != self._why_no_ca:
            log.error("CA file can't be used: the operator can't reach this agent until it can", why=why)
        self._why_no_ca = why

    def request(self) -> CertificateRequest:
        """Raises NotReady when the token can't be read."""
        try:
            token = self._token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NotReady(f"node {self.credentials.node} has no service account token to show: {error}") from error
        return CertificateRequest(node=self.credentials.node, csr=self.credentials.request().decode(), token=token)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """At each handshake. It is called without SNI, too."""
        version, found = self.credentials.version, self.credentials.current()
        if self._shown != (version, found is not None):
            certificate, key = (found.certificate, found.key) if found else self._own
            self._newest = server_context(certificate, key, self.credentials.ca)
            self._shown = version, found is not None
        connection.context = self._newest
