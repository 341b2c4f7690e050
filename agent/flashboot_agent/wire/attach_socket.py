"""Where the attach protocol (wire/attach.py) is spoken, and how much one message carries. Imports nothing."""

from __future__ import annotations

from typing import Final

PROTOCOL: Final = 1
SOCKET_NAME: Final = "agent.sock"
MOUNT_PATH: Final = "/flashboot"
MAX_MESSAGE: Final = 65536
"""Bytes of one packet; Linux refuses packets above the socket's send buffer (212,992 by default)."""
