"""Operator ↔ agent: how an agent gets its certificate. The operator comes to the agent, never the other way round.

    operator                                      agent
    GET /v1/certificate        →                  only from a client whose certificate names the operator
                               ←                  CertificateRequest(csr, token)
    TokenReview(token) at the API server: the service account of the agents, on the node that the CSR names
    PUT /v1/certificate        →                  Certificate(certificate, ca)

Until an agent has its first certificate it serves under one that it signed itself, which proves nothing. That is
enough: the token leaves only towards a client that proved to be the operator, and the operator signs only for the
node that the token names, so that a machine in the middle can neither get a token nor a certificate. The agent knows
the CA from a ConfigMap that the operator fills; it is mounted, so the agent needs no rights on the API server.

Names in certificates (URI SAN): `flashboot://operator` and `flashboot://agent/<node>`. An agent's certificate also has
the node's name as DNS SAN, for clients that check host names.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import StringConstraints

from flashboot_agent.wire.base import Name, WireModel

OPERATOR_URI: Final = "flashboot://operator"
AGENT_URI: Final = "flashboot://agent/"
AUDIENCE: Final = "flashboot-operator"
"""Of the agent's projected service account token; no other service accepts it."""

Pem = Annotated[str, StringConstraints(max_length=65536, pattern=r"^-----BEGIN ")]


class CertificateRequest(WireModel):
    node: Name
    csr: Pem
    token: Annotated[str, StringConstraints(max_length=16384)]


class Certificate(WireModel):
    """The answer; the private key never left the agent."""

    certificate: Pem
    """The agent's own, PEM."""
    ca: Pem
    """All CA certificates that count now, PEM, concatenated."""


def agent_uri(node: str) -> str:
    """The URI SAN of a node's agent."""
    return AGENT_URI + node
