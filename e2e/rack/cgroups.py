"""The rack's cgroup tree: every process of the rack is in it, whoever its parent is, and that is how teardown finds it.

    <hierarchy>/flashboot-rack/control          etcd, API server, controller manager, scheduler
    <hierarchy>/flashboot-rack/node-N/…         a node; the root of its cgroup namespace

cgroup v1 (each mounted hierarchy gets the tree) and v2 (one hierarchy). Version 2 forbids processes in a group that
gives controllers to its children, hence `init` and `outer` there (node_init.py, node.py).
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rack.errors import RackError
from rack.settings import CGROUP

_V1_FLAGS = {"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "noatime", "xattr", "clone_children", "none"}
_RMDIR_RETRIES, _RETRY_S = 100, 0.05  # a group stays busy for a moment after its last process died
_KILL_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup file system."""

    mount: Path
    version: int
    options: str  # how a node mounts the same one again, e.g. "cpu,cpuacct" or "none,name=systemd"


def hierarchies(mounts: str | None = None) -> list[Hierarchy]:
    """The hierarchies that carry controllers: all of v1, or the one of v2 when v1 is not mounted."""
    v1: dict[str, Hierarchy] = {}
    v2: list[Hierarchy] = []
    for line in (mounts if mounts is not None else Path("/proc/self/mounts").read_text()).splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            v2.append(Hierarchy(Path(where), 2, ""))
        elif kind == "cgroup":
            names = [
                o for o in options.split(",") if o not in _V1_FLAGS and not o.startswith(("release_agent", "seclabel"))
            ]
            named = [n for n in names if n.startswith("name=")]
            opts = ",".join(["none", *named]) if len(named) == len(names) else ",".join(names)
            v1.setdefault(opts, Hierarchy(Path(where), 1, opts))
    return list(v1.values()) or v2[:1]


def _roots() -> list[Path]:
    return [h.mount / CGROUP for h in hierarchies()]


def exists() -> bool:
    """Is there anything of a rack's cgroup tree?"""
    return any(r.is_dir() for r in _roots())


def create(group: str) -> list[Path]:
    """Make a group in every hierarchy and return its `cgroup.procs` files, for the process that is to join it."""
    files = []
    for h in hierarchies():
        where = h.mount
        for part in (CGROUP, group):
            if h.version == 2:
                _delegate(where)
            where = where / part
            where.mkdir(exist_ok=True)
            if (where / "cpuset.cpus").exists() and h.version == 1:
                for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new v1 group, and nothing may run then
                    if not (where / file).read_text().strip():
                        (where / file).write_text((where.parent / file).read_text())
        files.append(where / "cgroup.procs")
    return files


def _delegate(where: Path) -> None:
    wanted = (where / "cgroup.controllers").read_text().split()
    (where / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in wanted))


def pids(group: str = "") -> set[int]:
    """Every process in the tree, or in one group of it (in the host's numbers)."""
    found: set[int] = set()
    for directory in _directories(group):
        try:
            found |= {int(p) for p in (directory / "cgroup.procs").read_text().split()}
        except OSError:  # the group went away, or (ENODEV, EOPNOTSUPP) can hold no process
            continue
    found.discard(0)  # a process outside of our pid namespace
    return {p for p in found if not _is_zombie(p)}


def kill(group: str = "") -> None:
    """Kill every process of the tree or of one group, frozen ones too, and wait until they are gone."""
    deadline = time.monotonic() + _KILL_DEADLINE_S
    while True:
        for directory in _directories(group):
            for file, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                if (directory / file).exists():
                    _write_if_there(directory / file, value)  # a frozen v1 process dies only after the thaw
        left = pids(group)
        if not left:
            return
        for pid in left:
            _kill_if_there(pid)
        if time.monotonic() > deadline:
            names = ", ".join(f"{p} ({_comm(p)})" for p in sorted(left))
            raise RackError(f"processes of the rack do not die within {_KILL_DEADLINE_S:.0f} s: {names}")
        time.sleep(_RETRY_S)


def remove(group: str = "") -> None:
    """Remove the empty groups of the tree or below one group, deepest first."""
    for _ in range(_RMDIR_RETRIES):
        left = _directories(group)
        if not left:
            return
        for directory in left:
            try:
                directory.rmdir()
            except OSError:
                continue  # busy or gone: the next round sees
        time.sleep(_RETRY_S)
    raise RackError(f"cgroups that cannot be removed: {', '.join(map(str, _directories(group)))}")


def left() -> list[Path]:
    """What is there of the tree, for leak checks."""
    return _directories("")


def _directories(group: str) -> list[Path]:
    """All directories of the tree (or of one group), children before parents."""
    return [Path(d) for root in _roots() for d, _, _ in os.walk(root / group if group else root, topdown=False)]


def _write_if_there(file: Path, value: str) -> None:
    try:
        file.write_text(value)
    except FileNotFoundError:
        return


def _kill_if_there(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
