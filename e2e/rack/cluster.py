"""The rack as other programs use it: up, down, kubectl, and the faults that a test can make.

rack.up()                                 4 Ready nodes, the kubeconfig in build/rack/kubeconfig
rack.kubectl("get", "nodes")              standard output, or RackError with what kubectl said
rack.kill_node("node-2"); rack.boot_node("node-2")
rack.set_rate("node-1", 200)              Mbit/s, both directions; rack.set_link("node-1", up=False) pulls the cable
rack.down()
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rack import control, lock, machine, metrics, network, node, teardown
from rack.cgroups import pids
from rack.configs import kubeconfig
from rack.errors import RackError
from rack.pki import make_certificates, make_tokens, write_secret
from rack.settings import (
    API_URL,
    BIN,
    DEFAULT_LINK_MBIT,
    DEFAULT_NODES,
    KUBECONFIG,
    LOGS,
    MAX_NODES,
    MODELS,
    RACK_DIR,
    STATE,
    node_name,
)
from rack.shell import run
from setup_env.cache import Cache
from setup_env.controlplane import ControlPlane
from setup_env.controlplane import ensure as ensure_controlplane
from setup_env.images import ensure_store
from setup_env.progress import say

_SYSCTLS = {
    "net/ipv4/ip_forward": 1,
    "fs/inotify/max_user_instances": 8192,
    "fs/inotify/max_user_watches": 1048576,
}
_READY_DEADLINE_S = 120.0


def up(nodes: int = DEFAULT_NODES, link_mbit: float = DEFAULT_LINK_MBIT) -> Path:
    """Bring up a fresh rack and return its kubeconfig's path once all nodes are Ready.

    Whatever rack of this checkout is there is taken down first. Raises RackError (with the log to look
    into) when something does not come up, or when another checkout's rack runs on this machine.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise RackError(f"a rack has 1 to {MAX_NODES} nodes, not {nodes}")
    machine.require()
    cache = Cache()
    with lock.exclusive():
        _refuse_foreign_rack()
        teardown.take_down()  # now, not when the images are built: a rack in use slows the build down a lot
    programs = ensure_controlplane(cache)
    store = ensure_store(cache)
    with lock.exclusive():
        _refuse_foreign_rack()
        teardown.take_down()
        held = cache.hold(store.parent)
        try:
            _start(programs, store, [node_name(n) for n in range(1, nodes + 1)], link_mbit, held)
        finally:
            os.close(held)  # etcd and the nodes have copies of their own
    return KUBECONFIG


def down() -> None:
    """Take down whatever rack is on this machine; afterwards nothing of it is left, or RackError says what."""
    if os.geteuid() != 0:
        raise RackError("root is needed to take a rack down: try sudo")
    with lock.exclusive():
        teardown.take_down()


def is_up() -> bool:
    """Does this checkout's rack have running processes?"""
    return lock.owner() == RACK_DIR and bool(pids("control"))


def node_names() -> list[str]:
    """The nodes of this checkout's rack; RackError when it is not up."""
    return _description().nodes


def kubectl(*args: str, stdin: str | None = None, timeout_s: float = 60, check: bool = True) -> str:
    """Run kubectl against the rack and return its standard output.

    Raises RackError with kubectl's own words when it fails and `check` is on, or when it takes too long.
    """
    program = BIN / "kubectl"
    if not program.exists():
        raise RackError("the rack is not up (no kubectl in build/rack/bin): make rack-up")
    return run(program, f"--kubeconfig={KUBECONFIG}", *args, stdin=stdin, timeout_s=timeout_s, check=check)


def kill_node(name: str) -> None:
    """A power cut: every process of the node ends at once."""
    node.kill(name)


def boot_node(name: str) -> None:
    """Start a node that was killed; its disk is as it was. Returns before it is Ready (wait_ready waits)."""
    description = _description()
    if pids(name):
        raise RackError(f"{name} is running already")
    held = Cache().hold(Path(description.store).parent)
    try:
        node.boot(
            name,
            all_nodes=description.nodes,
            state=STATE,
            logs=LOGS,
            link_mbit=description.link_mbit,
            keep_fds=[held],
        )
    finally:
        os.close(held)


