"""The adapters against the real API server: the Lease, the reflector over a real 410, a CRD that is not there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from flashboot_operator.core.facts import Key
from flashboot_operator.kube.client import Kube, Object, load_configuration
from flashboot_operator.kube.lease import Lease, LeaseLost
from flashboot_operator.kube.reflector import Reflector
from flashboot_operator.kube.schema import SchemaMismatch, require_served
from tests.component.controlplane.apiserver import REPO, ApiServer
from tests.component.controlplane.rig import eventually

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def kube(api: ApiServer) -> AsyncIterator[Kube]:
    made = Kube(await load_configuration(str(api.kubeconfig)), timeout_s=5)
    yield made
    await made.close()


def lease_of(kube: Kube, namespace: str, identity: str, **more: Any) -> Lease:
    options = {"lease_s": 2, "renew_deadline_s": 1.5, "renew_every_s": 0.05} | more
    return Lease(kube, namespace=namespace, identity=identity, **options)


async def test_each_start_has_a_higher_epoch(kube: Kube, namespace: str) -> None:
    assert await lease_of(kube, namespace, "a").acquire() == 1
    assert await lease_of(kube, namespace, "a").acquire() == 2


async def test_a_second_operator_waits_and_takes_over_what_is_released(kube: Kube, namespace: str) -> None:
    first, second = lease_of(kube, namespace, "a", lease_s=600), lease_of(kube, namespace, "b", lease_s=600)
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done, "it stands by"
    await first.release()
    assert await asyncio.wait_for(waiting, 5) == 2


async def test_a_dead_holders_lease_is_taken_after_it_expired(kube: Kube, namespace: str) -> None:
    await lease_of(kube, namespace, "a").acquire()
    assert await asyncio.wait_for(lease_of(kube, namespace, "b").acquire(), 10) == 2


async def test_the_one_that_lost_it_ends(kube: Kube, namespace: str) -> None:
    first = lease_of(kube, namespace, "a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    await lease_of(kube, namespace, "a").acquire()
    with pytest.raises(LeaseLost, match="epoch 2, ours was 1"):
        await asyncio.wait_for(keeping, 5)


async def test_a_deleted_lease_is_made_again_with_the_same_epoch(kube: Kube, namespace: str, api: ApiServer) -> None:
    lease = lease_of(kube, namespace, "a")
    await lease.acquire()
    keeping = asyncio.create_task(lease.keep())
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/flashboot-operator"
    await asyncio.to_thread(api.call, "DELETE", path)

    async def back() -> bool:
        got = await asyncio.to_thread(api.call, "GET", path)
        return bool(got["spec"]["leaseTransitions"] == 1)

    await eventually("the Lease is back", back)
    keeping.cancel()


async def test_an_agent_that_has_seen_more_raises_the_epoch(kube: Kube, namespace: str) -> None:
    lease = lease_of(kube, namespace, "a")
    await lease.acquire()
    assert await lease.raise_above(41) == 42
    assert await lease.raise_above(7) == 42, "seen by another agent, long passed"
    assert await lease_of(kube, namespace, "a").acquire() == 43
    with pytest.raises(LeaseLost):
        await lease.raise_above(50)


async def test_what_was_deleted_during_a_410_gap_is_reported(
    api: ApiServer, kube: Kube, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flashboot_operator")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    changes: list[tuple[str, bool]] = []

    def on_change(key: Key, _: Object | None, after: Object | None) -> None:
        changes.append((key[1], after is not None))

    async def make(name: str) -> None:
        body = {"metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        await asyncio.to_thread(api.call, "POST", pods, body)

    await make("stays")
    await make("goes")
    reflector = Reflector(kube, pods, on_change, label_selector="a=b", max_backoff_s=0.1)
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.synced.wait(), 10)
    assert set(reflector.objects) == {(namespace, "stays"), (namespace, "goes")}
    await asyncio.to_thread(api.restart_without, f"/registry/pods/{namespace}/goes")
    await make("came")

    async def seen() -> bool:
        return set(reflector.objects) == {(namespace, "stays"), (namespace, "came")}

    await eventually("the mirror is right again", seen)
    assert "the watch is too old, listing anew" in caplog.messages, "the server really said 410"
    assert ("goes", False) in changes
    assert changes.count(("stays", True)) == 1, "what did not change is not reported anew"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Counting(Kube):
    """Tells when a watch begins."""

    def __init__(self, configuration: Any, *, timeout_s: float) -> None:
        super().__init__(configuration, timeout_s=timeout_s)
        self.watching = asyncio.Event()

    def watch(self, path: str, *, query: Mapping[str, Any], idle_s: float) -> AsyncIterator[Object]:
        self.watching.set()
        return super().watch(path, query=query, idle_s=idle_s)


async def test_a_silent_watch_is_opened_anew(api: ApiServer, namespace: str) -> None:
    kube = Counting(await load_configuration(str(api.kubeconfig)), timeout_s=5)
    reflector = Reflector(kube, f"/api/v1/namespaces/{namespace}/pods", lambda *_: None, idle_s=0.2, max_backoff_s=0.05)
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(kube.watching.wait(), 10)
    kube.watching.clear()
    await asyncio.wait_for(kube.watching.wait(), 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await kube.close()


async def test_an_older_crd_is_refused_with_its_missing_fields(kube: Kube) -> None:
    from flashboot_operator.crdgen import served_schema

    wanted = served_schema()
    await require_served(kube, wanted, deadline_s=10)
    wanted["properties"]["status"]["properties"]["fromTheFuture"] = {"type": "string"}
    with pytest.raises(SchemaMismatch, match=r"older than this operator \(it lacks \.status\.fromTheFuture\)"):
        await require_served(kube, wanted, deadline_s=0)


async def test_a_bad_setting_ends_the_process_with_its_name() -> None:
    env = {"KUBECONFIG": "/dev/null", "PYTHONPATH": f"{REPO}/operator:{REPO}/agent", "FLASHBOOT_HTTP_PORT": "bad"}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "flashboot_operator"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "FLASHBOOT_HTTP_PORT='bad'" in done.stderr
