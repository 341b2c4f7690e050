"""Who loads an arena when nobody can feed: a node with an image, else a pod, which is replaced when it never asks."""

from __future__ import annotations

from datetime import timedelta

from flashboot_agent.wire.observed_arena import ObservedImage
from flashboot_agent.wire.observed_pod import ObservedPod
from flashboot_agent.wire.problem import Problem
from flashboot_operator.core.events import happened
from flashboot_operator.core.facts import Agent, Node, Pod, Trouble
from flashboot_operator.core.plan import Memory
from flashboot_operator.core.progress import line_of
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.seeding import HELLO_S
from flashboot_operator.core.status import compute_status
from tests.unit.operatorkit import ARENA, DIGEST, IDENTITY, NOW, agent, arena, owner, pod, seen, uid, world
from tests.unit.test_operator_election import look, said_of, target


def with_image(made: Agent, *arenas: str) -> Agent:
    images = [ObservedImage(arena=each, identity=IDENTITY, digest=DIGEST, bytes=1000) for each in arenas]
    return Agent(made.node, made.observed.model_copy(update={"images": images}))


def test_a_pod_on_a_node_with_an_image_is_elected_before_an_older_one() -> None:
    pods = [pod("p1", "n1", at=0), pod("p2", "n2", at=1)]
    there = world(pods, [target(1), with_image(target(2), ARENA)])
    plan = look(there)
    assert plan.seed is not None
    assert (plan.seed.name, plan.image_on) == ("p2", "n2")
    status = compute_status(owner(), there, [plan], generation=1, before={}, refused=None)
    assert {c.type: c.reason for c in status.conditions or []}["SourceAvailable"] == "LoadingImage"
    assert "ImageElected" in {n.reason for n in happened(owner(), there, [plan])}
    other = "arena-" + "0" * 32
    assert look(world(pods, [target(1), with_image(target(2), other)])).seed.name == "p1"  # type: ignore[union-attr]


def test_a_node_with_an_image_and_without_a_pod_loads_for_all() -> None:
    pods = [pod("p1", "n1", at=0), pod("p2", "n2", at=1)]
    there = world(pods, [target(1), target(2), with_image(agent("n3"), ARENA)])
    plan = look(there)
    assert (plan.seed, plan.image_on) == (None, "n3")
    assert {node: wanted.role for node, wanted in plan.wanted.items()} == {"n1": "clone", "n2": "clone", "n3": "load"}
    assert said_of(there, plan) == [("default", None, "LoadingImage")]
    assert line_of(pods[0], [plan], there).text.endswith("waits for n3, which loads the image on its disk")
    own = with_image(target(2), ARENA)
    there = world(pods, [target(1), own, with_image(agent("n3"), ARENA)])
    assert look(there).image_on == "n2", "its own agent loads it"
    busy = with_image(agent("n3", arenas=[arena("filling", way="load", watermark=5)]), ARENA)
    assert look(world(pods, [target(1), own, busy])).image_on == "n3", "it has begun"
    late = with_image(agent("n1"), ARENA)
    assert look(world(pods[:1], [late, with_image(agent("n3"), ARENA)])).image_on is None, "the pod's volume will come"
    damaged = arena("allocated", way="load", bytes=0, problem=Problem(reason="InsufficientMemory", message="full"))
    there = world(pods, [target(1), target(2), with_image(agent("n3", arenas=[damaged]), ARENA)])
    assert look(there).seed is not None, "it cannot, so that one of the pods does"
    nodes = {"n1": Node("n1"), "n2": Node("n2"), "n3": Node("n3", cordoned=True)}
    there = world(pods, [target(1), target(2), with_image(agent("n3"), ARENA)], nodes=nodes)
    assert look(there).seed is not None
    assert plan_replica(owner(), world([], [with_image(agent("n3"), ARENA)]), Memory()) == [], "nobody asks for it"


def test_an_engine_that_never_asks_is_replaced_and_told() -> None:
    long = HELLO_S + 1
    mute = pod("p1", "n1", at=0, started=NOW - timedelta(seconds=long))
    agents = [target(1), target(2)]
    memory = Memory(seeds={ARENA: frozenset({uid("p1")})})

    def seed(*pods: Pod, runs: float = long) -> str:
        [plan] = plan_replica(owner(), world(list(pods), agents, running_s={uid("p1"): runs}), memory)
        assert plan.seed is not None
        return plan.seed.name

    p2 = pod("p2", "n2", at=1)
    assert seed(mute, p2) == "p2"
    assert seed(mute, p2, runs=20) == "p1", "it has time to import"
    [plan] = plan_replica(owner(), world([mute, p2], agents), memory)
    assert plan.seed == mute, "its image is still being pulled"
    assert seed(mute) == "p1", "there is no other"
    there = world([mute, p2], agents, running_s={uid("p1"): long})
    trouble = line_of(mute, [look(there)], there).trouble
    assert trouble is not None
    assert trouble.reason == "EngineSilent"
    now_sound = seen("p1").model_dump() | {"heard_at": NOW - timedelta(seconds=20)}
    agents[0] = agent("n1", pods=[ObservedPod.model_validate(now_sound)])
    assert seed(mute, p2) == "p1", "its checkpoint was put right just now, and it begins to import"
    there = world([mute, p2], agents, running_s={uid("p1"): long})
    assert line_of(mute, [look(there)], there).trouble is None
    asked = seen("p1").model_dump() | {
        "ranks": [{"place": {}, "phase": "coming", "hello_at": NOW - timedelta(seconds=100)}]
    }
    agents[0] = agent("n1", pods=[ObservedPod.model_validate(asked)])
    assert seed(mute, p2) == "p1"


def test_a_pod_that_kubelet_cannot_start_is_no_seed() -> None:
    broken = pod("p1", "n1", at=0, trouble=Trouble("ImagePullFailed", "no such image"))
    there = world([broken, pod("p2", "n2", at=1)], [target(1), target(2)])
    [plan] = plan_replica(owner(), there, Memory(seeds={ARENA: frozenset({uid("p1")})}))
    assert plan.seed is not None
    assert plan.seed.name == "p2"