def set_rate(name: str, link_mbit: float) -> None:
    """Limit both directions of the node's link to so many Mbit/s; 0 lifts the limit. A boot sets the rack's rate."""
    network.set_rate(name, node.pid_of(name), link_mbit)


def set_link(name: str, *, up: bool) -> None:
    """Pull (up=False) or plug the node's cable."""
    network.set_link(name, up=up)


def wait_ready(names: list[str], timeout_s: float = _READY_DEADLINE_S) -> None:
    """Until all these nodes are Ready; RackError names the ones that are not, with their logs."""

    def not_ready() -> str:
        listed = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
        ready = {n["metadata"]["name"] for n in listed if _is_ready(n)}
        return ", ".join(f"{n} (see {LOGS / n}/kubelet.log)" for n in names if n not in ready)

    _wait(not_ready, timeout_s, "nodes that are not Ready")


def _is_ready(listed: dict[str, dict[str, list[dict[str, str]]]]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in listed["status"]["conditions"])


def _wait(missing: Callable[[], str], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while left := missing():
        if time.monotonic() > deadline:
            raise RackError(f"{what} after {timeout_s:.0f} s: {left}")
        time.sleep(0.2)


@dataclass(frozen=True)
class _Description:
    """What `up` writes down for later commands."""

    nodes: list[str]
    link_mbit: float
    store: str


def _description() -> _Description:
    try:
        return _Description(**json.loads((STATE / "rack.json").read_text()))
    except FileNotFoundError as e:
        raise RackError("no rack of this checkout is up: make rack-up") from e


def _refuse_foreign_rack() -> None:
    owner = lock.owner()
    if owner is not None and owner != RACK_DIR and pids():
        raise RackError(
            f"a rack of another checkout runs on this machine ({owner}); take it down with `make rack-down`"
        )


def _start(programs: ControlPlane, store: Path, names: list[str], link_mbit: float, held: int) -> None:
    lock.set_owner(RACK_DIR)
    STATE.mkdir(parents=True)
    LOGS.mkdir(exist_ok=True)
    MODELS.mkdir(exist_ok=True)
    _link_programs(programs)
    (STATE / "rack.json").write_text(json.dumps(asdict(_Description(names, link_mbit, str(store)))))
    teardown.remember_machine(STATE, _SYSCTLS, node.MOUNT_POINTS)
    network.create_bridge()
    say("bridge up")
    make_certificates(STATE / "pki")
    tokens = make_tokens(STATE / "tokens.csv", names)
    for user, token in tokens.items():
        write_secret(STATE / f"{user}.kubeconfig", kubeconfig(STATE / "pki" / "ca.crt", token, user))
    write_secret(KUBECONFIG, (STATE / "admin.kubeconfig").read_text())
    say("certificates made")
    control.start_etcd(programs["etcd"], STATE, LOGS, [held])
    control.start_api_server(programs["kube-apiserver"], STATE, LOGS)
    node_programs = node.NodePrograms(programs["kubelet"], programs["kube-proxy"])
    for name in names:
        node.prepare(name, STATE, LOGS, store, node_programs)
    control.wait_api_ready(STATE, LOGS, tokens["admin"])
    say(f"API server ready at {API_URL}")
    control.start_controllers(programs["kube-controller-manager"], programs["kube-scheduler"], STATE, LOGS)
    metrics.start(programs["metrics-server"], STATE, LOGS)
    for name in names:
        node.boot(name, all_nodes=names, state=STATE, logs=LOGS, link_mbit=link_mbit, keep_fds=[held])
    say(f"{len(names)} nodes booted, waiting until they are Ready")
    wait_ready(names)
    kubectl("apply", "--server-side", "-f", "-", stdin=metrics.objects(STATE / "pki" / "ca.crt"))

    def no_account() -> str:  # pods of the default namespace are refused before it has its service account
        found = kubectl("get", "serviceaccount", "default", "--ignore-not-found", "-o", "name")
        return "" if found.strip() else "the service account `default`"

    _wait(no_account, _READY_DEADLINE_S, "still missing")
    say(f"{len(names)} nodes Ready")


def _link_programs(programs: ControlPlane) -> None:
    BIN.mkdir(parents=True, exist_ok=True)
    for name in ("kubectl", "helm"):
        (BIN / name).unlink(missing_ok=True)
        (BIN / name).symlink_to(programs[name])
