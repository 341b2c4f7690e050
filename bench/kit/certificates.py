"""Certificates for the limit over TLS: of the same kind (P-256, signed by the operator's authority) as agents have."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flashboot_agent.trust import keys
from flashboot_agent.trust.credentials import Credentials
from flashboot_operator.core.authority import Authority

_LIFE = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """Files (certificate, key, CA) of a server and of a client that believe each other."""

    server: tuple[Path, Path, Path]
    client: tuple[Path, Path, Path]


def issue(authority: Authority, node: str) -> Credentials:
    """What a node's agent would show."""
    key = keys.new_key()
    certificate = authority.sign_agent(keys.certificate_request(key, node), node, datetime.now(UTC), _LIFE)
    return Credentials(certificate, keys.key_pem(key), authority.bundle)


def pair(folder: Path) -> Pair:
    """Write a new pair of an authority of its own."""
    authority = Authority.new(datetime.now(UTC))
    return Pair(_write(folder / "server", issue(authority, "server")), _write(folder / "client", issue(authority, "client")))


def _write(folder: Path, credentials: Credentials) -> tuple[Path, Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = (folder / "certificate.pem", folder / "key.pem", folder / "ca.pem")
    for file, content in zip(files, (credentials.certificate, credentials.key, credentials.ca), strict=True):
        file.touch(0o600)
        file.write_bytes(content)
    return files
