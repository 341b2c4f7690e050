"""A real autoscaler with a real metrics server scales a ModelReplica by its load; then to zero, and back from copies.

One story with light engines: every chapter leaves the state that the next one starts from.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit import light
from kit.errors import CommandFailed, KitError
from kit.eventually import NotYet, eventually
from kit.world import NAMESPACE, Mrep, World
from rack.settings import LOGS

STORY = True
NAME = "autoscaled"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "hpa.yaml"
MOST = 3
LOAD_SECONDS = 90.0
"""After that the load ends by itself, whatever became of the test."""
OPERATOR = "system:serviceaccount:flashboot-system:flashboot-operator"


@pytest.fixture(scope="module")
def mrep(world: World) -> Iterator[Mrep]:
    """Without `replicas` in its manifest, and with two copies that outlive the pods."""
    light.prepare(world)
    document = light.manifest(NAME, None)
    document["spec"]["residency"] = {"hostCopies": 2, "hostTTLSeconds": 600}
    made = Mrep.create(world, document)
    yield made
    made.delete()


@contextmanager
def load(world: World, pod: str) -> Iterator[None]:
    """A client that keeps a third of a core busy in one pod, one request after the other."""
    over = threading.Event()
    end = time.monotonic() + LOAD_SECONDS

    def client() -> None:
        while not over.wait(0.2) and time.monotonic() < end:
            try:
                world.api.pod(NAMESPACE, pod, light.PORT, "/work", body=0.1)
            except KitError:  # the pod goes, or answers late: a client's lot, and not what this is about
                continue

    thread = threading.Thread(target=client, name="load")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def hpa() -> dict[str, Any]:
    """The example, for this ModelReplica, and with less patience once the load has gone."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"] = {"name": NAME, "namespace": NAMESPACE}
    document["spec"]["scaleTargetRef"]["name"] = NAME
    document["spec"]["maxReplicas"] = MOST
    document["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 5
    return document


def names(mrep: Mrep) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in mrep.pods())


def ways(mrep: Mrep) -> dict[str, str | None]:
    """Pod → how it came to its weights."""
    present = set(names(mrep))
    return {
        pod.name: rank.way
        for seen in mrep.world.observed().values()
        for pod in seen.pods
        for rank in pod.ranks
        if pod.name in present
    }


@pytest.mark.timeout(180)
def test_kubectl_top_says_what_pods_use(world: World, mrep: Mrep) -> None:
    mrep.wait_ready(1, light.SECONDS)
    assert mrep.get()["spec"]["replicas"] == 1, "an autoscaler needs a number to begin with"

    def quiet() -> None:
        try:
            said = world.kubectl("top", "pods", "-n", NAMESPACE, "--no-headers", "-l", f"app={NAME}")
        except CommandFailed as early:
            raise NotYet(early.stderr.strip()) from early
        if not said.strip():
            raise NotYet("it names no pod")
        name, cpu, memory = said.split()
        assert name in names(mrep)
        assert cpu.endswith("m"), said
        assert memory.endswith("Mi"), said
        if int(cpu[:-1]) > 20:
            raise NotYet(f"{cpu}, its start is still in the figure")

    eventually(quiet, "kubectl top to show an idle pod", 60, every=1)


@pytest.mark.timeout(240)
def test_an_autoscaler_scales_up_under_load_and_the_new_pods_clone(world: World, mrep: Mrep) -> None:
    (first,) = names(mrep)
    (total,) = light.sums(world, [first])
    world.apply(hpa())

    def scaled(to: int) -> None:
        found = world.api.get("horizontalpodautoscalers", NAME, NAMESPACE)
        wanted = mrep.get()["spec"]["replicas"]
        if not found.get("status", {}).get("currentMetrics") or wanted != to:
            raise NotYet(f"{wanted} replicas; {json.dumps(found.get('status', {}))}")

    eventually(lambda: scaled(1), "the autoscaler to see an idle replica", 30)
    with load(world, first):
        eventually(lambda: scaled(MOST), f"the autoscaler to want {MOST} replicas", 60)
        mrep.wait_ready(MOST, light.SECONDS)
    assert light.sums(world, names(mrep)) == {total}
    assert ways(mrep) == {name: "seed" if name == first else "clone" for name in names(mrep)}

    status = mrep.get()["status"]
    selected = world.api.items("pods", NAMESPACE, labels=status["selector"])
    assert len(selected) == status["replicas"] == MOST, "exactly one pod per replica"
    eventually(lambda: scaled(1), "the autoscaler to scale down without load", 60)
    world.kubectl("delete", "hpa", NAME, "-n", NAMESPACE)
    mrep.wait_ready(1, 60)


def test_the_number_was_the_autoscalers_alone(mrep: Mrep) -> None:
    """The operator wrote the object itself once: to give it a number when it had none."""
    managed = mrep.world.kubectl.json("get", "modelreplica", NAME, "-n", NAMESPACE, "--show-managed-fields")
    owners = {
        (entry["manager"], entry.get("subresource"))
        for entry in managed["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    }
    assert owners == {("kube-controller-manager", "scale")}, owners
    writes = []
    for line in (LOGS / "audit.log").read_text().splitlines()[:-1]:
        entry = json.loads(line)
        ref = entry.get("objectRef", {})
        written = entry["verb"] not in ("get", "list", "watch") and entry["responseStatus"]["code"] == 200
        itself = (ref.get("resource"), ref.get("name"), ref.get("subresource")) == ("modelreplicas", NAME, None)
        if written and itself and entry["user"]["username"] == OPERATOR:
            writes.append((entry["verb"], entry["requestReceivedTimestamp"]))
    assert len(writes) == 1, writes


@pytest.mark.timeout(300)
def test_to_zero_and_back_from_copies_without_loading_anything(world: World, mrep: Mrep) -> None:
    mrep.scale(2)
    mrep.wait_ready(2, light.SECONDS)
    (total,) = light.sums(world, names(mrep))
    digests = {arena.digest for arena in mrep.arenas().values()}
    mrep.scale(0)

    def copies() -> list[str]:
        status = mrep.get()["status"]
        kept = status.get("residency", {})
        if "until" not in kept or kept["copies"] != len(mrep.arenas()) or names(mrep):
            raise NotYet(f"{kept}, arenas on {sorted(mrep.arenas())}")
        ready = mrep.condition("Ready")
        assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero"), ready
        assert all(node in ready["message"] for node in kept["nodes"]), ready
        assert kept["until"] in ready["message"]
        return list(kept["nodes"])

    nodes = eventually(copies, "the status to say where copies stay, and until when", 60)
    assert 1 <= len(nodes) <= 2
    assert {arena.digest for arena in mrep.arenas().values()} == digests
    mrep.scale(2)
    mrep.wait_ready(2, light.SECONDS)
    assert light.sums(world, names(mrep)) == {total}
    assert set(ways(mrep).values()) == {"clone"}, "nothing was loaded"
    assert "until" not in mrep.get()["status"]["residency"]
