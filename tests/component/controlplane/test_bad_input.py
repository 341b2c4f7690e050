"""Bad input of which only an API server can show that it is seen: who refuses, who writes what, who speaks how."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from flashboot_operator.crdgen import served_schema
from flashboot_operator.kube.client import Kube, load_configuration
from flashboot_operator.kube.events import Recorder
from flashboot_operator.kube.lease import Lease
from flashboot_operator.kube.schema import SchemaOutdated
from flashboot_operator.reconcile.refusal import require_schema
from tests.component.controlplane.apiserver import ApiServer
from tests.component.controlplane.rig import Rig, eventually
from tests.component.controlplane.test_crd import model_replica
from tests.component.controlplane.test_operator import create, seeded

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]


async def told(rig: Rig, reason: str, *words: str, name: str = "m") -> None:
    """Until condition and Event say it."""

    async def check() -> bool:
        degraded = await rig.condition(name, "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", reason), degraded
        notes = [note for kind, note in await rig.events(name) if kind == reason]
        assert notes, "no Event yet"
        return all(word in degraded["message"] and word in notes[0] for word in words)

    await eventually(f"{name} is Degraded with {reason} naming {words}, and an Event says so", check)


async def test_a_quota_on_deployments(rig: Rig) -> None:
    quotas = f"/api/v1/namespaces/{rig.namespace}/resourcequotas"
    hard = {"count/deployments.apps": "0"}
    await rig.call("POST", quotas, {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    await rig.merge(f"{quotas}/none/status", {"status": {"hard": hard, "used": {"count/deployments.apps": "0"}}})
    await rig.call("POST", rig.path(""), model_replica())
    await told(rig, "QuotaExceeded", "exceeded quota: none", "raise the ResourceQuota")
    assert (await rig.condition("m", "Stalled"))["reason"] == "QuotaExceeded"
    await rig.call("DELETE", f"{quotas}/none")
    await eventually("it goes on by itself", lambda: rig.deployment("m"), 30)


async def test_a_template_that_names_a_variable_twice_is_rejected_with_the_place(rig: Rig) -> None:
    """A Deployment may have it; server-side apply can't, and answers with 500."""
    template = copy.deepcopy(model_replica()["spec"]["template"])
    template["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    await rig.call("POST", rig.path(""), model_replica(template=template))
    await told(rig, "TemplateRejected", ".env: duplicate entries", 'name="A"', "correct spec.template")
    template["spec"]["containers"][0]["env"].pop()
    await rig.merge(rig.path("m"), {"spec": {"template": template}})
    await eventually("the Deployment is applied", lambda: rig.deployment("m"), 5)


async def test_fewer_devices_than_ranks_are_refused_and_recover(rig: Rig) -> None:
    template = copy.deepcopy(model_replica()["spec"]["template"])
    template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "4"}}
    await rig.call("POST", rig.path(""), model_replica(template=template, parallelism={"tensor": 8}))
    await told(rig, "MoreRanksThanDevices", "has 4 nvidia.com/gpu", "makes 8 ranks", "raise the limit")
    template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    await rig.merge(rig.path("m"), {"spec": {"template": template}})
    await eventually("the Deployment is applied", lambda: rig.deployment("m"))


async def test_a_pod_that_two_claim_counts_for_neither(rig: Rig) -> None:
    a, b = await rig.node(1), await rig.node(2)
    await create(rig)
    await rig.call("POST", rig.path(""), model_replica("other"))
    await seeded(rig, a)
    template = copy.deepcopy((await rig.deployment("m"))["spec"]["template"])
    volume = next(v for v in template["spec"]["volumes"] if v["name"] == "flashboot")
    volume["csi"]["volumeAttributes"]["flashboot.io/model-replica"] = "other"
    stranger = await rig.pod_on("m", template, b.node, b.ip)
    for name in ("m", "other"):
        await told(rig, "PodClaimedTwice", stranger["metadata"]["name"], "volume says other", name=name)
    assert (await rig.status("m"))["replicas"] == 1
    assert b.wanted() is None
    await rig.delete_pod(stranger)

    async def well() -> bool:
        return bool((await rig.condition("m", "Degraded"))["status"] == "False")

    await eventually("without it all is well", well)


async def test_an_agent_of_another_protocol_is_left_alone_and_told_of(rig: Rig) -> None:
    a, b = await rig.node(1), await rig.node(2, protocol=2)
    await create(rig, replicas=2)
    await seeded(rig, a)
    await rig.pod("m", b)
    await told(rig, "AgentVersionUnsupported", b.node, "speaks protocol 2, this operator 1", "install one version")
    assert b.puts == []
    b.protocol = 1

    async def served() -> bool:
        return (await rig.condition("m", "Degraded"))["status"] == "False" and bool(b.puts)

    await eventually("upgraded, it is told what to do", served)


