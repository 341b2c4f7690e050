"""The rack itself: it comes up whole, behaves like a cluster, and leaves nothing, whoever is killed when.

Named to run first: these tests take racks up and down themselves, the others share one. What is left is looked for
twice: by the rack's own leak check, and by comparing the machine with what it was, knowing no name of the rack's.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import rack
from kit.eventually import NotYet, eventually
from rack import cgroups

E2E = Path(__file__).resolve().parents[1]
IMAGE = "docker.io/flashboot/agent:dev"
RACK_TIMEOUT_S = 3600  # the first `up` on a machine builds everything
pytestmark = pytest.mark.timeout(1200)  # a source that changes meanwhile makes `up` build images anew


def machine() -> dict[str, set[str]]:
    """What a leaky cluster leaves behind, as sets of words."""

    def words(*argv: str) -> set[str]:
        return set(subprocess.run(argv, text=True, capture_output=True, check=True).stdout.splitlines())

    groups = [d for h in cgroups.hierarchies() for d in h.mount.iterdir() if d.is_dir()]
    return {
        "links": {f"{link['ifname']}" for link in json.loads("".join(words("ip", "-j", "link")))},
        "routes": words("ip", "route"),
        "tables": words("nft", "list", "tables"),
        "named network namespaces": words("ip", "netns", "list"),
        "mounts": {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()},
        "cgroups": {str(g) for g in groups},
        "forwarding": {Path("/proc/sys/net/ipv4/ip_forward").read_text()},
        "programs": {p for p in map(program, Path("/proc").glob("[0-9]*")) if p in PROGRAMS},
    }


PROGRAMS = {
    "etcd", "kube-apiserver", "kube-controller", "kube-scheduler", "metrics-server", "kubelet", "kube-proxy",
    "containerd-shim",
}  # fmt: skip


def program(process: Path) -> str:
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return "" if state == "Z" else (process / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture(scope="module")
def before() -> Iterator[dict[str, set[str]]]:
    rack.down()
    yield machine()
    rack.down()


@pytest.fixture
def cluster(before: dict[str, set[str]]) -> None:
    """A rack, the one that is up if there is one."""
    if not rack.is_up():
        rack.up()


def assert_nothing_left(before: dict[str, set[str]]) -> None:
    assert rack.leftovers() == []
    now = machine()
    assert {kind: now[kind] - before[kind] for kind in before} == {kind: set() for kind in before}


def run_pod(name: str, node: str, code: str) -> str:
    """Start Python code in a pod on a node and return the pod's address once it is Ready."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "command": ["python", "-uc", code],
                    "volumeMounts": [{"name": "models", "mountPath": "/srv/models", "readOnly": True}],
                }
            ],
            "volumes": [{"name": "models", "hostPath": {"path": "/srv/models", "type": "Directory"}}],
        },
    }
    rack.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    rack.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s", timeout_s=70)
    return rack.kubectl("get", "pod", name, "-o", "jsonpath={.status.podIP}")


SERVE = "print('serving'); import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)"


@pytest.mark.timeout(RACK_TIMEOUT_S)
def test_four_nodes_are_ready(cluster: None) -> None:
    listed = json.loads(rack.kubectl("get", "nodes", "-o", "json"))["items"]
    assert sorted(n["metadata"]["name"] for n in listed) == rack.node_names() == [f"node-{i}" for i in range(1, 5)]
    assert {n["metadata"]["labels"]["nvidia.com/gpu.clique"] for n in listed} == {"rack-0.0"}
    assert rack.KUBECONFIG.stat().st_mode & 0o777 == 0o600


