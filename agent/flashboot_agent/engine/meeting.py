"""Where the engines of several pods meet (`--dist-init-addr`): wait until the first pod's name has an address.

The name comes a moment after the pod has its address, by the cluster's DNS. SGLang takes a name that it can't resolve
for a wrong argument in some modes, and waits in silence in others; here the wait has a deadline and says on whom.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from flashboot_agent.core.errors import DeadlineExceeded
from flashboot_agent.engine.deadlines import Deadlines
from flashboot_agent.engine.log import Patient

CHECK_SECONDS: Final = 0.5

Resolve = Callable[[str, None], Any]


def wait_for_name(
    arguments: Sequence[str],
    *,
    resolve: Resolve = socket.getaddrinfo,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return at once when the command line names no meeting point, or an address. Raises DeadlineExceeded."""
    host = meeting_host(arguments)
    if host is None or _is_address(host):
        return
    seconds = Deadlines.of().connect
    deadline = clock() + seconds
    who = f"pod {os.environ.get('POD_NAME') or socket.gethostname()}"
    patient = Patient(f"{who}: waiting for the first pod of its group")
    while True:
        try:
            resolve(host, None)
            return
        except OSError as error:
            patient.say(f"{host}: {error.strerror or error}")
            if clock() > deadline:
                raise DeadlineExceeded(
                    f"{who}: {host} has no address after {seconds:.0f} s ({error.strerror or error}); does the group's "
                    "first pod exist, is its Service there, and does the cluster's DNS answer?"
                ) from error
        pause(CHECK_SECONDS)


def meeting_host(arguments: Sequence[str]) -> str | None:
    """The host of `--dist-init-addr`, without brackets."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--dist-init-addr", default=None)
    try:
        known, _ = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError:
        return None  # an option without its value: SGLang's own parser says it better
    address: str | None = known.dist_init_addr
    return address.rpartition(":")[0].strip("[]") or None if address else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
