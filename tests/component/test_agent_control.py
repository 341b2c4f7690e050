"""The control API of a real agent: fencing, long polls, refusals, what survives its death."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest

from flashboot_agent.wire.desired import Desired
from flashboot_agent.wire.observed import Observed
from flashboot_agent.wire.problem import Problem
from tests.component.agents import ARENA, SECONDS, Cluster, Node, eventually, wanted


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    cluster = Cluster()
    try:
        yield cluster.node("n1")
    finally:
        print(cluster.logs())
        cluster.close()


def put(to: Node, **facts: object) -> tuple[int, bytes]:
    desired = Desired.model_validate({"node": to.name, "epoch": 1, "revision": 0, **facts})
    return to.call("PUT", "/v1/desired", desired.to_json())


def problem(answer: tuple[int, bytes]) -> tuple[int, Problem]:
    return answer[0], Problem.model_validate_json(answer[1])


def test_an_older_epoch_or_revision_is_refused_with_the_epoch_and_changes_nothing(node: Node) -> None:
    assert put(node, epoch=5, revision=7)[0] == 200
    before = node.observed()
    for stale in ({"epoch": 4, "revision": 99}, {"epoch": 5, "revision": 6}):
        status, told = problem(put(node, **stale, arenas=[wanted("hold")]))
        assert (status, told.reason, told.epoch) == (409, "StaleEpoch", 5)
    assert node.observed() == before
    assert put(node, epoch=5, revision=7)[0] == 200  # the same again is no news, and no harm
    assert node.observed().counter == before.counter
    status, body = put(node, epoch=6, revision=0)  # a new operator counts anew
    assert (status, json.loads(body)) == (200, {"epoch": 6, "revision": 0})
    node.kill_agent()
    node.start_agent()
    assert problem(put(node, epoch=5, revision=100))[1].epoch == 6, "the epoch outlives the agent"
    after = node.observed()
    assert (after.epoch, after.revision) == (6, 0)
    assert after.instance != before.instance


def test_another_nodes_state_is_refused(node: Node) -> None:
    status, told = problem(put(node, node="n2", epoch=99))
    assert (status, told.reason) == (409, "WrongNode")
    assert "this is node n1" in told.message
    assert node.observed().epoch < 99


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "Invalid JSON"),
        (b'{"epoch": -1, "revision": 0, "node": "n1"}', "epoch: Input should be greater than or equal to 0"),
        (b'{"epoch": 1, "revision": 0, "node": "n1", "lanes": 2}', "lanes: Extra inputs are not permitted"),
        (b'{"epoch": 1, "revision": 0, "node": "n1", "arenas": [{"arena": "x"}]}', "arenas.0.arena: String should"),
    ],
)
def test_a_malformed_state_is_refused_with_the_field(node: Node, body: bytes, says: str) -> None:
    before = node.observed()
    status, told = problem(node.call("PUT", "/v1/desired", body))
    assert (status, told.reason) == (400, "BadRequest")
    assert says in told.message
    assert node.observed() == before


def test_unknown_arenas_paths_and_numbers_get_a_problem(node: Node) -> None:
    assert problem(node.get(f"/v1/arenas/{ARENA}")) == (
        404,
        Problem(reason="UnknownArena", message=f"{ARENA} is not on node n1"),
    )
    assert problem(node.get("/v1/nothing"))[0] == 404
    assert problem(node.call("POST", "/v1/desired", b""))[0] == 405
    status, told = problem(node.get("/v1/observed?after=x"))
    assert (status, told.message) == (400, "after is not a whole number: 'x'")


def test_a_long_poll_ends_with_a_change_and_at_its_deadline(node: Node) -> None:
    counter = node.observed().counter
    answers: list[Observed] = []

    def poll() -> None:
        body = node.get(f"/v1/observed?after={counter}&waitSeconds=30", timeout=SECONDS)[1]
        answers.append(Observed.model_validate_json(body))

    poller = threading.Thread(target=poll)
    poller.start()
    uid = node.publish()
    poller.join(25)  # below the poll's own deadline: it was woken
    assert [pod.uid for pod in answers[0].pods] == [uid]
    assert answers[0].counter > counter
    node.unpublish(uid)
    eventually(lambda: not node.observed().pods, "pod gone")
    counter = node.observed().counter
    began = time.monotonic()
    body = node.get(f"/v1/observed?after={counter}&waitSeconds=1")[1]
    assert time.monotonic() - began >= 1
    assert Observed.model_validate_json(body).counter == counter
    # A counter of another instance is answered at once.
    node.get(f"/v1/observed?after={counter + 1000}&waitSeconds=30", timeout=25)


def test_health_and_readiness_and_what_the_memory_is(node: Node) -> None:
    assert node.get("/healthz") == (200, b"ok\n")
    assert node.get("/readyz") == (200, b"ok\n")
    memory = node.observed().memory
    assert memory.budget_bytes == node.budget
    assert memory.page_bytes in (4096, 16384, 65536)
    assert memory.shmem_enabled in memory.arena_pages or "huge pages:" in memory.arena_pages


def test_a_malformed_word_of_the_door_is_told_and_hurts_nobody(node: Node) -> None:
    bad = node.run / "meta" / "0badbad0-0000.json"
    bad.write_bytes(b"{")
    uid = node.publish()
    eventually(lambda: node.pod(uid), "the other pod is seen")
    assert [pod.uid for pod in node.observed().pods] == [uid]
    bad.unlink()
    node.unpublish(uid)


def test_missing_settings_are_named() -> None:
    from flashboot_agent.node.settings import Settings

    with pytest.raises(ValueError, match="set FLASHBOOT_NODE_NAME and FLASHBOOT_POD_IP"):
        Settings.from_env({})
    given = {"FLASHBOOT_NODE_NAME": "n", "FLASHBOOT_POD_IP": "1.2.3.4"}
    assert Settings.from_env(given).tls == "mutual"
    with pytest.raises(ValueError, match="FLASHBOOT_HTTP_PORT is 'x'; a whole number from 0 to 65535"):
        Settings.from_env({**given, "FLASHBOOT_HTTP_PORT": "x"})
    with pytest.raises(ValueError, match="FLASHBOOT_TLS is neither mutual nor off: 'on'"):
        Settings.from_env({**given, "FLASHBOOT_TLS": "on"})


def test_an_agent_without_its_holder_says_nothing_rather_than_that_nothing_is_here(node: Node) -> None:
    node.kill_agent()
    node.kill_holder()
    node.start_agent(until=503)
    for path in ("/v1/observed", f"/v1/arenas/{ARENA}"):
        status, told = problem(node.get(path))
        assert (status, told.reason) == (503, "NotReady")
        assert "holder" in told.message
    assert put(node, epoch=50)[0] == 200, "it takes its orders all the same"
    node.start_holder()
    eventually(lambda: node.get("/readyz")[0] == 200, "ready")
    assert node.observed().epoch == 50