def test_pods_are_reached_from_the_host_and_by_kubectl(cluster: None) -> None:
    (rack.MODELS / "rack-test").write_text("seen from inside")
    address = run_pod("server", "node-1", SERVE)

    def read() -> bytes:  # the container is Ready as soon as Python starts, which is before it listens
        try:
            with urllib.request.urlopen(f"http://{address}:8000/srv/models/rack-test", timeout=10) as answer:
                return bytes(answer.read())
        except urllib.error.URLError as error:
            raise NotYet(str(error)) from error

    assert eventually(read, "the pod's server to answer", 60) == b"seen from inside"
    assert "serving" in rack.kubectl("logs", "server")
    assert "seen from inside" in rack.kubectl("exec", "server", "--", "cat", "/srv/models/rack-test")
    with subprocess.Popen(
        [rack.BIN / "kubectl", f"--kubeconfig={rack.KUBECONFIG}", "port-forward", "pod/server", ":8000"],
        stdout=subprocess.PIPE,
        text=True,
    ) as forward:
        assert forward.stdout is not None
        port = int(forward.stdout.readline().split(" -> ")[0].rpartition(":")[2])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/srv/models/rack-test", timeout=10) as answer:
            assert answer.read() == b"seen from inside"
        forward.terminate()
    (rack.MODELS / "rack-test").unlink()


def test_links_between_nodes_carry_what_was_set(cluster: None) -> None:
    receiver = (
        "import socket,time; s=socket.create_server(('',9000)); print('up'); c,_=s.accept(); t=time.time(); n=0\n"
        "while b:=c.recv(1<<20): n+=len(b)\n"
        "print(int(n*8/(time.time()-t)/1e6)); time.sleep(1000)"
    )
    address = run_pod("receiver", "node-2", receiver)
    rack.set_rate("node-2", 200)
    sender = (
        f"import socket,time; s=socket.create_connection(('{address}',9000)); e=time.time()+3\n"
        "while time.time()<e: s.sendall(bytes(1<<20))\n"
        "s.close(); time.sleep(1000)"
    )
    run_pod("sender", "node-3", sender)

    def measured() -> int:
        lines = rack.kubectl("logs", "receiver").split()
        if len(lines) != 2:
            raise NotYet(f"it said {lines}")
        return int(lines[1])

    rate = eventually(measured, "the receiver's measurement", 60)
    rack.set_rate("node-2", 1000)
    assert 150 < rate <= 215


def test_a_node_is_drained(cluster: None) -> None:
    run_pod("to-go", "node-4", SERVE)
    rack.kubectl("drain", "node-4", "--force", "--ignore-daemonsets", "--timeout=60s", timeout_s=70)
    assert rack.kubectl("get", "pod", "to-go", "--ignore-not-found") == ""
    rack.kubectl("uncordon", "node-4")


def test_a_node_loses_power_and_comes_back(cluster: None) -> None:
    rack.kill_node("node-3")

    def not_ready() -> None:
        status = rack.kubectl("get", "node", "node-3", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}")
        if status == "True":
            raise NotYet("it is Ready")

    eventually(not_ready, "node-3 to be NotReady", 60)
    rack.boot_node("node-3")
    rack.wait_ready(["node-3"], timeout_s=60)
    run_pod("after-boot", "node-3", SERVE)


def test_after_kills_down_leaves_nothing(cluster: None, before: dict[str, set[str]]) -> None:
    os.kill(rack.pid_of("node-2"), signal.SIGKILL)
    api_servers = [p for p in cgroups.pids("control") if program(Path(f"/proc/{p}")) == "kube-apiserver"]
    assert len(api_servers) == 1
    os.kill(api_servers[0], signal.SIGKILL)
    rack.down()
    assert_nothing_left(before)


@pytest.mark.parametrize("moment", ["pki", "node-1", "node-3"])
def test_up_killed_half_way_leaves_nothing_after_down(moment: str, before: dict[str, set[str]]) -> None:
    state = E2E.parent / "build" / "rack" / "state"

    def reached() -> None:
        if not (state / moment).exists():
            raise NotYet("it is not there")

    with subprocess.Popen(
        [sys.executable, "-m", "rack", "up"], cwd=E2E, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        eventually(reached, f"{moment} of a starting rack", 900, every=0.1)
        process.kill()
    rack.down()
    assert_nothing_left(before)


def test_up_replaces_a_rack_that_is_up(before: dict[str, set[str]]) -> None:
    rack.up(nodes=1)
    first = rack.pid_of("node-1")
    rack.up(nodes=2)
    assert rack.pid_of("node-1") != first
    assert rack.node_names() == ["node-1", "node-2"]
    rack.down()
    assert_nothing_left(before)
