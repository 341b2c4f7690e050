"""Certificates against a real API server: who is believed, and what two operators make of one CA."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from flashboot_agent.trust import keys
from flashboot_agent.wire.base import now
from flashboot_agent.wire.trust import CertificateRequest
from flashboot_operator.agents.client import AgentClient
from flashboot_operator.agents.enrol import NotSigned
from flashboot_operator.core.authority import Authority, AuthorityDamaged
from flashboot_operator.kube.authority import AuthorityStore
from flashboot_operator.kube.client import Kube, load_configuration
from flashboot_operator.reconcile.trust import Trust
from tests.component.controlplane import identities
from tests.component.controlplane.apiserver import ApiServer

pytestmark = pytest.mark.apiserver

_numbers = itertools.count()
DAY = timedelta(days=1)


@pytest.fixture
async def kube(api: ApiServer) -> AsyncIterator[Kube]:
    made = Kube(await load_configuration(str(api.kubeconfig)), timeout_s=10)
    yield made
    await made.close()


@pytest.fixture
def namespace(api: ApiServer) -> str:
    """With what the chart makes."""
    name = f"trust-{next(_numbers)}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    identities.prepare(api, name)
    return name


@pytest.fixture
async def trust(kube: Kube, namespace: str) -> AsyncIterator[Trust]:
    client = AgentClient(port=1, tls=True)
    made = Trust(kube, client, namespace=namespace, life=DAY)
    await made.ready()
    yield made
    await client.close()


def pod(api: ApiServer, namespace: str, node: str, *, service_account: str = identities.SERVICE_ACCOUNT) -> str:
    spec = {"nodeName": node, "serviceAccountName": service_account, "containers": [{"name": "c", "image": "i"}]}
    name = f"agent-{next(_numbers)}"
    api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": spec})
    return name


def request(node: str, token: str) -> CertificateRequest:
    csr = keys.certificate_request(keys.new_key(), node).decode()
    return CertificateRequest(node=node, csr=csr, token=token)


@pytest.fixture
def node(api: ApiServer, namespace: str) -> str:
    name = f"node-{namespace}"
    api.create("/api/v1/nodes", {"metadata": {"name": name}})
    return name


async def test_the_agent_of_a_node_gets_a_certificate_for_it(
    api: ApiServer, trust: Trust, namespace: str, node: str
) -> None:
    token = identities.token(api, namespace, pod(api, namespace, node))
    made = await trust.sign(node, request(node, token))
    assert made.ca.encode() == identities.ca(api, namespace)
    with pytest.raises(NotSigned, match="expected the node's own names only"):
        await trust.sign(node, request("another", token))
    with pytest.raises(NotSigned, match=f"bound to node .*{node}"):
        await trust.sign("another", request("another", token))


async def test_other_tokens_are_not_believed(api: ApiServer, trust: Trust, namespace: str, node: str) -> None:
    other = "someone-else"
    api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": other}})
    mine, theirs = pod(api, namespace, node), pod(api, namespace, node, service_account=other)
    for token, why in (
        ("nonsense", "does not believe"),
        (identities.token(api, namespace, mine, audience="https://kubernetes"), "does not believe"),
        (identities.token(api, namespace, None), "bound to node"),
        (identities.token(api, namespace, theirs, service_account=other), f"of system:serviceaccount:.*{other}"),
    ):
        with pytest.raises(NotSigned, match=why):
            await trust.sign(node, request(node, token))


async def test_the_token_of_a_pod_that_is_gone_is_not_believed(
    api: ApiServer, trust: Trust, namespace: str, node: str
) -> None:
    name = pod(api, namespace, node)
    token = identities.token(api, namespace, name)
    api.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})
    with pytest.raises(NotSigned, match="does not believe"):
        await trust.sign(node, request(node, token))


async def test_two_leaders_agree_on_one_ca(api: ApiServer, kube: Kube, namespace: str) -> None:
    both = await asyncio.gather(*(AuthorityStore(kube, namespace).load(now()) for _ in range(4)))
    assert {authority.bundle for authority in both} == {identities.ca(api, namespace)}
    again = await AuthorityStore(kube, namespace).load(now())
    assert again.bundle == both[0].bundle


async def test_what_others_put_there_stays_and_reaches_the_agents(api: ApiServer, kube: Kube, namespace: str) -> None:
    """A person adds a CA; the chart's labels and other keys are not ours."""
    store = AuthorityStore(kube, namespace)
    first = await store.load(now())
    second = Authority.new(now())
    path = f"/api/v1/namespaces/{namespace}/secrets/{identities.NAME}"
    added = {"ca.crt": first.bundle + second.bundle, "ca.key": first.keys + second.keys, "note": b"mine"}
    body = {"data": {key: base64.b64encode(value).decode() for key, value in added.items()}}
    api.merge(path, {**body, "metadata": {"labels": {"a": "b"}}})
    both = await store.load(now())
    assert identities.ca(api, namespace) == both.bundle
    assert len(both.certificates) == 2
    later = await store.load(second.certificates[0].not_valid_before_utc + timedelta(days=9.5 * 365))
    assert len(later.certificates) == 3, "a successor joins"
    stored = api.call("GET", path)
    assert stored["metadata"]["labels"] == {"a": "b"}
    assert base64.b64decode(stored["data"]["note"]) == b"mine"
    assert identities.ca(api, namespace) == later.bundle


@pytest.mark.parametrize("damage", [{"ca.crt": "eA=="}, {"ca.key": None}])
async def test_a_damaged_ca_is_told_and_never_overwritten(
    api: ApiServer, kube: Kube, namespace: str, damage: dict[str, str | None]
) -> None:
    store = AuthorityStore(kube, namespace)
    await store.load(now())
    path = f"/api/v1/namespaces/{namespace}/secrets/{identities.NAME}"
    api.merge(path, {"data": damage})
    before = api.call("GET", path)
    with pytest.raises(AuthorityDamaged, match="Secret flashboot-ca"):
        await store.load(now())
    assert api.call("GET", path) == before
    api.merge(path, {"data": None})
    assert (await store.load(now())).bundle == identities.ca(api, namespace), "without data there is a new one"
