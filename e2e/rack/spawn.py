"""Starting a long-running process inside the rack's cgroup tree, its output in a log."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rack import cgroups

# The process joins its group before it becomes the program: there is no moment at which it is outside of the tree.
_JOIN = 'for f in $RACK_CGROUPS; do echo $$ > "$f" || exit 97; done; unset RACK_CGROUPS; exec "$@"'


def spawn(argv: Sequence[str | Path], *, group: str, log: Path, keep_fds: Sequence[int] = ()) -> int:
    """Start argv in the cgroup `group` and return its process id; it outlives this process."""
    files = cgroups.create(group)
    with log.open("ab") as sink:
        process = subprocess.Popen(
            ["sh", "-c", _JOIN, "rack-spawn", *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            cwd="/",
            pass_fds=tuple(keep_fds),
            env={**_clean_environment(), "RACK_CGROUPS": " ".join(map(str, files))},
        )
    _children.append(process)
    return process.pid


# Popen objects that are never collected: a collected one warns that its child still runs, and ours always do.
_children: list[subprocess.Popen[bytes]] = []


def reap() -> None:
    """Collect those of our children that have ended (a library user would keep zombies otherwise)."""
    _children[:] = [c for c in _children if c.poll() is None]


def _clean_environment() -> dict[str, str]:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "HOME": "/root", "LANG": os.environ.get("LANG", "C.UTF-8")}
