"""Operator ↔ agent: the desired state of a node, and what the node observes.

The manner is that of xDS: the operator PUTs a node's *whole* desired state, the agent moves towards it on its own, and
the operator long-polls what the agent observes. Both directions are level-triggered and idempotent, so that a lost or
repeated message changes nothing.

    PUT  /v1/desired                              body: Desired   → 200 Accepted | 409 Problem(StaleEpoch)
    GET  /v1/observed?after=N&waitSeconds=25      → 200 Observed, as soon as counter > N, or unchanged at the deadline
    GET  /v1/arenas/{arena}                       → 200 ObservedArena | 404 Problem(UnknownArena)
    GET  /v1/certificate                          → 200 CertificateRequest   (wire/trust.py)
    PUT  /v1/certificate                          body: Certificate → 200 | 400 Problem(BadRequest)

The GETs of states answer 503 Problem(NotReady) from an agent that has just started, until it has asked its holder what
is there.

The messages are in desired.py and observed.py (with observed_arena.py, observed_pod.py); both use arena.py, problem.py.
"""

from __future__ import annotations

from typing import Final

PROTOCOL: Final = 1
"""Agents and an operator of one protocol understand each other, whatever their versions. As models refuse what they do
not know, every release that changes a message raises it. An operator leaves an agent of another protocol alone: its
engines serve, its arenas stay, nothing new begins there, and the conditions say so."""
