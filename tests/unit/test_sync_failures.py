"""What goes wrong where a trainer publishes: full disks, damage, processes that die; always a whole version."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import (
    BadRequest,
    DeltaBaseMismatch,
    DeltaDamaged,
    DiskFull,
    NotReady,
)
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.files import write_atomically
from flashboot_agent.sync import shelf as shelf_module
from flashboot_agent.sync.chain import Retention
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.resident import ResidentArena
from flashboot_agent.sync.tensors import TensorPlaces
from tests.children import in_child
from tests.syncs import (
    PLACES,
    SPECS,
    Version,
    after,
    arena,
    files_of_at_most,
    image,
    names,
    publish,
    receiver,
    versions,
)


def test_a_full_disk_is_told_and_costs_nothing(tmp_path: Path) -> None:
    folder, steps = tmp_path / "p", versions(4)
    with Publisher(folder, PLACES) as publisher:
        publish(publisher, 0, steps[0])
        publish(publisher, 1, steps[1])
        before = names(folder)
        for limit in (100, 3000, 9000):
            with files_of_at_most(limit), pytest.raises(DiskFull, match="make room"):
                publish(publisher, 2, steps[2])
            assert names(folder) == before
        publisher.begin(2)
        for name, data in steps[2].items():
            publisher.add(name, data)
        with files_of_at_most(3000):
            publisher.commit()
            with pytest.raises(DiskFull):  # nobody asked for the result: the next call tells it, once
                publisher.begin(3)
        assert publish(publisher, 3, steps[3]).version == 3
    memory = image(steps[0])
    taken = receiver(folder, tmp_path / "spool").follow(arena(memory, 0, tmp_path / "arena"))
    assert [step.file for step in taken] == ["0-1.delta", "1-3.delta"]
    assert memory == image(steps[3])


def test_a_tensor_is_not_kept_as_it_was_in_a_version_that_nobody_has(tmp_path: Path) -> None:
    folder, steps = tmp_path / "p", versions(4)
    with Publisher(folder, PLACES) as publisher:
        publish(publisher, 0, steps[0])
        publisher.begin(1)
        publisher.keep("scale")
        for name in SPECS.keys() - {"scale"}:
            publisher.add(name, steps[1][name])
        with files_of_at_most(3000), pytest.raises(DiskFull):
            publisher.commit().result()
        publisher.begin(2)
        publisher.keep("scale")  # it was kept in that version, too
        with pytest.raises(BadRequest, match="embed as it was added last is not in version 0, the newest"):
            publisher.keep("embed")
        publisher.abandon()
        publish(publisher, 3, steps[2])
        publisher.begin(4)
        publisher.keep("embed")
    with Publisher(folder, PLACES) as publisher:
        publish(publisher, 0, steps[0])  # an older state of the training than receivers have
        publisher.begin(4)
        with pytest.raises(BadRequest, match="scale as it was added last is not in version 3"):
            publisher.keep("scale")


def test_an_error_behind_the_new_chain_is_no_reason_to_encode_against_the_old_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, steps = tmp_path / "p", versions(4)

    def late(path: Path, data: bytes) -> None:
        write_atomically(path, data)
        raise OSError(5, "Input/output error")

    with Publisher(folder, PLACES) as publisher:
        publish(publisher, 0, steps[0])
        publish(publisher, 1, steps[1])
        with monkeypatch.context() as patch:
            patch.setattr(shelf_module, "write_atomically", late)
            with pytest.raises(OSError, match="Input/output"):
                publish(publisher, 2, steps[2])
        assert publisher.version == 2
        publish(publisher, 3, steps[3])
    memory = image(steps[0])
    receiver(folder, tmp_path / "spool").follow(arena(memory, 0, tmp_path / "arena"))
    assert memory == image(steps[3])


def test_a_base_that_somebody_wrote_to_is_noticed(tmp_path: Path) -> None:
    folder, steps = tmp_path / "p", versions(2)
    with Publisher(folder, PLACES) as publisher:
        publish(publisher, 0, steps[0])
        publisher._press.base[7] ^= 1
        with pytest.raises(DeltaBaseMismatch, match="its bytes were changed"):
            publish(publisher, 1, steps[1])
        assert names(folder) == ["chain"]
    with pytest.raises(BadRequest, match="is closed"):
        publisher.begin(2)


def test_damage_leaves_the_last_whole_version(tmp_path: Path) -> None:
    folder, steps = tmp_path / "p", versions(3)
    with Publisher(folder, PLACES) as publisher:
        for number, version in enumerate(steps):
            publish(publisher, number, version)
    good = (folder / "1-2.delta").read_bytes()
    follower = receiver(folder, tmp_path / "spool")
    swapped = (folder / "0-1.delta").read_bytes()
    for broken, says in (
        (good[:-1], "is cut off"),
        (good + b"x", "goes on"),
        (good[:500] + b"?" + good[501:], "differs"),
        (swapped, "another delta than the chain names"),
        (None, "not there"),
    ):
        path = folder / "1-2.delta"
        path.unlink() if broken is None else path.write_bytes(broken)
        memory = image(steps[0])
        target = arena(memory, 0, tmp_path / "arena")
        with pytest.raises(DeltaDamaged, match=f"1-2.delta.*{says}"):
            follower.follow(target)
        assert target.version == 1
        assert memory == image(steps[1])
        path.write_bytes(good)
        follower.follow(target)
        assert memory == image(steps[2])
    other = MemorySource(memoryview(memory), PLACES.runs, "sha256:" + "0" * 64, subject="checkpoint")
    with pytest.raises(DeltaBaseMismatch, match="has versions of checkpoint"):
        follower.follow(ResidentArena(other, 2, b"", tmp_path / "arena"))


def dies_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The process ends right before its so-manyth call that changes what is on disk for good."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if count == step:
                os._exit(9)
            count += 1
            return real(*args, **kwargs)

        return call

    for name in ("fsync", "replace", "rename", "unlink"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    for name in ("rename", "unlink"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))


def small(version: Version) -> Version:
    return {name: version[name] for name in ("embed", "scale")}


SMALL = TensorPlaces({name: SPECS[name] for name in ("embed", "scale")})


def small_arena(version: Version, number: int, folder: Path) -> ResidentArena:
    source = MemorySource(memoryview(image(version, SMALL)), SMALL.runs, SMALL.content, subject="checkpoint")
    return ResidentArena(source, number, chunk_digests(source.memory), folder)


def test_a_publisher_that_dies_anywhere_leaves_whole_versions_and_its_successor_goes_on(tmp_path: Path) -> None:
    steps = [small(version) for version in versions(1)]
    for seed in range(1, 4):
        steps.append(after(steps[-1], seed))

    def work(folder: Path, step: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            dies_at(patch, step)
            with Publisher(folder, SMALL, retention=Retention(deltas=1)) as publisher:
                for number, version in enumerate(steps[:3]):
                    publish(publisher, number, version)

    step, reached = 0, set()
    while True:
        folder = tmp_path / str(step)
        status = in_child(partial(work, folder, step))
        found = read_chain(folder, tmp_path / "spool")
        if found is not None:
            reached.add(found)
        if found:  # a reader comes there from the version before
            target = small_arena(steps[found - 1], found - 1, tmp_path / f"reader{step}")
            assert [each.file for each in receiver(folder, tmp_path / "spool").follow(target)] == [
                f"{found - 1}-{found}.delta"
            ]
        with Publisher(folder, SMALL) as publisher:
            assert publisher.version == found
            assert all(".writing" not in name for name in names(folder))
            at = found or 0
            publish(publisher, at, steps[at])
            publish(publisher, 3, steps[3])
        target = small_arena(steps[at], at, tmp_path / f"arena{step}")
        receiver(folder, tmp_path / "spool").follow(target)
        assert target.digest == root_digest(chunk_digests(bytes(image(steps[3], SMALL))))
        if status == 0:
            break
        assert status == 9
        step += 1
    print(f"{step} moments at which it died")
    assert reached == {0, 1, 2}
    assert step > 20


def read_chain(folder: Path, spool: Path) -> int | None:
    """What a reader believes to be the newest version."""
    try:
        return receiver(folder, spool).chain().version
    except NotReady:
        return None
