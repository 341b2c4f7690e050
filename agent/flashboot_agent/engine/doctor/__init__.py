"""`flashboot doctor`: is everything in place where an engine shall run? Looks at the image, the pod, a command line.

It changes nothing: what it writes is its own memory, and the agent is asked who it is without a hello. A check never
ends the examination: whatever it raises is what was found.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashboot_agent.engine.doctor import command, image, pod
from flashboot_agent.engine.doctor.findings import Check, Finding, run
from flashboot_agent.wire.attach_socket import MOUNT_PATH, SOCKET_NAME


def examine(arguments: Sequence[str], *, socket: str | None, in_pod: bool) -> list[Finding]:
    """Run the checks in order. `arguments`: of the engine, may be empty; `socket`: instead of what they say."""
    path = socket or command.socket_of(arguments) or f"{MOUNT_PATH}/{SOCKET_NAME}"
    checks: list[Check] = [*image.CHECKS]
    if in_pod:
        checks += pod.checks(path)
    checks += command.checks(arguments)
    return [run(check) for check in checks]


__all__ = ["Finding", "examine"]
