"""Seed = plain SGLang = attach: by place, shape, stride, dtype, class, bytes, marks and ties, and where they lie.

What comes out for every model stands in docs/compatibility.md; the last test compares that file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.engine import marks, walk
from flashboot_agent.wire import attach as wire
from flashboot_agent.wire.place import Place
from tests.engine import compatibility, trios
from tests.engine.runtime import CASES
from tests.engine.trios import Trio

rows: dict[str, compatibility.Row] = {}


@contextmanager
def measured(name: str, checkpoints: dict[str, Path], runner: Any) -> Iterator[Trio]:
    folder = Path(tempfile.mkdtemp(prefix="fb-"))
    with trios.three(checkpoints[name], folder / "agent.sock") as made:
        rows[name] = compatibility.row(made, runner)
        yield made
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=CASES)
def trio(request: pytest.FixtureRequest, checkpoints: dict[str, Path], runner: Any) -> Iterator[Trio]:
    with measured(request.param, checkpoints, runner) as made:
        yield made


def test_the_seed_is_what_plain_sglang_is(trio: Trio) -> None:
    assert len(list(walk.tensors(trio.plain))) > 10
    assert trios.differences(trio.plain, trio.seeded, trio.layout) == []


def test_the_attached_model_is_what_plain_sglang_is(trio: Trio) -> None:
    assert trios.differences(trio.plain, trio.attached, trio.layout) == []
    assert not trio.attached.training


def test_greedy_tokens_are_the_same_where_there_is_a_forward_pass(trio: Trio) -> None:
    row = rows[trio.name]
    assert row.tokens == ("no forward pass on a CPU" if row.cls in compatibility.NO_FORWARD else "equal")


def test_ties_are_the_same_objects(trio: Trio) -> None:
    embedding = ["lm_head.weight", "model.embed_tokens.weight"]
    assert (embedding in [sorted(tie) for tie in trios.ties(trio.attached)]) == trio.plain.config.tie_word_embeddings


def test_the_arena_is_mapped_read_only(trio: Trio) -> None:
    begin = trio.attached.model.norm.weight.untyped_storage().data_ptr()
    maps = Path("/proc/self/maps").read_text().splitlines()
    for line in maps:
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= begin < last:
            assert line.split()[1] == "r--s", line
            break
    else:
        pytest.fail(f"{begin:x} is not mapped")
    assert [line for line in maps if "memfd:arena" in line and " rw" in line] == []


def test_seed_and_attached_model_map_the_arena_once_each(trio: Trio) -> None:
    """The mapping through which the seed looked before the seal is gone."""
    memory = trio.peer.arena(Place()).memory
    assert memory is not None
    inode = str(os.fstat(memory).st_ino)
    assert sum(line.split()[4] == inode for line in Path("/proc/self/maps").read_text().splitlines()) == 2


def test_preloaded_bytes_are_the_arena_for_an_attached_engine_only(trio: Trio) -> None:
    assert trio.seed_loader.preloaded_weights_bytes == 0
    assert trio.attach_loader.preloaded_weights_bytes == trio.peer.nbytes > 0


def test_the_processes_rotary_cache_is_left_alone(trio: Trio) -> None:
    assert trio.rope_after == trio.rope_before
    assert not any(buffer.is_meta for module in trio.rope_after.values() for buffer in module.buffers())


def test_the_layout_is_deterministic_and_carries_the_identity(trio: Trio) -> None:
    from flashboot_agent.engine.plan import plan

    layout = trio.layout
    left = (layout.scalars, layout.structure, layout.deleted)
    again = plan(walk.tensors(trio.plain), layout.identity, *left).layout
    assert again == layout
    assert layout.identity["architecture"] == type(trio.plain).__name__


def test_what_the_load_stamps_is_carried(trio: Trio) -> None:
    """Each mark of the layout is one of the attached model: as_loaded applied it, or it was so by construction."""
    there = marks.marks(trio.attached)
    for name, stamped in trio.layout.scalars.items():
        for attribute, value in stamped.items():
            assert marks.same(there[name][attribute], value), (name, attribute)


def test_the_agent_heard_both_engines(trio: Trio) -> None:
    trio.peer.wait_for(wire.Attached, 2)
    kinds = [type(message) for message in trio.peer.seen]
    assert kinds.count(wire.Hello) == 2
    assert kinds.index(wire.Allocate) < kinds.index(wire.Commit)
    first, second = (message.identity for message in trio.peer.seen if isinstance(message, wire.Hello))
    assert first == second


def test_the_table_is_the_one_in_the_documentation(checkpoints: dict[str, Path], runner: Any) -> None:
    for name in CASES.keys() - rows.keys():
        with measured(name, checkpoints, runner):
            pass
    compatibility.compare(compatibility.document(rows, checkpoints["llama"]))
