"""What the conditions speak of: how many replicas there are, how far they are, and all that is wrong. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from flashboot_operator.core.election import Source
from flashboot_operator.core.facts import Raw, Trouble
from flashboot_operator.core.progress import Line
from flashboot_operator.core.reasons import LostReason

QUOTA_STEP = "raise the ResourceQuota or lower spec.replicas"


@dataclass(frozen=True)
class Lost:
    """Why nothing is resident though copies were to be kept."""

    reason: LostReason
    message: str


@dataclass(frozen=True)
class Picture:
    """All that the conditions say something about."""

    generation: int
    name: str = ""
    wanted: int | None = None
    """None: adopted pods, whatever their number."""
    max_unavailable: int = 0
    existing: int = 0
    ready: int = 0
    updated: int = 0
    """Of those that exist, how many are of the present template and revision."""
    updated_ready: int = 0
    earlier: int = 0
    """Replicas of an earlier template or revision."""
    moved_at: datetime | None = None
    """When something became of those last."""
    deadline: timedelta = timedelta(seconds=900)
    lines: Sequence[Line] = ()
    source: Source | None = None
    seed: str | None = None
    image_on: str | None = None
    refused: Trouble | None = None
    """What keeps the Deployment from being applied."""
    deployment: Raw | None = None
    strays: Sequence[Trouble] = ()
    """What is wrong beside what the lines say: with pods that do not count, with pods that do not come."""
    contested: Trouble | None = None
    """Who else changes the number of replicas."""
    going: bool = False
    unused: str = ""
    """What becomes of the weights while nobody wants a replica (copies.py)."""
    lost: Lost | None = None

    @property
    def target(self) -> int:
        return self.existing if self.wanted is None else self.wanted

    @property
    def done(self) -> bool:
        current = self.wanted is None or self.updated == self.target
        return self.ready == self.existing == self.target and current and self.refused is None

    @property
    def zero(self) -> str:
        return "; ".join(["no replicas are wanted", *filter(None, [self.unused])])

    @property
    def counts(self) -> str:
        ready = f"{self.ready} of {self.target} replicas are ready"
        if not self.earlier:
            return ready
        return f"{ready}; roll-out: {self.updated} of {self.existing} are of the present template"

    def deployed(self, kind: str) -> Raw:
        """A condition of the Deployment, or nothing."""
        conditions = ((self.deployment or {}).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})


def troubles_of(picture: Picture) -> list[Trouble]:
    """What keeps the workload from being applied comes first."""
    found = [picture.refused] if picture.refused else []
    failure = picture.deployed("ReplicaFailure")
    if failure.get("status") == "True":
        message = failure.get("message", "")
        text = f"pods of Deployment {(picture.deployment or {})['metadata']['name']} are refused: {message}"
        if "exceeded quota" in message:
            found.append(Trouble("QuotaExceeded", f"{text}; {QUOTA_STEP}"))
        else:
            found.append(Trouble("PodCreationFailed", f"{text}; correct spec.template, or what refuses its pods"))
    found += [line.trouble for line in picture.lines if line.trouble is not None]
    return [*found, *picture.strays, *([picture.contested] if picture.contested else [])]
