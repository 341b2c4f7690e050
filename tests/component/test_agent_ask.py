"""`ask`: whoever has the pod's socket learns who serves it, and nothing of the pod changes."""

from __future__ import annotations

from flashboot_agent.engine.doctor import pod
from flashboot_agent.version import own_version
from flashboot_agent.wire import attach
from tests.component.agents import Cluster, eventually, wanted


def test_an_agent_says_who_it_is_at_any_time_and_forgets_that_it_was_asked(cluster: Cluster) -> None:
    node = cluster.node("n1")
    uid = node.publish()
    path = node.run / "pods" / uid / attach.SOCKET_NAME
    eventually(path.exists, "socket")
    before = node.observed().pods
    assert pod.agent(str(path)) == f"node n1, version {own_version()}, protocol 1"
    assert node.observed().pods == before
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    with node.engine(uid) as engine:
        engine.until(attach.Seed)
        during = node.observed().pods
        engine.send(attach.Ask())
        said, _ = engine.receive()
        assert said == attach.Agent(node="n1", version=own_version())
        assert pod.agent(str(path))
        assert node.observed().pods == during
        engine.send(attach.Allocate(bytes=1 << 20))
        engine.until(attach.Writable)
