"""What the fresh process asks for, the same in the process that answers."""

from __future__ import annotations

from flashboot_agent.api import Request


def request(socket: str) -> Request:
    return Request(model="bench", revision="1", socket=socket)
