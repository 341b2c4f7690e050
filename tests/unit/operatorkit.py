"""Small makers of facts for the operator's unit tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from flashboot_agent.core.identity import arena_id
from flashboot_agent.wire.observed import Observed
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.observed_pod import ObservedPod
from flashboot_agent.wire.place import Place
from flashboot_agent.wire.problem import Problem
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.expected import engine_hash, expected_identity, template_hash
from flashboot_operator.core.facts import Agent, Node, Pod, World
from flashboot_operator.core.plan import Owner
from tests.samples import MEMORY

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OWNER_UID = "aaaaaaaa-0000-0000-0000-000000000000"
TEMPLATE: dict[str, Any] = {
    "spec": {"containers": [{"name": "engine", "image": "sglang:x", "args": ["--port", "31000"]}]}
}
DIGEST = "sha256:" + "d" * 64
IDENTITY = "sha256:" + "e" * 64
SIZE = 1000


def spec(**more: Any) -> Spec:
    body = {"replicas": 1, "model": {"name": "org/m", "revision": "r1"}, "template": TEMPLATE} | more
    return Spec.model_validate({k: v for k, v in body.items() if v is not None})


def owner(**more: Any) -> Owner:
    made = spec(**more)
    return Owner("ns", "m", OWNER_UID, made, template_hash(made))


HASH = engine_hash(TEMPLATE["spec"], "r1")
EXPECTED = expected_identity(spec(), template_hash=HASH, gpu_product="cpu", architecture="amd64")
ARENA = arena_id(OWNER_UID, EXPECTED, Place())


def uid(name: str) -> str:
    return name.encode().hex().ljust(8, "0")


def pod(name: str, node: str | None, *, at: int = 0, **more: Any) -> Pod:
    stamp = NOW - timedelta(minutes=5) + timedelta(seconds=at)
    fields = {"hash": HASH, "bound": stamp if node else None} | more
    return Pod(uid(name), name, "ns", "m", node, created=stamp, **fields)


def arena(state: str = "sealed", *, watermark: int | None = None, name: str = ARENA, **more: Any) -> ObservedArena:
    complete = state == "sealed"
    body: dict[str, Any] = {
        "arena": name,
        "namespace": "ns",
        "model_replica": "m",
        "model_replica_uid": OWNER_UID,
        "expected_identity": EXPECTED,
        "state": state,
        "way": "clone",
        "bytes": SIZE,
        "watermark": SIZE if complete else watermark or 0,
        "created_at": NOW - timedelta(seconds=60),
        "sealed_at": NOW - timedelta(seconds=30) if complete else None,
        "identity": IDENTITY if complete else None,
        "digest": DIGEST if complete else None,
    }
    return ObservedArena.model_validate(body | more)


def seen(name: str, phase: str = "published", problem: Problem | None = None, **ranks: str) -> ObservedPod:
    """`phase`: of its only rank; `ranks`: tp0="attached", tp1="coming". `problem`: of all of them."""
    phases = ranks or {"tp0": phase}
    return ObservedPod.model_validate(
        {
            "uid": uid(name),
            "namespace": "ns",
            "name": name,
            "model_replica": "m",
            "published_at": NOW - timedelta(seconds=10),
            "ranks": [
                {"place": {"tp": int(rank[2:])}, "phase": phase, "problem": problem} for rank, phase in phases.items()
            ],
        }
    )


def agent(
    node: str, *, arenas: list[ObservedArena] | None = None, pods: list[ObservedPod] | None = None, **more: Any
) -> Agent:
    number = sum(node.encode()) % 250
    observed = Observed(
        node=node,
        instance="0" * 8,
        version="t",
        counter=1,
        epoch=1,
        revision=0,
        chunk_address=f"10.0.0.{number}:9441",
        memory=MEMORY,
        pods=pods or [],
        arenas=arenas or [],
    )
    return Agent(node, observed, **more)


def world(pods: list[Pod], agents: list[Agent], **more: Any) -> World:
    names = {p.node for p in pods if p.node} | {a.node for a in agents}
    nodes = more.pop("nodes", {n: Node(n) for n in names})
    return World(nodes, tuple(pods), {a.node: a for a in agents}, NOW, **more)
