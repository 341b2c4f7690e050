"""What the operator wants of this node: fenced by epoch and revision, kept on disk, fresh for its time to live.

Kept on disk so that a restarted agent goes on fencing an operator that was replaced, and goes on working while the
operator is away. Loop side only; the snapshot is immutable.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from flashboot_agent.core.errors import StaleEpoch, WrongNode
from flashboot_agent.files import write_atomically
from flashboot_agent.logs import Log
from flashboot_agent.wire.base import Time, WireModel, now
from flashboot_agent.wire.desired import Accepted, Desired

log = Log(__name__)

FILE: Final = "desired.json"


class Kept(WireModel):
    """The file."""

    highest_epoch: int
    received_at: Time
    desired: Desired


class DesiredState:
    """The last accepted Desired and how old it is."""

    def __init__(self, node: str, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._path = folder / FILE
        self._clock = clock
        self._received = 0.0
        self.current: Desired | None = None
        self.epoch = 0
        """The highest that was ever seen."""

    @property
    def revision(self) -> int:
        return self.current.revision if self.current else 0

    @property
    def fresh(self) -> bool:
        return self.current is not None and self._clock() - self._received <= self.current.ttl_seconds

    def accept(self, desired: Desired) -> Accepted:
        """Take a new state, on disk first. The same again counts as fresh.

        Raises WrongNode or StaleEpoch, and changes nothing then."""
        if desired.node != self._node:
            raise WrongNode(f"this is node {self._node}; the desired state is {desired.node}'s")
        if desired.epoch < self.epoch:
            raise StaleEpoch(f"epoch {desired.epoch} is over; this node has seen {self.epoch}", self.epoch)
        if self.current and desired.epoch == self.current.epoch and desired.revision < self.current.revision:
            raise StaleEpoch(
                f"revision {desired.revision} of epoch {desired.epoch} is over; this node works on "
                f"{self.current.revision}",
                self.epoch,
            )
        self._save(Kept(highest_epoch=desired.epoch, received_at=now(), desired=desired))
        self.current, self.epoch, self._received = desired, desired.epoch, self._clock()
        return Accepted(epoch=desired.epoch, revision=desired.revision)

    def load(self, at: datetime) -> None:
        """After a restart; a file that can't be read is told in the log and counts as none."""
        try:
            kept = Kept.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            log.error("the last desired state can't be read", path=str(self._path), why=str(error))
            return
        if kept.desired.node != self._node:
            log.error("the last desired state is another node's", path=str(self._path), of=kept.desired.node)
            return
        age = max(0.0, (at - kept.received_at).total_seconds())
        self.current, self.epoch = kept.desired, kept.highest_epoch
        self._received = self._clock() - age

    def _save(self, kept: Kept) -> None:
        write_atomically(self._path, kept.to_json())


def error_text(error: ValidationError) -> str:
    """pydantic's complaints, one a line, with the field's path, bounded for a Problem."""
    lines = [
        f"{'.'.join(str(part) for part in detail['loc']) or 'body'}: {detail['msg']}"
        for detail in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return "; ".join(lines)[:4000] or json.dumps(str(error))[:4000]
