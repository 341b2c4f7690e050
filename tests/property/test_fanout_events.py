"""What an event changes: a cluster in which nodes arrive, get bytes, die and are slow, one thing at a time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.fanoutkit import SIZE, Cluster

EVENTS = st.lists(
    st.tuples(st.sampled_from(["arrive", "die", "slow", "well", "flow"]), st.integers(0, 30), st.integers(1, 40)),
    max_size=25,
)


def check(cluster: Cluster) -> None:
    for lane, edges in enumerate(cluster.edges):
        for child in edges:
            assert cluster.depth_of(lane, child) <= len(cluster.members) + 1


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.integers(1, 3), st.booleans())
def test_an_event_changes_few_edges(events: list[tuple[str, int, int]], lanes: int, two_domains: bool) -> None:
    names = [f"n{i}" for i in range(40)]
    domains = {n: "b" if two_domains and i % 3 == 2 else "a" for i, n in enumerate(names)} | {"s": "a"}
    cluster = Cluster(lanes, ("s",), domains)
    fresh = iter(names)
    for kind, pick, step in events:
        here = sorted(cluster.members)
        node = here[pick % len(here)] if here else None
        slow = sum(1 for m in cluster.members.values() if m.slow) * lanes
        if kind == "arrive":
            cluster.arrive(next(fresh))
            assert cluster.changed <= slow, "an arrival moves nobody but one that is slow"
        elif node is None:
            continue
        elif kind == "flow":
            cluster.flow({n: step + 7 * i % 13 for i, n in enumerate(here)})
            cluster.settle()
            assert slow or cluster.changed == 0, "bytes that come move nobody"
        elif kind == "die":
            children = sum(1 for edges in cluster.edges for p in edges.values() if p == node)
            cluster.change(node, gone=True)
            assert cluster.changed <= children + slow
        elif kind == "slow" and not slow:
            children = sum(1 for edges in cluster.edges for p in edges.values() if p == node)
            cluster.change(node, slow=True)
            assert cluster.changed <= children + lanes, "its children, and itself to the tail"
        elif kind == "well":
            cluster.change(node, slow=False)
            assert slow or cluster.changed == 0, "one that recovers is left where it is"
        check(cluster)


@settings(max_examples=40, deadline=None)
@given(EVENTS, st.integers(1, 3))
def test_every_live_target_gets_everything(events: list[tuple[str, int, int]], lanes: int) -> None:
    """Whatever happened before: once things are quiet and bytes flow, each target is completed."""
    cluster = Cluster(lanes, ("s",), {f"n{i}": "ab"[i % 2] for i in range(40)} | {"s": "a"})
    fresh = (f"n{i}" for i in range(40))
    for kind, pick, step in events:
        here = sorted(cluster.members)
        if kind == "arrive" or not here:
            cluster.arrive(next(fresh))
        elif kind == "flow":
            cluster.flow({n: step + 7 * i % 13 for i, n in enumerate(here)})
        elif kind == "die":
            cluster.change(here[pick % len(here)], gone=True)
        elif kind == "slow":
            cluster.change(here[pick % len(here)], slow=True)
    for _ in range(40 * (len(cluster.members) + 1)):
        cluster.settle()
        cluster.flow(dict.fromkeys(cluster.members, 10))
    assert all(mark == SIZE for m in cluster.members.values() for mark in m.watermarks)


def chain(count: int) -> Cluster:
    cluster = Cluster(1, ("s",))
    for i in range(count):
        cluster.arrive(f"n{i}")
        assert (cluster.added, cluster.changed) == (1, 0), "joining at the tail adds one edge"
    assert cluster.edges == ({f"n{i}": f"n{i - 1}" if i else "s" for i in range(count)},)
    return cluster


@given(st.integers(2, 8), st.integers(0, 7))
def test_a_death_in_a_chain_changes_one_edge(count: int, victim: int) -> None:
    cluster = chain(count)
    victim %= count
    cluster.flow({f"n{i}": 50 - i for i in range(count)})
    cluster.change(f"n{victim}", gone=True)
    assert cluster.changed == (1 if victim < count - 1 else 0)
    if victim < count - 1:
        above = f"n{victim - 1}" if victim else "s"
        assert cluster.edges[0][f"n{victim + 1}"] == above, "the orphan takes the slot of the dead"


@given(st.integers(2, 8), st.integers(0, 7))
def test_a_slow_node_in_a_chain_goes_to_the_tail_with_its_bytes(count: int, victim: int) -> None:
    cluster = chain(count)
    victim %= count
    cluster.flow({f"n{i}": 50 - i for i in range(count)})
    cluster.change(f"n{victim}", slow=True)
    assert cluster.changed == (1 if victim < count - 1 else 0)
    held = cluster.members[f"n{victim}"].watermarks
    for _ in range(3):
        cluster.flow({f"n{i}": 30 for i in range(count) if i != victim})
        cluster.settle()
    if victim < count - 1:
        assert cluster.edges[0][f"n{victim}"] == f"n{count - 1}"
    assert cluster.members[f"n{victim}"].watermarks == held


def test_a_way_into_a_domain_opens_for_whoever_arrives() -> None:
    """Each lane enters the other rack once, through another gateway; lanes nobody started wait for later arrivals."""
    cluster = Cluster(3, ("s",), {"s": "a", **dict.fromkeys(["n0", "n1"], "a"), **dict.fromkeys(["m0", "m1"], "b")})
    for node in ("n0", "n1", "m0"):
        cluster.arrive(node)
    crossings = [(lane, c) for lane, e in enumerate(cluster.edges) for c in e if c.startswith("m")]
    assert crossings == [(0, "m0")], "one crossing at a time"
    cluster.arrive("m1")
    crossings = [(lane, c) for lane, e in enumerate(cluster.edges) for c, p in e.items() if c[0] == "m" and p[0] != "m"]
    assert crossings == [(0, "m0"), (1, "m1")], "the late one takes a lane that nobody has started"
    assert cluster.edges[0]["m1"] == "m0", "and pulls the other one inside the rack"
