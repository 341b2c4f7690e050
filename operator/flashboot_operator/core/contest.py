"""Who fights over `spec.replicas`: an autoscaler that sets it through `/scale`, and a manifest that sets it back. Pure.

The API server notes for each field who set it last, and in which way. Once is no fight: a person may scale by hand and
apply a manifest later. Back and forth several times within minutes is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flashboot_operator.core.facts import Trouble

WINDOW = timedelta(minutes=15)
TURNS = 4
"""Changes of hands within the window that make it a fight: there, back, there, back."""


@dataclass(frozen=True)
class Hand:
    """Who set the number last."""

    manager: str
    scales: bool
    """Through `/scale`, as autoscalers do; else with a manifest."""


@dataclass(frozen=True)
class Contest:
    """Who holds the number, and when it changed hands."""

    hands: frozenset[Hand] = frozenset()
    turns: tuple[datetime, ...] = ()
    met: tuple[str, str] = ("", "")
    """The last two managers between whom it changed hands: who scales, and whose manifest it is."""


def hands_of(managed: Iterable[Mapping[str, Any]], *, own: str) -> frozenset[Hand]:
    """From `metadata.managedFields`. own: name of our own manager, which only fills in what nobody set."""
    return frozenset(
        Hand(entry["manager"], entry.get("subresource") == "scale")
        for entry in managed
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}) and entry.get("manager") != own
    )


def seen(before: Contest, hands: frozenset[Hand], now: datetime) -> Contest:
    """After another look at who holds it."""
    if hands == before.hands or not hands:
        return before
    turns = tuple(at for at in before.turns if now - at <= WINDOW)
    met = before.met
    if before.hands and {hand.scales for hand in hands} != {hand.scales for hand in before.hands}:
        turns = (*turns, now)[-TURNS:]
        either = before.hands | hands
        met = (
            min((hand.manager for hand in either if hand.scales), default=""),
            min((hand.manager for hand in either if not hand.scales), default=""),
        )
    return Contest(hands, turns, met)


def trouble(contest: Contest, now: datetime) -> Trouble | None:
    recent = [at for at in contest.turns if now - at <= WINDOW]
    if len(recent) < TURNS:
        return None
    scaler, applier = contest.met
    text = (
        f"spec.replicas changes hands between {scaler}, which scales, and {applier}, which applies a manifest: leave "
        "spec.replicas out of the manifest, or remove the autoscaler"
    )
    return Trouble("ReplicasContested", text)
