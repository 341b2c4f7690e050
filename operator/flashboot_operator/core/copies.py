"""What the status of a ModelReplica tells of `spec.residency`: what is held where until when, what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashboot_operator.api.status import Copies
from flashboot_operator.core.conditions import stamp
from flashboot_operator.core.facts import World
from flashboot_operator.core.picture import Lost
from flashboot_operator.core.plan import ArenaPlan, Owner
from flashboot_operator.core.residency import term

SHOWN = 4
"""Nodes that a message names; more are counted."""


@dataclass(frozen=True)
class Told:
    unused: str = ""
    """Of one without replicas: what becomes of its weights."""
    lost: Lost | None = None
    """Why there are no weights of one without replicas, though copies were to be kept."""


def copies_of(owner: Owner, world: World, ranks: Sequence[ArenaPlan]) -> Copies | None:
    """`ranks`: plans of the arenas of one replica."""
    if not owner.spec.residency.host_copies:
        return None
    holders = [{node for node in plan.sealed if node in plan.wanted} for plan in ranks]
    whole = set.intersection(*holders) if holders else set()
    nodes = whole or set().union(*holders)  # a replica of several pods has its ranks on different nodes
    until = term(owner, world).until
    return Copies(
        copies=min(map(len, holders), default=0),
        nodes=sorted(nodes)[:64],
        unused_since=stamp(world.unused_since) if world.unused_since else None,
        until=stamp(until) if until else None,
    )


def tell(owner: Owner, world: World, kept: Copies | None, *, had: bool) -> Told:
    """`had`: its weights were resident once."""
    adopts = owner.spec.template is None  # nobody says there that no replica is wanted, so that its one source stays
    if world.unused_since is None or (kept is None and adopts):
        return Told()
    if kept is None:
        return Told("no memory is held, since spec.residency.hostCopies is 0")
    wanted = term(owner, world).copies
    if wanted:
        return _during(kept, wanted, had=had)
    seconds = owner.spec.residency.host_ttl_seconds
    text = f"copies stayed until {kept.until}, {seconds} s after the last pod (spec.residency.hostTTLSeconds)"
    if adopts:
        return Told(text)
    return Told(f"no memory is held: {text}", Lost("CopiesExpired", text) if had else None)


def _during(kept: Copies, wanted: int, *, had: bool) -> Told:
    if not kept.copies and had:
        text = (
            f"none is left of the copies that spec.residency keeps until {kept.until}: their nodes or agents have "
            "gone, or pods needed the memory (see Events); the next replica starts from an image or the checkpoint"
        )
        return Told(text, Lost("CopiesLost", text))
    if not kept.copies:
        return Told("nothing was resident yet that could be kept")
    more = f" and {len(kept.nodes) - SHOWN} more" if len(kept.nodes) > SHOWN else ""
    verb = "keeps" if len(kept.nodes) == 1 else "keep"
    fewer = f"; that is {kept.copies} of {wanted} copies" if kept.copies < wanted else ""
    return Told(f"{', '.join(kept.nodes[:SHOWN])}{more} {verb} the weights until {kept.until}{fewer}")
