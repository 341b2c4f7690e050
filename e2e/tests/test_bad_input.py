"""What bad input gets: a message that names the field or the file, nothing hot, and recovery once it is put right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import checkpoints, light
from kit.checkpoints import TINY
from kit.eventually import NotYet, eventually
from kit.world import ENGINE_SECONDS, NAMESPACE, Mrep, World, manifest, restarts
from rack.settings import MODELS

INDEX = "model.safetensors.index.json"
CALM_RESTARTS = 3
"""An engine that waits does not restart at all; kubelet's back-off would allow about one in the time of this test."""


def changed(path: str, value: Any) -> dict[str, Any]:
    """A valid manifest with one field set, by its dotted path; None removes it."""
    document = manifest("invalid", "/models/none")
    *parents, last = path.split(".")
    place = document
    for key in parents:
        place = place.setdefault(key, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("spec.model", None),
        ("spec.model.name", ""),
        ("spec.model.revision", None),
        ("spec.replicas", -1),
        ("spec.replicas", "four"),
        ("spec.transfer.onMismatch", "Sometimes"),
        ("spec.transfer.cloneTimeoutSeconds", 0),
        ("spec.group.size", 2),
        ("spec.parallelism.expert", 8),
        ("spec.template.spec.containers", []),
    ],
)
def test_the_api_server_names_the_wrong_field(world: World, field: str, value: Any) -> None:
    refusal = world.kubectl.refusal(json.dumps(changed(field, value)))
    assert field in refusal or field.rsplit(".", 1)[1] in refusal, refusal


def test_an_unknown_field_is_named(world: World) -> None:
    refusal = world.kubectl.refusal(json.dumps(changed("spec.replica", 2)))
    assert "spec.replica" in refusal


def test_the_model_is_immutable(world: World) -> None:
    document = manifest("immutable", "/models/none", replicas=0)
    world.apply(document)
    document["spec"]["model"]["name"] = "another/model"
    refusal = world.kubectl.refusal(json.dumps(document))
    assert "spec.model.name" in refusal
    assert "immutable" in refusal
    Mrep(world, "immutable").delete()


def told(world: World, namespace: str, name: str, reason: str, *words: str) -> None:
    """Until the condition Degraded and an Event say it."""

    def probe() -> None:
        mrep = world.kubectl.json("get", "modelreplica", name, "-n", namespace)
        said = {c["type"]: c for c in mrep.get("status", {}).get("conditions", [])}
        degraded = said.get("Degraded", {})
        if degraded.get("reason") != reason or not all(word in degraded["message"] for word in words):
            raise NotYet(str(degraded))
        events = world.kubectl.items("events.events.k8s.io", "-n", namespace)
        if not any(e["reason"] == reason and e["regarding"]["name"] == name for e in events):
            raise NotYet("the condition is there, the Event is not")

    eventually(probe, f"{name} to be Degraded with {reason} naming {words}", 60)


def test_what_the_nodes_and_controllers_refuse_is_told(world: World) -> None:
    """An image, a node and a quota: in the words of kubelet, the scheduler and the API server, with what to do."""
    image, nowhere = light.manifest("no-image"), light.manifest("nowhere")
    image["spec"]["template"]["spec"]["containers"][0] |= {"image": "flashboot/none:none", "imagePullPolicy": "Never"}
    nowhere["spec"]["template"]["spec"]["nodeSelector"] = {"e2e.flashboot.io/none": "such"}
    crowded = light.manifest("crowded")
    crowded["metadata"]["namespace"] = "crowded"
    hard = {"kind": "ResourceQuota", "apiVersion": "v1", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    light.prepare(world)
    with world.kubectl.namespace("crowded"):
        world.kubectl("apply", "-n", "crowded", "-f", "-", stdin=json.dumps(hard))
        made = [Mrep.create(world, document) for document in (image, nowhere)]
        world.apply(crowded)
        told(world, NAMESPACE, "no-image", "ImagePullFailed", "flashboot/none:none", "correct the image's name")
        told(world, NAMESPACE, "nowhere", "PodUnschedulable", "node affinity/selector", "add a node that fits")
        told(world, "crowded", "crowded", "QuotaExceeded", "exceeded quota: none", "raise the ResourceQuota")
        for mrep in made:
            mrep.delete()
        world.kubectl("delete", "modelreplica", "crowded", "-n", "crowded", "--wait=true")


class Troubled:
    """A ModelReplica whose checkpoint is broken in one way."""

    def __init__(self, name: str, reason: str, named: str) -> None:
        self.name = name
        self.reason = reason
        self.named = named
        self.folder: Path = MODELS / name
        self.mrep: Mrep | None = None

    def break_it(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.name == "no-such-model":
            return
        shutil.copytree(MODELS / TINY, self.folder)
        shards = json.loads((self.folder / INDEX).read_text())["weight_map"]
        shard = self.folder / sorted(set(shards.values()))[-1]
        self.named = shard.name
        if self.name == "truncated-shard":
            whole = shard.read_bytes()
            shard.write_bytes(whole[: len(whole) // 2])
        else:
            shard.unlink()

    def put_right(self) -> None:
        """As an operator of a cluster would: copy the good files over the bad ones, each in one step."""
        self.folder.mkdir(exist_ok=True)
        for good in sorted((MODELS / TINY).iterdir(), key=lambda path: path.name == "config.json"):
            fresh = self.folder / f".{good.name}"
            shutil.copyfile(good, fresh)
            fresh.rename(self.folder / good.name)

    def wait_shown(self) -> None:
        """Until both conditions tell it."""
        mrep = self.mrep
        assert mrep is not None

        def probe() -> None:
            degraded, ready = mrep.condition("Degraded"), mrep.condition("Ready")
            if (degraded["status"], degraded["reason"], ready["status"]) != ("True", self.reason, "False"):
                raise NotYet(f"Degraded={degraded}, Ready={ready}")
            if self.named not in degraded["message"]:
                raise NotYet(f"the message does not name {self.named}: {degraded['message']}")

        eventually(probe, f"{self.name} to be Degraded with {self.reason} naming {self.named}", ENGINE_SECONDS)


@pytest.fixture(scope="module")
def troubled(world: World) -> Iterator[list[Troubled]]:
    checkpoints.ensure(TINY)
    cases = [
        Troubled("no-such-model", "CheckpointMissing", "no-such-model"),
        Troubled("truncated-shard", "CheckpointTruncated", ""),
        Troubled("absent-shard", "CheckpointIndexMissingShard", ""),
    ]
    for case in cases:
        case.break_it()
        case.mrep = Mrep.create(world, manifest(case.name, f"/models/{case.name}"))
    yield cases
    for case in cases:
        if case.mrep is not None:
            case.mrep.delete()
        shutil.rmtree(case.folder, ignore_errors=True)


@pytest.mark.timeout(420)
def test_a_broken_checkpoint_is_told_with_its_file(troubled: list[Troubled]) -> None:
    for case in troubled:
        case.wait_shown()


@pytest.mark.timeout(420)
def test_it_recovers_by_itself_and_nothing_was_hot(troubled: list[Troubled]) -> None:
    counts = {}
    for case in troubled:
        case.put_right()
    for case in troubled:
        assert case.mrep is not None
        case.mrep.wait_ready(1)
        assert case.mrep.condition("Degraded")["status"] == "False"
        counts[case.name] = sum(restarts(pod) for pod in case.mrep.pods())
    assert all(count <= CALM_RESTARTS for count in counts.values()), counts
