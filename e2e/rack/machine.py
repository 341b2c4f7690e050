"""Can this machine run a rack? All that is missing is said in one message, with the other way to get a cluster."""

import ipaddress
import json
import os
import subprocess
from pathlib import Path

from rack import cgroups
from rack.errors import RackError
from rack.settings import BRIDGE, NODE_RANGE, POD_RANGE, SERVICE_RANGE
from rack.shell import run
from setup_env.system import RACK_NEEDS, ensure_packages, missing_packages

_ELSEWHERE = (
    "Or use a cluster that you have: point KUBECONFIG at it, build the two images of ./Dockerfile, push them to where\n"
    "it pulls from, and `helm install flashboot charts/flashboot` with their names (see docs/rack.md)."
)


def require() -> None:
    """Raise RackError that lists everything which keeps a rack from running here."""
    missing = _missing()
    if missing:
        listed = "\n".join(f"  - {m}" for m in missing)
        raise RackError(f"This machine cannot run the rack:\n{listed}\n{_ELSEWHERE}")


def _missing() -> list[str]:
    if not Path("/proc/self/ns").is_dir():
        return ["Linux (the nodes are sets of Linux namespaces)"]
    if os.geteuid() != 0:
        found = ["root (the nodes are namespaces with mounts, links and cgroups of their own): try sudo"]
        packages = missing_packages(RACK_NEEDS)
        return [*found, f"Debian packages (root installs them by itself): {' '.join(packages)}"] if packages else found
    ensure_packages(RACK_NEEDS)
    found = []
    groups = cgroups.hierarchies()
    wanted = {"memory", "cpu", "pids"}
    have = {o for h in groups for o in h.options.split(",")} if groups and groups[0].version == 1 else wanted
    if not groups or not wanted <= have:
        found.append("cgroups with the controllers cpu, memory and pids, mounted under /sys/fs/cgroup")
    elif not all(os.access(h.mount, os.W_OK) for h in groups):
        found.append("writable cgroups (in a container: --privileged and a writable /sys/fs/cgroup)")
    unshared = ["unshare", "--net", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if subprocess.run(unshared, capture_output=True, check=False).returncode:
        found.append("the right to make namespaces and mounts (CAP_SYS_ADMIN)")
    if "overlay" not in Path("/proc/filesystems").read_text():
        run("modprobe", "overlay", check=False)
        if "overlay" not in Path("/proc/filesystems").read_text():
            found.append("the overlay file system in the kernel")
    found += [f"free addresses: {clash}" for clash in _clashes()]
    return found


def _clashes() -> list[str]:
    """Routes of this machine that the rack's fixed ranges would hide."""
    ours = [ipaddress.ip_network(n) for n in (NODE_RANGE, POD_RANGE, SERVICE_RANGE)]
    clashes = []
    for route in json.loads(run("ip", "-j", "-4", "route", "show") or "[]"):
        if route["dst"] == "default" or route.get("dev") == BRIDGE or route.get("type") == "blackhole":
            continue
        there = ipaddress.ip_network(route["dst"], strict=False)
        clashes += [f"{there} on {route.get('dev')} overlaps {o}" for o in ours if there.overlaps(o)]
    return clashes
