"""What the agent shows to its peers and what it checks them by, kept over restarts.

Always holds: a certificate that is given out names this node, fits its key, was signed by a CA that counts, and has not
expired. The private key is in the agent's state folder (mode 0600) and in this process, nowhere else; each certificate
has a key of its own.

Whoever opens or accepts connections asks `current()` each time, and builds its TLS context anew when `version` differs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.files import write_atomically
from flashboot_agent.logs import Log
from flashboot_agent.trust import keys
from flashboot_agent.wire.base import now
from flashboot_agent.wire.trust import Certificate, agent_uri

log = Log(__name__)

FILE: Final = "credentials.pem"


@dataclass(frozen=True)
class Credentials:
    """PEM, each."""

    certificate: bytes
    key: bytes
    """PKCS#8, not encrypted."""
    ca: bytes
    """All CA certificates that count, concatenated."""


@dataclass(frozen=True)
class _Held:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


class CredentialStore:
    """Thread-safe. `clock` is the wall clock: certificates end by it."""

    def __init__(self, node: str, folder: Path, *, clock: Callable[[], datetime] = now) -> None:
        self.node = node
        self._path = folder / FILE
        self._clock = clock
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._waiting: ec.EllipticCurvePrivateKey | None = None
        """The key of a request that was not answered yet: asked twice, the request is the same."""
        self._ca = b""
        self._listeners: list[Callable[[], None]] = []
        self._version = 0

    def listen(self, listener: Callable[[], None]) -> None:
        """Called after each change of `version`, in whatever thread made it."""
        self._listeners.append(listener)

    @property
    def version(self) -> int:
        """Rises with every new certificate and every new CA."""
        return self._version

    @property
    def expires_at(self) -> datetime | None:
        """Of the certificate that is in force; None when there is none."""
        with self._lock:
            return self._held.certificate.not_valid_after_utc if self._held is not None and self._good() else None

    @property
    def ca(self) -> bytes:
        """All CA certificates that count, PEM; empty when none is known."""
        with self._lock:
            return self._ca

    def current(self) -> Credentials | None:
        """None: no certificate yet, or it has expired because no operator came to renew it."""
        with self._lock:
            if self._held is None or not self._good():
                return None
            return Credentials(self._held.pem, keys.key_pem(self._held.key), self._ca)

    def request(self) -> bytes:
        """A CSR (PEM) for a key that is new, and stays until its certificate is here."""
        with self._lock:
            if self._waiting is None:
                self._waiting = keys.new_key()
            return keys.certificate_request(self._waiting, self.node)

    def use_ca(self, ca: bytes) -> None:
        """From now on these CA certificates count, and no others. Raises BadRequest, and changes nothing then."""
        authorities = _certificates(ca)
        with self._lock:
            if ca == self._ca:
                return
            self._ca = ca
            if self._held is not None and not any(_signed(self._held.certificate, one) for one in authorities):
                log.warning("CA of the present certificate no longer counts, waiting for a new one")
                self._held = None
            self._version += 1
        self._tell()

    def install(self, answer: Certificate) -> datetime:
        """Take a certificate for `request()` (or for the key in force), on disk first; returns when it ends.

        Raises BadRequest for one that peers would refuse, OSError when it can't be kept; changes nothing then."""
        pem, ca = answer.certificate.encode(), answer.ca.encode()
        with self._lock:
            known = [key for key in (self._waiting, self._held.key if self._held else None) if key is not None]
            held = self._checked(pem, ca, known)
            write_atomically(self._path, keys.key_pem(held.key) + held.pem, mode=0o600)
            self._held, self._waiting, self._ca = held, None, ca
            self._version += 1
        self._tell()
        return held.certificate.not_valid_after_utc

    def load(self) -> None:
        """What an earlier process kept; call `use_ca` before. What is of no use is told in the log and ignored."""
        try:
            kept = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            log.error("the kept certificate can't be read", path=str(self._path), why=str(error))
            return
        try:
            key = load_pem_private_key(kept, None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise BadRequest("its key is no EC key")
            with self._lock:
                self._held = self._checked(kept, self._ca, [key])
                self._version += 1
        except (BadRequest, *keys.MALFORMED) as error:
            log.warning("kept certificate of no use, waiting for a new one", path=str(self._path), why=str(error))
            return
        self._tell()

    def _checked(self, pem: bytes, ca: bytes, known: list[ec.EllipticCurvePrivateKey]) -> _Held:
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            names = keys.uris(certificate)
        except keys.MALFORMED as error:
            raise BadRequest(f"not a certificate: {error}") from error
        if agent_uri(self.node) not in names:
            raise BadRequest(f"the certificate is for {names}, this is {agent_uri(self.node)}")
        if not certificate.not_valid_before_utc <= self._clock() < certificate.not_valid_after_utc:
            raise BadRequest(
                f"the certificate counts from {certificate.not_valid_before_utc} to {certificate.not_valid_after_utc}, "
                f"the clock of node {self.node} says {self._clock()}"
            )
        if not any(_signed(certificate, authority) for authority in _certificates(ca)):
            raise BadRequest(f"no CA that node {self.node} knows has signed the certificate")
        public = certificate.public_key()
        for key in known:
            if isinstance(public, ec.EllipticCurvePublicKey) and public == key.public_key():
                return _Held(certificate, key)
        raise BadRequest(f"the certificate is for a key that node {self.node} does not have; ask for its request again")

    def _good(self) -> bool:
        return self._held is not None and self._clock() < self._held.certificate.not_valid_after_utc

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except keys.MALFORMED as error:
        raise BadRequest(f"not a CA bundle: {error}") from error


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
