"""A CA for tests: `Issuer().issue_agent("node-a")` is what an agent has after its enrolment.

The certificates are signed by the operator's own code, so that what tests trust is what a cluster trusts.
"""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta
from pathlib import Path

from flashboot_agent.trust import keys
from flashboot_agent.trust.credentials import Credentials
from flashboot_agent.trust.tls import client_context
from flashboot_agent.wire.base import now
from flashboot_operator.core.authority import Authority

DAY = timedelta(days=1)


class Issuer:
    """One cluster's CA; two of them do not believe each other."""

    def __init__(self, at: datetime | None = None, *, authority: Authority | None = None) -> None:
        """A new one, or (`authority`) one that an operator has made."""
        self.authority = authority or Authority.new(at or now())

    @property
    def ca(self) -> bytes:
        return self.authority.bundle

    def issue_agent(self, node: str, *, life: timedelta = DAY, at: datetime | None = None) -> Credentials:
        """Of a node's agent; `at` in the past and a short `life` make an expired one."""
        key = keys.new_key()
        certificate = self.authority.sign_agent(keys.certificate_request(key, node), node, at or now(), life)
        return Credentials(certificate, keys.key_pem(key), self.ca)

    def issue_operator(self, *, life: timedelta = DAY, at: datetime | None = None) -> Credentials:
        certificate, key = self.authority.operator(at or now(), life)
        return Credentials(certificate, key, self.ca)

    def context(self, own: Credentials, *, ca: bytes | None = None) -> ssl.SSLContext:
        """A client with these credentials that believes this CA (or `ca`)."""
        return client_context(own.certificate, own.key, ca or self.ca)

    def operator_context(self) -> ssl.SSLContext:
        """As the operator comes to an agent: verifies the CA and the host name, which is the node's name."""
        return self.context(self.issue_operator())

    def bootstrap_context(self) -> ssl.SSLContext:
        """As the operator comes to an agent that has no certificate yet."""
        own = self.issue_operator()
        return client_context(own.certificate, own.key, None)

    def keep(self, node: str, state: Path, *, life: timedelta = DAY, at: datetime | None = None) -> None:
        """As if the node's agent had been enrolled by an earlier process: the file in its state folder."""
        found = self.issue_agent(node, life=life, at=at)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = state / "credentials.pem"
        file.write_bytes(found.key + found.certificate)
        file.chmod(0o600)
