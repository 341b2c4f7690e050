"""The demo's pure parts: what it computes from the agents' words, what it prints, when it says no."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.checks import checks, token_differences
from demo.live import NodeView
from demo.report import Report, chain, links, phases
from demo.screen import Screen, line
from demo.settings import Settings
from demo.stages import Progress
from demo.timeline import Replica, replicas
from flashboot_agent.wire.base import rfc3339
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.observed_arena import Path as BytePath
from flashboot_agent.wire.observed_pod import ObservedPod, ObservedRank, StartupTimes
from kit.engines import Answer, first_difference
from kit.errors import KitError

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ARENA = "arena-" + "a" * 32
BYTES = 256 << 20


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def arena(**changes: Any) -> ObservedArena:
    facts: dict[str, Any] = {
        "arena": ARENA, "namespace": "serving", "model_replica": "m", "model_replica_uid": "0" * 8,
        "expected_identity": "sha256:" + "0" * 64, "state": "sealed", "way": "clone", "bytes": BYTES,
        "watermark": BYTES,
        "digest": "xxh3:" + "0" * 16, "created_at": at(0.2), "started_at": at(0.3), "sealed_at": at(2.3),
        "parent": "n1",
    }  # fmt: skip
    return ObservedArena(**{**facts, **changes})


def pod(name: str, uid: str, **changes: Any) -> ObservedPod:
    """`changes`: of its only rank."""
    rank: dict[str, Any] = {"phase": "attached", "hello_at": at(20), "attached_at": at(20.1), "way": "clone"}
    return ObservedPod(
        uid=uid,
        namespace="serving",
        name=name,
        model_replica="m",
        published_at=at(0.2),
        ranks=[ObservedRank(**{**rank, **changes})],
    )


def api_pod(name: str, uid: str) -> dict[str, Any]:
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:55Z"},
    ]
    return {"metadata": {"name": name, "uid": uid}, "status": {"conditions": conditions}}


def replica(number: int, **changes: Any) -> Replica:
    facts: dict[str, Any] = {
        "pod": f"m-{number}", "node": f"n{number}", "bound": at(0), "clone_started": at(0.3), "clone_done": at(2.3),
        "asked_to_attach": at(20), "engine_attached": at(20.1), "ready": at(50), "path": "clone",
        "digest": "xxh3:" + "0" * 16, "bytes": BYTES, "bytes_out": BYTES, "parent": f"n{number - 1}",
        "transport": "tcp",
        "transport_reason": "always there", "refetched_chunks": 0,
    }  # fmt: skip
    return Replica(**{**facts, **changes})


def four() -> list[Replica]:
    seed = replica(1, path="seed", parent=None, transport=None, clone_done=at(30), asked_to_attach=at(20))
    return [seed, replica(2), replica(3), replica(4, bytes_out=0)]


def test_the_report_tells_every_link_and_what_all_clones_received_together() -> None:
    from_source = BytePath(node="n1", transport="tcp", bytes_in=BYTES)
    two = [BytePath(node="n2", transport="tcp", bytes_in=BYTES // 2), BytePath(node="n1", transport="tcp", bytes_in=0)]
    lines = links([replica(1, path="seed"), replica(2, paths=[from_source]), replica(3, paths=two)])
    assert lines[0] == f"| n1 | n2 | tcp | {BYTES} | 1.000 |"
    assert lines[1:3] == ["| n1 | n3 | tcp | 0 | 0.000 |", f"| n2 | n3 | tcp | {BYTES // 2} | 0.500 |"]
    assert lines[3] == f"| all | all clones | | {BYTES * 3 // 2} | 0.750 of what they hold |"
    assert links([replica(1, path="seed")]) == []


def test_the_report_shows_what_each_engine_told() -> None:
    times = StartupTimes(
        load_weight_milliseconds=12,
        kv_cache_allocation_milliseconds=345,
        cuda_graph_milliseconds=0,
        scheduler_milliseconds=20000,
        tokenizer_milliseconds=21000,
        api_ready_milliseconds=None,
    )
    told = replica(2, startup=times)
    assert phases(told) == "| m-2 | 0.01 | 0.34 | 0.00 | 20.00 | 21.00 |  |"
    assert phases(replica(3)).count("not told") == phases(told).count("|") - 2
    facts = told.json()["startup"]
    assert isinstance(facts, dict)
    assert facts["kv_cache_allocation_milliseconds"] == 345


def test_a_replica_is_put_together_from_both_sides() -> None:
    (made,) = replicas([api_pod("m-1", "11111111")], [NodeView("n1", arena(), pod("m-1", "11111111"))])
    assert made.early
    assert made.clone_seconds == 2
    assert made.json()["bound"] == "2026-01-02T03:04:05.000Z"
    assert made.json()["clone_done"] == "2026-01-02T03:04:07.300Z"


@pytest.mark.parametrize(
    ("view", "missing"),
    [
        (NodeView("n1", None, pod("m-1", "11111111")), "no agent knows pod m-1"),
        (NodeView("n1", arena(), pod("m-1", "22222222")), "no agent knows pod m-1"),
        (NodeView("n1", arena(sealed_at=None), pod("m-1", "11111111")), "n1 does not tell clone_done of pod m-1"),
        (NodeView("n1", arena(digest=None), pod("m-1", "11111111")), "n1 does not tell digest of pod m-1"),
        (NodeView("n1", arena(), pod("m-1", "11111111", hello_at=None)), "asked_to_attach"),
    ],
)
def test_what_an_agent_does_not_tell_is_named(view: NodeView, missing: str) -> None:
    with pytest.raises(KitError, match=missing):
        replicas([api_pod("m-1", "11111111")], [view])


def test_all_checks_pass_for_a_chain() -> None:
    assert [check for check in checks(Settings(), four(), []) if not check.passed] == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({1: {"digest": "xxh3:" + "1" * 16}}, "digest"),
        ({0: {"bytes_out": 3 * BYTES}}, "left the source"),
        ({1: {"clone_done": at(21)}, 2: {"clone_done": at(21)}}, "before their engine asked"),
        ({1: {"path": "seed"}}, "loaded the checkpoint"),
    ],
)
def test_each_check_can_fail(changed: dict[int, dict[str, Any]], named: str) -> None:
    lives = [replica(n + 1, **{**vars(r), **changed.get(n, {})}) for n, r in enumerate(four())]
    failed = [check for check in checks(Settings(), lives, []) if not check.passed]
    assert named in " ".join(check.what for check in failed)


def test_other_tokens_fail_and_say_where() -> None:
    mine, theirs = Answer("a", ((1, 2), (3, 4))), Answer("b", ((1, 2), (3, 5)))
    assert first_difference(mine, mine) is None
    difference = first_difference(mine, theirs)
    assert difference == "prompt 1, token 1: a says 4, b says 5"
    assert token_differences(mine, mine, [mine]) == []
    found = token_differences(mine, mine, [mine, theirs])
    assert difference in found
    (check,) = [check for check in checks(Settings(), four(), found) if "tokens" in check.what]
    assert not check.passed


def test_the_chain_is_drawn_from_parents() -> None:
    assert [text.split(" (")[0] for text in chain(four())] == ["checkpoint → n1", "└─ n2", "   └─ n3", "      └─ n4"]


def test_the_report_has_the_promised_keys(tmp_path: Path) -> None:
    lives = four()
    verdicts = checks(Settings(), lives, [])
    report = Report(Settings(), lives, verdicts, True, 5, 24, [], "4 KiB pages")
    report.write(tmp_path)
    facts = report.json()
    assert facts["replicas"] == 4
    assert facts["tokens_equal"] is True
    assert facts["arena_bytes"] == facts["source_bytes_out"] == BYTES
    (first, *_) = lives
    promised = {
        "pod", "node", "bound", "clone_started", "clone_done", "engine_attached", "ready", "path", "digest",
        "asked_to_attach",
    }  # fmt: skip
    assert promised <= first.json().keys()
    assert "FlashBoot demo: passed" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.json").read_text().startswith("{")


def test_a_node_is_one_line() -> None:
    half = arena(state="filling", watermark=BYTES // 2, children=["n3"])
    text = line(NodeView("n2", half, pod("m-7d9f-abcde", "11111111", phase="coming")), ready=False)
    assert "50 %" in text
    assert "from n1" in text
    assert "to n3" in text
    assert "engine waits for its weights" in text
    assert line(NodeView("n4"), ready=False) == "n4           -"
    assert "?" in line(NodeView("n4", trouble="no agent runs on n4"), ready=False)


def test_off_a_terminal_only_news_is_printed() -> None:
    out = io.StringIO()
    screen = Screen(out)
    view = NodeView("n2", arena(), pod("m-1", "11111111"))
    screen.draw([view], frozenset())
    screen.draw([view], frozenset())
    screen.draw([view], frozenset({"m-1"}))
    assert len(out.getvalue().splitlines()) == 2


def test_stages_tell_their_outcome() -> None:
    out = io.StringIO()
    progress = Progress(out)
    with progress.stage("one") as stage:
        stage.say("cached")
    with pytest.raises(KitError), progress.stage("two"):
        raise KitError("no")
    assert [stage.name for stage in progress.stages] == ["one", "two"]
    lines = out.getvalue().splitlines()
    assert "ok" in lines[1]
    assert lines[1].endswith("cached")
    assert "failed" in lines[-1]


def test_times_are_rfc_3339_in_utc() -> None:
    assert rfc3339(START + timedelta(milliseconds=7)) == "2026-01-02T03:04:05.007Z"
