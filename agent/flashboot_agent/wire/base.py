"""What all wire models have in common: strictness, JSON names, bounded strings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, PlainSerializer, StringConstraints
from pydantic.alias_generators import to_camel

DNS_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"

Name = Annotated[str, StringConstraints(pattern=DNS_NAME)]
"""A Kubernetes object name."""

Uid = Annotated[str, StringConstraints(pattern=r"^[0-9a-f-]{8,64}$")]
"""A Kubernetes object UID."""

ArenaId = Annotated[str, StringConstraints(pattern=r"^arena-[0-9a-f]{32}$")]
"""Name of an arena: the same on every node that holds a copy (see core/identity.py)."""

Digest = Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64}|xxh3:[0-9a-f]{16})$")]
"""`sha256:` for identities and documents, `xxh3:` for arena bytes (see core/digest.py)."""

Text = Annotated[str, StringConstraints(max_length=4096)]
"""A message for people, bounded so that a peer cannot fill our status."""

Address = Annotated[str, StringConstraints(pattern=r"^(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:]+\]):\d{1,5}$")]
"""`ip:port` of an agent."""


def rfc3339(value: datetime) -> str:
    """UTC, in milliseconds."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Time = Annotated[AwareDatetime, PlainSerializer(rfc3339, return_type=str, when_used="json")]
"""RFC 3339, UTC, milliseconds on the wire."""


def now() -> datetime:
    """The wall clock in UTC, for stamps that people read; never for deadlines (those use a monotonic clock)."""
    return datetime.now(UTC)


class WireModel(BaseModel):
    """Base of all messages: immutable, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    def to_json(self) -> bytes:
        """The message as compact UTF-8 JSON with camelCase keys."""
        return self.model_dump_json(by_alias=True).encode()


def without_empty(message: dict[str, Any], *names: str) -> dict[str, Any]:
    """For fields that are left out while they are empty."""
    return {key: value for key, value in message.items() if key not in names or value}
