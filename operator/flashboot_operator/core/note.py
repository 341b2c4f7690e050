"""An Event as a value, and its name, which makes a repeated one fall together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol

RECENT = timedelta(minutes=10)
"""What happened before that is not told any more."""


class Named(Protocol):
    """Whom Events are about."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


@dataclass(frozen=True)
class Note:
    kind: Literal["Normal", "Warning"]
    reason: str
    """An EventReason, or the reason of a condition that says what is wrong."""
    action: str
    message: str
    subject: str
    """What makes two notes the same."""
    occasion: str = ""
    """What makes two notes two occurrences of the same."""

    def name(self, owner: Named) -> str:
        digest = hashlib.sha256(f"{owner.uid}|{self.reason}|{self.subject}".encode()).hexdigest()[:16]
        return f"{owner.name[:200]}.{digest}"
