"""One node: its folder, its boot in namespaces of its own, its death.

The namespaces belong to the node's processes, so a node that is killed leaves nothing but its folder and its (empty)
cgroups. The folder persists over a kill and a boot, like a disk.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rack import cgroups, configs, network
from rack.errors import RackError
from rack.settings import CGROUP, CLIQUE, CLIQUE_LABEL, MODELS, node_ip, node_number
from rack.spawn import spawn

_INIT = Path(__file__).with_name("node_init.py")
_BOOT_DEADLINE_S = 10.0
_SNAPSHOTTER = "io.containerd.snapshotter.v1.overlayfs"
# folder of the node's "disk" → where its programs expect it
_BINDS = {
    "kubelet": "/var/lib/kubelet",
    "containerd": "/var/lib/containerd",
    "pod-logs": "/var/log/pods",
    "container-logs": "/var/log/containers",
    "cni-config": "/etc/cni/net.d",
    "cni-state": "/var/lib/cni",
}
MOUNT_POINTS = tuple(_BINDS.values())


@dataclass(frozen=True)
class NodePrograms:
    """What runs on a node, apart from containerd, which the system has."""

    kubelet: Path
    kube_proxy: Path


def prepare(name: str, state: Path, logs: Path, store: Path, programs: NodePrograms) -> None:
    """Write everything that the node reads at boot. `store` holds the unpacked images, shared by all nodes."""
    number, folder, log_folder = node_number(name), state / name, logs / name
    folder.mkdir()
    log_folder.mkdir(exist_ok=True)
    (folder / "cni-config").mkdir()
    (folder / "cni-config" / "10-rack.conflist").write_text(configs.cni(number))
    (folder / "containerd.toml").write_text(configs.containerd())
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (folder / "kubelet.json").write_text(configs.kubelet(state / "pki" / "ca.crt", folder))
    (folder / "proxy.json").write_text(configs.kube_proxy(state / "proxy.kubeconfig"))
    kubelet = [
        str(programs.kubelet),
        f"--config={folder / 'kubelet.json'}",
        f"--kubeconfig={state / f'{name}.kubeconfig'}",
        f"--hostname-override={name}",
        f"--node-ip={node_ip(number)}",
        f"--node-labels={CLIQUE_LABEL}={CLIQUE}",
    ]
    init = {
        "name": name,
        "logs": str(log_folder),
        "models": str(MODELS),
        "binds": [[str(folder / source), target] for source, target in _BINDS.items()],
        "read_only": _share_images(store, folder / "containerd"),
        "cgroups": [{**asdict(h), "mount": str(h.mount)} for h in cgroups.hierarchies()],
        "programs": {
            "containerd": ["containerd", "-c", str(folder / "containerd.toml")],
            "kubelet": kubelet,
            "kube-proxy": [
                str(programs.kube_proxy),
                f"--config={folder / 'proxy.json'}",
                f"--hostname-override={name}",
            ],
        },
    }
    (folder / "init.json").write_text(json.dumps(init, indent=2))


def _share_images(store: Path, containerd: Path) -> list[list[str]]:
    """The node's own copy of the two small databases; contents and unpacked layers are mounted read-only."""
    for database in ("io.containerd.metadata.v1.bolt/meta.db", f"{_SNAPSHOTTER}/metadata.db"):
        (containerd / database).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(store / database, containerd / database)
    shared = [f"{_SNAPSHOTTER}/snapshots/{s.name}" for s in (store / _SNAPSHOTTER / "snapshots").iterdir()]
    shared.append("io.containerd.content.v1.content/blobs")
    for path in shared:
        (containerd / path).mkdir(parents=True)
    return [[str(store / path), f"/var/lib/containerd/{path}"] for path in shared]


def boot(
    name: str, *, all_nodes: list[str], state: Path, logs: Path, link_mbit: float, keep_fds: Sequence[int] = ()
) -> None:
    """Start the node; returns when its network is wired, before its kubelet has registered."""
    namespaces = ["--net", "--mount", "--uts", "--ipc", "--pid", "--cgroup"]
    init = [sys.executable, str(_INIT), str(state / name / "init.json")]
    command = ["unshare", *namespaces, "--fork", "--kill-child", *init]
    pid = spawn(command, group=name, log=logs / name / "init.log", keep_fds=keep_fds)
    _wait_for_child(name, pid, logs)
    if cgroups.hierarchies()[0].version == 2:  # free the node's root group, see node_init.make_room_for_children
        cgroups.create("outer")[0].write_text(str(pid))
    network.wire(name, pid, all_nodes, link_mbit)


def _wait_for_child(name: str, pid: int, logs: Path) -> None:
    """Until `unshare` has made the namespaces and forked the node's first process."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + _BOOT_DEADLINE_S
    while True:
        try:
            if children.read_text().strip() and Path(f"/proc/{pid}/comm").read_text().strip() == "unshare":
                return
        except FileNotFoundError:
            pass  # ended: the message below names the log
        if time.monotonic() > deadline or not Path(f"/proc/{pid}").exists():
            raise RackError(f"{name} did not start; see {logs / name / 'init.log'}")
        time.sleep(0.01)


def pid_of(name: str) -> int:
    """The host's number of the node's first process; RackError when the node is not running."""
    node_number(name)
    for pid in sorted(cgroups.pids(name)):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
        if numbers[-1] == "1" and len(numbers) == 3 and os.fsencode(_INIT) in command:
            return pid
    raise RackError(f"{name} is not running (no process in the cgroup {CGROUP}/{name})")


def kill(name: str) -> None:
    """A power cut: every process of the node ends at once. Its cgroups go too, as they would in a reboot."""
    node_number(name)
    cgroups.kill(name)
    cgroups.remove(name)


def enter(name: str, argv: Sequence[str]) -> int:
    """Run a command in all of a running node's namespaces and return its exit status."""
    joined = ["nsenter", "-t", str(pid_of(name)), "-m", "-u", "-i", "-n", "-p", "-C", *argv]
    return subprocess.run(joined, check=False).returncode
