"""Taking a rack down, whatever state it is in, and saying what is left of one.

Everything is found by its fixed name: the cgroup tree (all processes), the links, the routes, the nft table. Mounts
and network namespaces belong to processes and go with them.
"""

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from rack import cgroups, lock, network, spawn
from rack.errors import RackError
from rack.settings import KUBECONFIG, RACK_DIR, STATE
from rack.shell import run

_GONE_DEADLINE_S = 10.0


def take_down() -> None:
    """Remove everything that is left of any rack on this machine; raises RackError with what resists."""
    cgroups.kill()
    spawn.reap()
    network.remove_all()
    cgroups.remove()
    for rack_dir in {RACK_DIR, lock.owner() or RACK_DIR}:
        state = rack_dir / STATE.name
        _unmount_below(state)
        _restore_machine(state)
        shutil.rmtree(state, ignore_errors=True)
        (rack_dir / KUBECONFIG.name).unlink(missing_ok=True)
    lock.set_owner(None)
    deadline = time.monotonic() + _GONE_DEADLINE_S
    while found := leftovers():  # the kernel removes network namespaces a moment after their last process
        if time.monotonic() > deadline:
            raise RackError("left of the rack:\n  " + "\n  ".join(found))
        shutil.rmtree(STATE, ignore_errors=True)  # a child of a killed `up` may have written while it was removed
        time.sleep(0.05)


def leftovers() -> list[str]:
    """What there is of a rack on this machine, one line each; empty after `down`."""
    found = [f"process {p}" for p in sorted(cgroups.pids())]
    found += [f"cgroup {d}" for d in cgroups.left()]
    found += network.left()
    found += [f"mount {m}" for m in _mounts_below(STATE)]
    if STATE.exists():
        found.append(f"folder {STATE}")
    return found


def remember_machine(state: Path, sysctls: dict[str, int], folders: Iterable[str]) -> None:
    """Raise kernel settings to at least these and make mount points, after writing down how it was."""
    before = {name: Path("/proc/sys", name).read_text().strip() for name in sysctls}
    missing: list[str] = []
    for path in map(Path, folders):
        missing += [str(p) for p in [*reversed(path.parents), path] if not p.exists()]
    (state / "machine.json").write_text(json.dumps({"sysctls": before, "folders": missing}))
    for name, value in sysctls.items():
        if int(before[name]) < value:
            Path("/proc/sys", name).write_text(str(value))
    for folder in folders:
        Path(folder).mkdir(parents=True, exist_ok=True)


def _restore_machine(state: Path) -> None:
    file = state / "machine.json"
    try:
        remembered = json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):  # killed before anything was changed
        return
    for name, value in remembered["sysctls"].items():
        Path("/proc/sys", name).write_text(value)
    for folder in reversed(remembered["folders"]):
        try:
            Path(folder).rmdir()
        except OSError:
            continue  # gone, or somebody uses it


def _mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [m for m in (line.split()[1] for line in lines) if m.startswith(f"{folder}/")]


def _unmount_below(folder: Path) -> None:
    """None are expected: they live in the nodes' namespaces."""
    for where in reversed(_mounts_below(folder)):
        run("umount", "-l", where)
