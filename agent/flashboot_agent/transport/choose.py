"""Connect to a parent by the fastest transport that serves, and say why it was that one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashboot_agent.core.errors import DeadlineExceeded, FlashBootError, ParentUnreachable
from flashboot_agent.transport.base import Pull, Transport
from flashboot_agent.wire.arena import Peer


@dataclass(frozen=True)
class Connected:
    pull: Pull
    transport: str
    reason: str
    """For status: why this one serves, and why each better one does not."""


Connect = Callable[[Peer, str], Connected]
"""(parent, arena) → `connect` below, with this node's transports."""


def connect(transports: Sequence[Transport], peer: Peer, arena: str, child: str, deadline: float) -> Connected:
    """By the first of `transports`, fastest first, that serves for the peer and reaches it in what is left of
    `deadline` seconds.

    Another transport is tried only when one does not reach the peer; a refusal is a refusal of all. Raises what
    `Transport.connect` raises; when none reaches the peer, what the last one raised, with the reasons of all."""
    end = time.monotonic() + deadline
    kind: type[FlashBootError] = ParentUnreachable
    told: list[str] = []  # not the exceptions: they would keep this frame, and our callers' with it
    for transport in transports:
        try:
            why = transport.probe(peer)
            pull = transport.connect(peer, arena, child, max(0.0, end - time.monotonic()))
        except (ParentUnreachable, DeadlineExceeded) as error:
            kind = type(error)
            told.append(f"not {transport.name}: {error}")
            continue
        return Connected(pull, transport.name, "; ".join([f"{transport.name}: {why}", *told])[:4096])
    reasons = "; ".join(told) or "no transport is configured"
    raise kind(f"no way to parent {peer.node} ({peer.address}): {reasons}")
