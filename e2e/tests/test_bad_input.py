"""What bad input gets: a message that names the field or the file, nothing hot, and recovery once it is put right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import checkpoints, light
from kit.checkpoints import TINY
from kit.eventually import NotYet, eventually
from kit.world import ENGINE_SECONDS, NAMESPACE, Mrep, World, manifest, restarts
from rack.settings import MODELS

pytestmark = pytest.mark.usefixtures("broken")
"""All of them: its engine starts to import SGLang while the others are tested."""
INDEX = "model.safetensors.index.json"


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
        mrep = world.api.get("modelreplicas", name, namespace)
        said = {c["type"]: c for c in mrep.get("status", {}).get("conditions", [])}
        degraded = said.get("Degraded", {})
        if degraded.get("reason") != reason or not all(word in degraded["message"] for word in words):
            raise NotYet(str(degraded))
        events = world.api.items("events", namespace)
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


FOLDER = MODELS / "broken"
"""What the engine is told to load; the stories change what it is, in one step each."""


def replace(spoil: Callable[[Path], None]) -> None:
    """A good checkpoint, spoiled, takes the place of what was there. No engine sees it half made or still good."""
    fresh, old = FOLDER.with_name("broken-next"), FOLDER.with_name("broken-before")
    shutil.copytree(MODELS / TINY, fresh)
    spoil(last_shard(fresh))
    if FOLDER.exists():
        FOLDER.rename(old)
    fresh.rename(FOLDER)
    shutil.rmtree(old, ignore_errors=True)


def last_shard(folder: Path) -> Path:
    shards: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return folder / max(shards.values())


def truncate(shard: Path) -> None:
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])


@pytest.fixture(scope="module")
def broken(world: World) -> Iterator[Mrep]:
    """One engine, which lives through every trouble of its checkpoint. There is no folder yet."""
    checkpoints.ensure(TINY)
    for left in MODELS.glob("broken*"):
        shutil.rmtree(left)
    mrep = Mrep.create(world, manifest("broken", f"/models/{FOLDER.name}"))
    yield mrep
    mrep.delete()
    for left in MODELS.glob("broken*"):
        shutil.rmtree(left)


def wait_shown(mrep: Mrep, reason: str, named: str) -> None:
    """Until both conditions tell it."""

    def probe() -> None:
        degraded, ready = mrep.condition("Degraded"), mrep.condition("Ready")
        if (degraded["status"], degraded["reason"], ready["status"]) != ("True", reason, "False"):
            raise NotYet(f"Degraded={degraded}, Ready={ready}")
        if named not in degraded["message"]:
            raise NotYet(f"the message does not name {named}: {degraded['message']}")

    eventually(probe, f"{mrep.name} to be Degraded with {reason} naming {named}", ENGINE_SECONDS)


@pytest.mark.timeout(ENGINE_SECONDS + 60)
def test_a_checkpoint_that_is_missing_is_told_with_its_folder(broken: Mrep) -> None:
    wait_shown(broken, "CheckpointMissing", FOLDER.name)


@pytest.mark.timeout(ENGINE_SECONDS + 60)
@pytest.mark.parametrize(
    ("spoil", "reason"), [(truncate, "CheckpointTruncated"), (Path.unlink, "CheckpointIndexMissingShard")]
)
def test_a_broken_checkpoint_is_told_with_its_file(broken: Mrep, spoil: Callable[[Path], None], reason: str) -> None:
    """Whatever was wrong before."""
    replace(spoil)
    wait_shown(broken, reason, last_shard(MODELS / TINY).name)


@pytest.mark.timeout(ENGINE_SECONDS + 60)
def test_it_recovers_by_itself_and_nothing_was_hot(broken: Mrep) -> None:
    replace(lambda shard: None)
    broken.wait_ready(1)
    assert broken.condition("Degraded")["status"] == "False"
    assert sum(restarts(pod) for pod in broken.pods()) == 0, "an engine that waits does not restart"
