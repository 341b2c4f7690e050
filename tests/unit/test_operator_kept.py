"""A spec that cannot be used costs nothing that is held: at the start of an operator, and while it is refused."""

from __future__ import annotations

from dataclasses import replace

from flashboot_operator.core.kept import as_it_is
from flashboot_operator.core.plan import Memory
from flashboot_operator.core.replica import plan_replica
from tests.unit.operatorkit import ARENA, NOW, OWNER_UID, agent, arena, owner, seen, uid, world


def test_what_the_nodes_have_stays_as_it_is() -> None:
    other = "arena-" + "9" * 32
    agents = {
        "n1": agent("n1", arenas=[arena()]),
        "n2": agent("n2", arenas=[arena(pods=[uid("p2")])], pods=[seen("p2", "attached")]),
        "n3": agent("n3", arenas=[arena("filling", watermark=5, parent="n1", pods=[uid("p3")])], pods=[seen("p3")]),
        "n4": agent("n4", arenas=[arena("filling", watermark=5, parent="gone")]),
        "n5": agent("n5", arenas=[arena(name=other, model_replica_uid="bbbbbbbb-0000-0000-0000-000000000000")]),
        "n6": agent("n6", arenas=[arena("filling", way="load")]),
    }
    told = as_it_is(OWNER_UID, agents)
    assert {node: [(w.arena, w.role, w.eviction, w.pods) for w in mine] for node, mine in told.items()} == {
        "n1": [(ARENA, "hold", "last", [])],
        "n2": [(ARENA, "hold", "never", [uid("p2")])],
        "n3": [(ARENA, "clone", "never", [uid("p3")])],
        "n4": [(ARENA, "copy", "never", [])],
        "n6": [(ARENA, "load", "never", [])],
    }
    parents = {node: [peer.node for peer in mine[0].lanes[0].parents] for node, mine in told.items()}
    assert (parents["n3"], parents["n4"]) == (["n1"], [])
    assert told["n1"][0].identity == arena().identity


def test_a_seed_goes_on() -> None:
    [rank] = seen("p1", "seeding").ranks
    at_work = seen("p1").model_copy(update={"ranks": [rank.model_copy(update={"arena": ARENA})]})
    [wanted] = as_it_is(OWNER_UID, {"n1": agent("n1", arenas=[arena("seeding", way="seed")], pods=[at_work])})["n1"]
    assert (wanted.role, wanted.seed_pod) == ("seed", uid("p1"))


def test_a_template_of_which_no_pod_can_be_made_does_not_drop_the_copies_of_the_last_good_one() -> None:
    template = {"spec": {"containers": [{"name": "engine", "image": "new", "args": ["--load-format", "auto"]}]}}
    refused = owner(replicas=0, residency={"hostCopies": 1}, template=template)
    there = replace(world([], [agent("n1", arenas=[arena()])]), unused_since=NOW)
    assert plan_replica(refused, there, Memory()) == [], "another template, which will have arenas of its own"
    [plan] = plan_replica(replace(refused, template_refused=True), there, Memory())
    assert plan.wanted["n1"].role == "hold"
