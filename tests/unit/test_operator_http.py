"""The operator's HTTP API: typed documents, typed refusals, bounded answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from flashboot_operator.api.live import MOST_BYTES, MOST_LISTED, Listing, Nodes, ReplicaView, Summary, Trees
from flashboot_operator.core.trees import trees_of
from flashboot_operator.reconcile.http import application
from flashboot_operator.reconcile.view import nodes_view
from tests.unit.operatorkit import owner
from tests.unit.test_operator_trees import a_chain

Client = TestClient[Any, Any]


class Known:
    """Knows ns/m; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.words = 1

    def listing(self, *, namespace: str | None, after: str | None, limit: int) -> Listing:
        self.asked.append((namespace, after, limit))
        line = {"model": "x" * 1000, "revision": "r", "desired": 1, "ready": 1, "source": None, "domain": None}
        one = Summary(namespace="ns", name="m", state="Ready", message="", since=None, **line)
        return Listing(items=[one] * self.words)

    def replica(self, namespace: str, name: str) -> ReplicaView | None:
        return None

    def trees(self, namespace: str, name: str, rank: str | None) -> Trees | None:
        _, plans, there = a_chain()
        return trees_of(owner(), there, plans, epoch=1, rank=rank) if (namespace, name) == ("ns", "m") else None

    def nodes(self, node: str | None) -> Nodes:
        return nodes_view({agent.node: agent for agent in a_chain()[0]}, {}, node)


@pytest.fixture
def known() -> Known:
    return Known()


@pytest.fixture
async def client(known: Known) -> AsyncIterator[Client]:
    app = application(
        health=lambda: (False, {"loopLagSeconds": 9}),
        ready=lambda: (True, {}),
        live=known,
        registry=CollectorRegistry(),
    )
    async with TestClient(TestServer(app)) as made:
        yield made


async def test_probes_answer_by_their_status(client: Client) -> None:
    assert (await client.get("/healthz")).status == 503
    assert (await client.get("/readyz")).status == 200


async def test_documents_are_what_the_models_say(client: Client) -> None:
    trees = Trees.model_validate(await (await client.get("/v1/modelreplicas/ns/m/trees?rank=tp0")).json())
    assert [rank.rank for rank in trees.ranks] == ["tp0"]
    assert Nodes.model_validate(await (await client.get("/v1/nodes?node=n2")).json()).items[0].node == "n2"
    assert (await (await client.get("/v1/nodes?node=none")).json()) == {"items": []}
    assert len((await (await client.get("/v1/nodes")).json())["items"]) == 3


async def test_a_list_is_bounded_whatever_is_asked_for(client: Client, known: Known) -> None:
    await client.get("/v1/modelreplicas?namespace=ns&after=ns/a&limit=99999")
    await client.get("/v1/modelreplicas")
    assert known.asked == [("ns", "ns/a", MOST_LISTED), (None, None, MOST_LISTED)]


@pytest.mark.parametrize(
    ("path", "status", "reason", "words"),
    [
        ("/v1/modelreplicas/ns/other", 404, "NotFound", "no ModelReplica ns/other is known"),
        ("/v1/modelreplicas/ns/other/trees", 404, "NotFound", "no ModelReplica ns/other is known"),
        ("/v1/modelreplicas?limit=0", 400, "BadRequest", "must be 1 to 500"),
        ("/v1/modelreplicas?limit=many", 400, "BadRequest", "must be 1 to 500"),
    ],
)
async def test_what_cannot_be_answered_says_why(
    client: Client, path: str, status: int, reason: str, words: str
) -> None:
    answer = await client.get(path)
    said = await answer.json()
    assert (answer.status, said["reason"]) == (status, reason)
    assert words in said["message"]


async def test_an_answer_that_is_too_large_says_how_to_ask_for_less(client: Client, known: Known) -> None:
    known.words = MOST_BYTES // 1000
    answer = await client.get("/v1/modelreplicas")
    assert answer.status == 413
    assert "?limit=" in (await answer.json())["message"]
