"""Small parts of the agent, each alone: board, desired state, documents, probe, shelf, logs, budget."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from datetime import timedelta
from pathlib import Path

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import BadRequest, IdentityMismatch, StaleEpoch, WrongNode
from flashboot_agent.core.identity import digest_of
from flashboot_agent.holder import budget, protocol
from flashboot_agent.holder.shelf import Shelf, ShelfError
from flashboot_agent.logs import JsonFormatter, Log
from flashboot_agent.memory.probe import HostFacts, choose, probe, selected_word
from flashboot_agent.node import board as boards
from flashboot_agent.node import documents
from flashboot_agent.node.board import Board
from flashboot_agent.node.desired import DesiredState
from flashboot_agent.node.pods import read_published
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.wire import door
from flashboot_agent.wire.base import now
from flashboot_agent.wire.desired import Desired
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_entries import Segment

A = "arena-" + "a" * 32


async def test_the_board_wakes_waiters_on_changes_from_any_thread() -> None:
    board = Board()
    board.bind(asyncio.get_running_loop())
    heard: list[int] = []
    board.listen(lambda: heard.append(board.counter))
    waiting = asyncio.create_task(board.wait(board.counter, 30))
    await asyncio.to_thread(board.changed)
    assert await waiting == board.counter == 2
    assert heard == [2]
    assert await board.wait(2, 0) == 2, "the deadline"


async def test_watermarks_wake_at_most_twice_a_second_and_never_get_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "SOFT_SECONDS", 0.05)
    board = Board()
    board.bind(asyncio.get_running_loop())
    for _ in range(1000):
        board.moved()
    assert await board.wait(1, 30) == 2
    board.moved()
    assert await board.wait(2, 30) == 3


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_desired_state_is_fenced_kept_and_grows_stale(tmp_path: Path) -> None:
    clock = Clock()
    state = DesiredState("n1", tmp_path, clock=clock)
    assert not state.fresh
    state.accept(Desired(epoch=3, revision=4, node="n1", ttl_seconds=10))
    for stale in (Desired(epoch=2, revision=9, node="n1"), Desired(epoch=3, revision=3, node="n1")):
        with pytest.raises(StaleEpoch) as refused:
            state.accept(stale)
        assert refused.value.epoch == 3
    with pytest.raises(WrongNode):
        state.accept(Desired(epoch=9, revision=9, node="n2"))
    clock.now = 10
    assert state.fresh
    clock.now = 10.1
    assert not state.fresh
    again = DesiredState("n1", tmp_path, clock=clock)
    again.load(now() + timedelta(seconds=5))
    assert (again.epoch, again.revision, again.fresh) == (3, 4, True)
    clock.now += 6
    assert not again.fresh, "the time that the agent was away counts"


@pytest.mark.parametrize("damage", [b"", b"{", b'{"highestEpoch":1}'])
def test_a_damaged_state_file_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    DesiredState("n1", tmp_path).accept(Desired(epoch=3, revision=4, node="n1"))
    (tmp_path / "desired.json").write_bytes(damage)
    again = DesiredState("n1", tmp_path)
    again.load(now())
    assert (again.current, again.epoch) == (None, 0)


def empty_layout(identity: dict[str, str], nbytes: int) -> bytes:
    return Layout(
        identity=identity, arena_bytes=nbytes, segments=[Segment(0, nbytes)], storages=[], tensors=[], bindings=[]
    ).to_bytes()


def meta(**facts: object) -> ArenaMeta:
    identity, data = {"model": "m"}, bytes(1000)
    digests = chunk_digests(data)
    base = {
        "arena": A,
        "identity": digest_of(identity),
        "nbytes": len(data),
        "layout": empty_layout(identity, len(data)),
        "chunk_digests": digests,
        "digest": root_digest(digests),
    }
    return ArenaMeta(**{**base, **facts})  # type: ignore[arg-type]


def test_documents_that_belong_together_pass() -> None:
    documents.check(meta())


@pytest.mark.parametrize(
    ("facts", "error", "says"),
    [
        ({"identity": "sha256:" + "1" * 64}, IdentityMismatch, "another identity"),
        ({"digest": "xxh3:" + "1" * 16}, BadRequest, "root"),
        ({"chunk_digests": bytes(16)}, BadRequest, "2 digests for 1000 bytes"),
        ({"nbytes": 999}, BadRequest, "speaks of 1000 bytes"),
        ({"layout": b"{}"}, BadRequest, "no layout document"),
        ({"layout": empty_layout({"model": "m"}, 999)}, BadRequest, "speaks of 999 bytes, the arena has 1000"),
        ({"layout": empty_layout({"model": "m"}, 1000)[:-1]}, BadRequest, "checksum"),
    ],
)
def test_documents_of_a_parent_that_do_not_belong_together_are_refused(
    facts: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        documents.check(meta(**facts))


GIB = 1 << 30


@pytest.mark.parametrize(
    ("facts", "pages", "why"),
    [
        (HostFacts(4096, "never", 0, 0, 2 << 20), "small", "4 KiB pages: shmem_enabled is never and no huge pages"),
        (HostFacts(65536, "never", 600, 8, 2 << 20), "small", "64 KiB pages: .* only 8 of 600 reserved"),
        (HostFacts(4096, "never", 600, 512, 2 << 20), "hugetlb", "2 MiB huge pages: 512 are free"),
        (HostFacts(4096, "advise", 0, 0, 2 << 20), "transparent", "shmem_enabled is advise"),
        (HostFacts(4096, "unreadable: x", 0, 0, 0), "small", "unreadable: x"),
    ],
)
def test_pages_are_chosen_by_what_the_node_gives(facts: HostFacts, pages: str, why: str) -> None:
    import re

    choice = choose(facts, GIB)
    assert choice.pages == pages
    assert re.search(why, choice.why)


def test_facts_are_read_and_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert probe(tmp_path).shmem_enabled == "unreadable: No such file or directory"
    assert selected_word("always [never] deny\n") == "never"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "HugePages_Total:      10\nHugePages_Free:        8\nHugePages_Rsvd:        3\nHugepagesize:       2048 kB\n"
    )
    found = probe(tmp_path)
    assert (found.huge_pages_total, found.huge_pages_free, found.huge_page_bytes) == (10, 5, 2 << 20)


def test_the_budget_is_the_cgroup_less_overhead_or_most_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  8388608 kB\nMemAvailable: 4194304 kB\n")
    assert budget.default_budget(tmp_path) == 6 * GIB
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert budget.default_budget(tmp_path) == 6 * GIB, "v1 without a limit"
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert budget.default_budget(tmp_path) == 6 * GIB, "v2 without a limit"
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{GIB}\n")
    assert budget.default_budget(tmp_path) == GIB - budget.OVERHEAD
    assert budget.available(tmp_path) == 4 * GIB


def test_a_create_that_is_given_up_half_way_leaves_nothing() -> None:
    shelf = Shelf(GIB, lambda: GIB)
    before = len(os.listdir("/proc/self/fd"))
    job = shelf.create(A, 200 << 20, "small")
    next(job)
    assert shelf.used_bytes == 200 << 20
    with pytest.raises(ShelfError, match="exists already"):
        next(shelf.create(A, 1, "small"))
    job.close()
    assert (shelf.used_bytes, shelf.slots, len(os.listdir("/proc/self/fd"))) == (0, {}, before)


def test_the_machine_itself_may_have_too_little() -> None:
    shelf = Shelf(GIB, lambda: 10)
    with pytest.raises(ShelfError, match="the machine has 10 bytes left") as refused:
        next(shelf.create(A, 11, "small"))
    assert refused.value.kind == protocol.NO_MEMORY


def test_files_that_the_door_still_writes_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pod = door.PublishedPod(uid="11111111-aaaa", namespace="s", name="p", service_account="d", published_at=now())
    for name in (f"{pod.uid}.json", ".22222222-bbbb.json", ".33333333-cccc.tmp"):
        (tmp_path / name).write_bytes(pod.to_json() if name[0] != "." else b"{")
    assert list(read_published(tmp_path, {})) == [pod.uid]
    assert caplog.records == []
    assert read_published(tmp_path / "nothing", {}) == {}


def test_the_holder_repeats_the_paths_of_the_wire() -> None:
    assert (protocol.RUN, protocol.SOCKET) == (door.RUN, door.HOLDER_SOCKET)


def test_logs_are_one_json_line_whatever_the_facts_are_called(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flashboot_agent.test"):
        Log("flashboot_agent.test").info("pod published", name="p", message="m", arena=A)
    line = json.loads(JsonFormatter(part="agent", node="n1").format(caplog.records[0]))
    assert line["event"] == "pod published"
    assert (line["part"], line["node"], line["name"], line["message"], line["arena"]) == ("agent", "n1", "p", "m", A)
