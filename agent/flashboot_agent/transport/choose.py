"""Choose a transport for a peer by asking each in order, fastest first, and say why the choice fell as it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashboot_agent.core.errors import DeadlineExceeded, ParentUnreachable
from flashboot_agent.transport.base import Transport
from flashboot_agent.wire.control import Peer


@dataclass(frozen=True)
class Choice:
    transport: Transport
    reason: str
    """For status: why this one serves, and why each better one does not."""


def choose(transports: Sequence[Transport], peer: Peer) -> Choice:
    """The first of `transports` whose probe succeeds.

    Raises ParentUnreachable with the reason of every one."""
    refusals: list[str] = []
    for transport in transports:
        try:
            why = transport.probe(peer)
        except (ParentUnreachable, DeadlineExceeded) as error:
            refusals.append(f"not {transport.name}: {error}")
            continue
        return Choice(transport, "; ".join([f"{transport.name}: {why}", *refusals])[:4096])
    reasons = "; ".join(refusals) or "no transport is configured"
    raise ParentUnreachable(f"no way to parent {peer.node} ({peer.address}): {reasons}")
