"""Work in a forked process that may end itself at any moment, as a crash would."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> int:
    """Exit status of a forked process: 9 where it ended itself, 0 where it came to the end."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:  # reached by an exception alone
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
