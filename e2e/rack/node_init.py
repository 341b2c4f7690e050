"""The first process of a node: makes its view of the machine, starts containerd, kubelet and kube-proxy, restarts them.

Runs as PID 1 of the node's namespaces with one argument, a JSON file written by node.py. It imports nothing of the
rack, so that a node needs no more than an interpreter. When it ends, the kernel ends everything on the node.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_NETWORK_DEADLINE_S = 20.0
_CONTAINERD_DEADLINE_S = 30.0
_RESTART_AFTER_S = 1.0
_CGROUPS = Path("/sys/fs/cgroup")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def make_mounts(config: dict[str, Any]) -> None:
    """Default paths, backed by the node's own folder; nothing of the node is seen from outside."""
    mount("--make-rprivate", "/")
    mount("-t", "proc", "proc", "/proc")
    for source, target in config["binds"]:
        Path(source).mkdir(parents=True, exist_ok=True)
        mount("--bind", source, target)
    for source, target in config["read_only"]:
        mount("--bind", source, target)
        mount("-o", "remount,bind,ro", target)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/srv")
    Path("/srv/models").mkdir()
    mount("--bind", config["models"], "/srv/models")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for name in ("flashboot", "containerd", "lock"):
        Path("/run", name).mkdir()
    mount("-t", "tmpfs", "-o", "mode=1777,size=4g", "tmpfs", "/dev/shm")
    make_cgroup_mounts(config["cgroups"])
    # kubelet's and containers' mounts must reach privileged pods (a CSI driver's reach kubelet) within this namespace.
    mount("--make-rshared", "/")


def make_cgroup_mounts(hierarchies: list[dict[str, Any]]) -> None:
    """The hierarchies again, now rooted at this node's group."""
    subprocess.run(["umount", "-l", str(_CGROUPS)], check=True)
    if hierarchies[0]["version"] == 2:
        mount("-t", "cgroup2", "cgroup2", _CGROUPS)
        make_room_for_children()
        return
    mount("-t", "tmpfs", "-o", "mode=755", "cgroup", _CGROUPS)
    for hierarchy in hierarchies:
        options = hierarchy["options"]
        where = _CGROUPS / options.removeprefix("none,").removeprefix("name=")
        where.mkdir()
        mount("-t", "cgroup", "-o", options, "cgroup", where)
        names = options.split(",")
        if len(names) > 1 and names[0] != "none":
            for name in names:
                (_CGROUPS / name).symlink_to(where.name)


def make_room_for_children() -> None:
    """cgroup v2: leave the root group, so that it may give its controllers to kubelet's groups."""
    (_CGROUPS / "init").mkdir(exist_ok=True)
    (_CGROUPS / "init" / "cgroup.procs").write_text(str(os.getpid()))
    wanted = " ".join(f"+{c}" for c in (_CGROUPS / "cgroup.controllers").read_text().split())
    deadline = time.monotonic() + _NETWORK_DEADLINE_S
    while True:  # the process that started us leaves a moment later (node.py moves it)
        try:
            (_CGROUPS / "cgroup.subtree_control").write_text(wanted)
        except OSError as e:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the node's root cgroup stays occupied: {e}") from e
            time.sleep(0.05)
        else:
            return


def wait_for_network() -> None:
    """Until the host has wired eth0 and set the default route."""
    deadline = time.monotonic() + _NETWORK_DEADLINE_S
    while "\t00000000\t" not in Path("/proc/net/route").read_text():
        if time.monotonic() > deadline:
            raise TimeoutError("no default route: the host did not wire this node")
        time.sleep(0.02)


class Daemons:
    """The node's programs; one that ends is started again after a second, as systemd would."""

    def __init__(self, programs: dict[str, list[str]], logs: Path) -> None:
        self._programs = programs
        self._logs = logs
        self._running: dict[int, str] = {}
        self._due: dict[str, float] = {}

    def start(self, name: str) -> None:
        with (self._logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(self._programs[name], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._running[child.pid] = name
        child.returncode = 0  # reaped by run() below, with everybody else's orphans

    def run(self) -> None:
        """Reap forever."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG if self._due else 0)
            except ChildProcessError:
                pid, status = 0, 0
            name = self._running.pop(pid, None)
            if name is not None:
                say(f"{name} ended ({os.waitstatus_to_exitcode(status)}), starting it again")
                self._due[name] = time.monotonic() + _RESTART_AFTER_S
            for due in [n for n, at in self._due.items() if at <= time.monotonic()]:
                del self._due[due]
                self.start(due)
            if pid == 0:
                time.sleep(0.1)


def wait_for_containerd() -> None:
    deadline = time.monotonic() + _CONTAINERD_DEADLINE_S
    while subprocess.run(["ctr", "version"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline:
            raise TimeoutError(f"containerd does not answer after {_CONTAINERD_DEADLINE_S:.0f} s")
        time.sleep(0.05)


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    subprocess.run(["hostname", config["name"]], check=True)
    make_mounts(config)
    wait_for_network()
    daemons = Daemons(config["programs"], Path(config["logs"]))
    daemons.start("containerd")
    wait_for_containerd()
    daemons.start("kubelet")
    daemons.start("kube-proxy")
    say("containerd, kubelet and kube-proxy started")
    daemons.run()


if __name__ == "__main__":
    main()