async def test_an_autoscaler_and_a_manifest_that_fight(rig: Rig) -> None:
    await create(rig)

    async def settled(replicas: int) -> bool:
        return bool((await rig.deployment("m"))["spec"]["replicas"] == replicas)

    for _ in range(3):
        await rig.merge(rig.path("m", "scale") + "?fieldManager=kube-controller-manager", {"spec": {"replicas": 3}})
        await eventually("the autoscaler has its way", lambda: settled(3))
        await rig.merge(rig.path("m") + "?fieldManager=argocd", {"spec": {"replicas": 1}})
        await eventually("the manifest has its way", lambda: settled(1))
    await told(rig, "ReplicasContested", "kube-controller-manager", "argocd", "leave spec.replicas out")


async def test_what_happens_again_is_counted_in_one_event(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashboot_operator.core.note import Note
    from flashboot_operator.kube import events
    from flashboot_operator.reconcile.refusal import Subject

    monkeypatch.setattr(events, "PAUSE_S", 0.0)
    kube = Kube(await load_configuration(str(rig.api.operators_kubeconfig)), timeout_s=5)
    recorder = Recorder(kube, instance="test")
    subject = Subject(rig.namespace, "m", "0")
    for occasion in ("1", "1", "2", "3"):
        recorder.tell(
            subject, [Note("Warning", "EngineCrashing", "Reconcile", f"ended {occasion} times", "s", occasion)]
        )
    await recorder.drain()
    (event,) = (await rig.call("GET", f"/api/v1/namespaces/{rig.namespace}/events"))["items"]
    assert (event["count"], event["message"]) == (3, "ended 3 times")
    assert event["firstTimestamp"] <= event["lastTimestamp"], "kubectl sorts by the latter"
    await kube.close()


async def test_a_crd_older_than_the_operator(rig: Rig, api: ApiServer) -> None:
    """Told in every ModelReplica by the operator that then ends; what is said of its replicas stays."""
    a = await rig.node(1)
    await create(rig)
    await seeded(rig, a)

    async def ready() -> bool:
        return bool((await rig.condition("m", "Ready"))["status"] == "True")

    await eventually("it serves", ready)
    rig.operator.kill()
    kube = Kube(await load_configuration(str(api.operators_kubeconfig)), timeout_s=5)
    times = {"lease_s": 1, "renew_deadline_s": 5.0, "renew_every_s": 0.2}
    lease = Lease(kube, namespace=rig.operator.namespace, identity="operator-0", **times)  # type: ignore[arg-type]
    wanted = served_schema()
    wanted["properties"]["status"]["properties"]["fromTheFuture"] = {"type": "string"}
    for _ in range(2):
        with pytest.raises(SchemaOutdated, match="apply the CRDs of this version first"):
            await require_schema(kube, lease, Recorder(kube, instance="t"), wanted, wait_s=0, deadline_s=10)
    await told(rig, "CustomResourceOutdated", "lacks .status.fromTheFuture", "apply the CRDs")
    assert (await rig.condition("m", "Stalled"))["reason"] == "CustomResourceOutdated"
    assert (await rig.condition("m", "Available"))["reason"] == "MinimumReplicasReady", "it serves on"
    reasons = [reason for reason, _ in await rig.events("m")]
    assert reasons.count("CustomResourceOutdated") == 1
    await kube.close()
    rig.operator.start()
    await eventually("with the right CRD it is Ready again", ready, 60)
    assert await asyncio.to_thread(lambda: a.only() is not None)


async def test_what_somebody_else_made_under_a_name_of_ours_is_left_alone(rig: Rig) -> None:
    """No label says whose they are, so that the operator does not see them before it applies its own."""
    budgets = f"/apis/policy/v1/namespaces/{rig.namespace}/poddisruptionbudgets"
    services = f"/api/v1/namespaces/{rig.namespace}/services"
    theirs = {"selector": {"matchLabels": {"app": "theirs"}}, "maxUnavailable": 3}
    service = {"clusterIP": "None", "selector": {"app": "theirs"}, "ports": [{"name": "p", "port": 1}]}
    made = [
        await rig.call("POST", budgets, {"metadata": {"name": "m"}, "spec": theirs}),
        await rig.call("POST", services, {"metadata": {"name": "g-0"}, "spec": service}),
    ]
    await rig.call("POST", rig.path(""), model_replica())
    await rig.call("POST", rig.path(""), model_replica("g", group={"size": 2}, parallelism={"tensor": 2}))
    await told(rig, "NameTaken", "PodDisruptionBudget m", "rename the ModelReplica or remove it")
    await told(rig, "NameTaken", "Service g-0", "rename the ModelReplica or remove it", name="g")
    assert await rig.call("GET", f"{budgets}/m") == made[0]
    assert await rig.call("GET", f"{services}/g-0") == made[1]
    await rig.call("DELETE", f"{budgets}/m")

    async def ours() -> bool:
        return bool((await rig.call("GET", f"{budgets}/m"))["metadata"]["ownerReferences"])

    await eventually("once it is gone, ours is made", ours, 45)
