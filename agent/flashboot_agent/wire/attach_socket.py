"""Where the attach protocol (wire/attach.py) is spoken, how much one message carries, and what every attach says.

Without pydantic, and small: it is imported while an engine waits. tests/unit/test_engine_messages.py holds what is
written here to the models.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flashboot_agent.wire.place import Place

PROTOCOL: Final = 1
SOCKET_NAME: Final = "agent.sock"
MOUNT_PATH: Final = "/flashboot"
MAX_MESSAGE: Final = 65536
"""Bytes of one packet; Linux refuses packets above the socket's send buffer (212,992 by default)."""

ATTACHED: Final = b'{"type":"attached"}'


def hello(place: Place, identity: dict[str, str], *, attached: bool) -> bytes:
    """Raises ValueError for a name or value that UTF-8 can't carry."""
    return message(type="hello", protocol=PROTOCOL, place=place.fields(), identity=identity, attached=attached)


def message(**fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
