"""Certificates for the limit over TLS: of the same kind (P-256, signed by the operator's authority) as agents have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flashboot_agent.trust.credentials import Credentials
from tests.component.trust import Issuer

Files = tuple[Path, Path, Path]
"""Certificate, key, CA; PEM."""


@dataclass(frozen=True)
class Pair:
    """A server and a client that believe each other."""

    server: Files
    client: Files


def pair(folder: Path) -> Pair:
    """Write a new pair of an authority of its own."""
    issuer = Issuer()
    return Pair(*(_write(folder / node, issuer.issue_agent(node)) for node in ("server", "client")))


def _write(folder: Path, credentials: Credentials) -> Files:
    folder.mkdir(parents=True, exist_ok=True)
    files = (folder / "certificate.pem", folder / "key.pem", folder / "ca.pem")
    for file, content in zip(files, (credentials.certificate, credentials.key, credentials.ca), strict=True):
        file.touch(0o600)
        file.write_bytes(content)
    return files
