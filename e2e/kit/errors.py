"""The one error that the kit raises: what was done, what was expected, what came instead."""

from __future__ import annotations


class KitError(Exception):
    """`str()` is a message for people and ends with the way out where there is one."""


class CommandFailed(KitError):
    """A command ended with a status other than 0, or not at all."""

    def __init__(self, command: str, status: int | None, stderr: str) -> None:
        said = stderr.strip() or "nothing"
        how = "did not end in time" if status is None else f"ended with status {status}"
        super().__init__(f"`{command}` {how}; it said: {said}")
        self.status = status
        self.stderr = stderr


class DeadlineExceeded(KitError):
    """A condition did not come true in time."""
