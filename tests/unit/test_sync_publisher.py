"""A trainer publishes versions, a receiver follows them, and both meet what goes wrong: always a whole version."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import (
    BadRequest,
    CheckpointMalformed,
    DeadlineExceeded,
    DeltaBaseMismatch,
    DeltaDamaged,
    DeltaUntrusted,
    DiskFull,
    NotReady,
)
from flashboot_agent.delta.make import make
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.files import write_atomically
from flashboot_agent.sync import press as press_module
from flashboot_agent.sync import shelf as shelf_module
from flashboot_agent.sync.chain import Retention
from flashboot_agent.sync.origin import DirectoryOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.resident import ResidentArena
from flashboot_agent.sync.tensors import Box, TensorPlaces, TensorSpec
from tests.children import in_child
from tests.syncs import PLACES, SPECS, Version, after, arena, files_of_at_most, image, publish, versions

KEY = Ed25519PrivateKey.generate()


def receiver(folder: Path, spool: Path, *, signed: bool = False) -> Receiver:
    return Receiver(DirectoryOrigin(folder), spool, [KEY.public_key()] if signed else None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_version_arrives_bit_for_bit(tmp_path: Path) -> None:
    folder, steps = tmp_path / "published", versions(4)
    memory = image(steps[0])
    target = arena(memory, 10, tmp_path / "arena")
    follower = receiver(folder, tmp_path / "spool", signed=True)
    with pytest.raises(NotReady, match="nothing is published"):
        follower.follow(target)
    with Publisher(folder, PLACES, key=KEY) as publisher:
        for number, version in enumerate(steps, 10):
            published = publish(publisher, number, version)
            assert (published.version, publisher.version) == (number, number)
            follower.follow(target)
            assert memory == image(version)
            assert (target.version, target.digest) == (number, published.digest)
    assert names(folder) == ["10-11.delta", "11-12.delta", "12-13.delta", "chain"]
    assert names(tmp_path / "spool") == []
    late = arena(image(steps[0]), 10, tmp_path / "late")
    assert [step.file for step in follower.follow(late, 12)] == ["10-11.delta", "11-12.delta"]
    assert late.version == 12
    with pytest.raises(DeltaUntrusted, match="public key"):
        receiver(folder, tmp_path / "spool").follow(late)


def test_files_that_are_not_its_own_stay(tmp_path: Path) -> None:
    others = ["0-1.delta.sha256", "step.delta", "step.delta.writing"]
    for name in [*others, "0-1.delta"]:
        (tmp_path / name).touch()
    steps = versions(3)
    with Publisher(tmp_path, PLACES):
        pass
    assert names(tmp_path) == sorted([*others, "0-1.delta"])  # no chain yet
    with Publisher(tmp_path, PLACES) as publisher:
        publish(publisher, 0, steps[0])
        (tmp_path / "7-8.delta").touch()
        publish(publisher, 1, steps[1])
    assert names(tmp_path) == sorted([*others, "0-1.delta", "chain"])


def test_a_closed_publisher_is_closed_for_processes_that_it_forked_too(tmp_path: Path) -> None:
    end, go = os.pipe()
    with Publisher(tmp_path, PLACES):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(end, 1)  # until the test has come to its end
            os._exit(0)
    Publisher(tmp_path, PLACES).close()
    os.close(go)
    os.close(end)
    os.waitpid(child, 0)


def test_a_chain_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chain")
    with pytest.raises(CheckpointMalformed, match="chain is no regular file"):
        receiver(tmp_path, tmp_path / "spool").chain()


def test_training_goes_on_while_a_version_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    steps = versions(3)

    def held(*args: Any, **kwargs: Any) -> Any:
        assert go.wait(30)
        return make(*args, **kwargs)

    monkeypatch.setattr(press_module, "make", held)
    with Publisher(tmp_path / "p", PLACES, wait_seconds=0.3) as publisher:
        publish(publisher, 0, steps[0])
        publisher.begin(1)
        for name, data in steps[1].items():
            publisher.add(name, data)
        pending = publisher.commit()  # comes back at once
        with pytest.raises(DeadlineExceeded, match="publishing version 1 is not done"):
            publisher.begin(2)
        go.set()
        assert pending.result(30).version == 1
        assert publish(publisher, 2, steps[2]).version == 2
    target = arena(image(steps[0]), 0, tmp_path / "arena")
    receiver(tmp_path / "p", tmp_path / "spool").follow(target)
    assert target.version == 2


def test_shards_from_several_ranks_and_tensors_that_are_kept(tmp_path: Path) -> None:
    base, new = versions(2)
    new["embed"] = base["embed"]
    memory = image(base)
    with Publisher(tmp_path / "p", PLACES) as publisher:
        publisher.begin(0)
        with pytest.raises(BadRequest, match="nothing to be kept as"):
            publisher.keep("embed")
        publisher.abandon()
        publish(publisher, 0, base)
        publisher.begin(1)
        publisher.keep("embed")
        publisher.add("scale", new["scale"])
        publisher.add("layers.0.weight", new["layers.0.weight"])
        rows = [new["layers.1.weight"][at : at + 1400] for at in range(0, 1_260_000, 1400)]
        publisher.add("layers.1.weight", b"".join(row[:800] for row in rows), Box((0, 0), (900, 400)))
        with pytest.raises(BadRequest, match=r"layers.1.weight \(270000 elements\)"):
            publisher.commit()
        publisher.add("layers.1.weight", b"".join(row[800:] for row in rows), Box((0, 400), (900, 300)))
        publisher.commit()
    target = arena(memory, 0, tmp_path / "arena")
    receiver(tmp_path / "p", tmp_path / "spool").follow(target)
    assert memory == image(new)


def test_calls_in_another_order_are_refused(tmp_path: Path) -> None:
    (base,) = versions(1)
    with Publisher(tmp_path / "p", PLACES) as publisher:
        with pytest.raises(BadRequest, match="no version is begun"):
            publisher.add("scale", base["scale"])
        for number in (-1, 1 << 63):
            with pytest.raises(BadRequest, match=f"version {number} is none"):
                publisher.begin(number)
        publish(publisher, 5, base)
        with pytest.raises(BadRequest, match="version 5 is published"):
            publisher.begin(5)
        publisher.begin(6)
        with pytest.raises(BadRequest, match=r"version 6 is begun"):
            publisher.begin(7)
        with pytest.raises(BadRequest, match="side by side"):
            publisher.add("scale", memoryview(b"abcd")[::2])
        with pytest.raises(BadRequest, match="another process publishes there"):
            Publisher(tmp_path / "p", PLACES)
    with pytest.raises(BadRequest, match="publish them to another folder"):
        Publisher(tmp_path / "p", TensorPlaces({"other": TensorSpec("BF16", (3,))}))
    Publisher(tmp_path / "p", PLACES).close()


def test_a_publisher_goes_on_from_any_version_of_its_chain(tmp_path: Path) -> None:
    folder, steps = tmp_path / "p", versions(4)
    with Publisher(folder, PLACES) as publisher:
        for number, version in enumerate(steps[:3]):
            publish(publisher, number, version)
    for number in (0, 1, 2):
        with Publisher(folder, PLACES) as publisher:
            assert publisher.version == 2
            assert publish(publisher, number, steps[number]).version == 2
    with Publisher(folder, PLACES) as publisher:
        with pytest.raises(DeltaBaseMismatch, match="those of version 0"):
            publish(publisher, 1, steps[0])
        with pytest.raises(DeltaBaseMismatch, match="of no version"):
            publish(publisher, 1, steps[3])
        with pytest.raises(BadRequest, match="which has 2, 1, 0: begin with"):
            publish(publisher, 3, steps[3])
        publish(publisher, 0, steps[0])  # a trainer that went back to its first checkpoint
        publish(publisher, 3, steps[3])
    memory = image(steps[1])
    target = arena(memory, 1, tmp_path / "arena")
    receiver(folder, tmp_path / "spool").follow(target)
    assert memory == image(steps[3])
    with pytest.raises(DeltaUntrusted, match="not signed"):
        Publisher(folder, PLACES, key=KEY)


def test_merged_deltas_and_what_is_kept(tmp_path: Path) -> None:
    folder, steps = tmp_path / "p", versions(6)
    base = MemorySource(memoryview(image(steps[0])), PLACES.runs, PLACES.content, "saved", subject="checkpoint")
    with Publisher(folder, PLACES, retention=Retention(deltas=4)) as publisher:
        for number, version in enumerate(steps[:5]):
            publish(publisher, number, version)
        alone = sum(path.stat().st_size for path in folder.glob("*.delta"))
        merged = publisher.compact(base, 0).result(60)
        assert merged.step
        assert merged.step.file == "0-4.delta"
        assert merged.step.nbytes < alone
        assert names(folder) == ["0-4.delta", "1-2.delta", "2-3.delta", "3-4.delta", "chain"]
        with pytest.raises(BadRequest, match="one delta away"):
            publisher.compact(base, 0).result(60)
        with pytest.raises(DeltaBaseMismatch, match=r"1-2.delta .*chunk 0"):
            publisher.compact(base, 1).result(60)
        with pytest.raises(BadRequest, match="no delta begins at version 9"):
            publisher.compact(base, 9).result(60)
        for number in (0, 1):
            memory = image(steps[number])
            taken = receiver(folder, tmp_path / "spool").follow(arena(memory, number, tmp_path / f"arena{number}"))
            assert len(taken) == (1, 3)[number]
            assert memory == image(steps[4])
        publish(publisher, 5, steps[5])
        assert names(folder) == ["0-4.delta", "2-3.delta", "3-4.delta", "4-5.delta", "chain"]
    memory = image(steps[1])
    with pytest.raises(DeltaBaseMismatch, match="lead from version 1 to 5: its deltas begin at versions 4, 3, 2, 0"):
        receiver(folder, tmp_path / "spool").follow(arena(memory, 1, tmp_path / "arena"))
    assert memory == image(steps[1])


def test_versions_between_that_are_not_published_are_in_the_next_delta(tmp_path: Path) -> None:
    steps = versions(4)
    with Publisher(tmp_path / "p", PLACES) as publisher:
        publish(publisher, 0, steps[0])
        assert publish(publisher, 3, steps[3]).step
    memory = image(steps[0])
    taken = receiver(tmp_path / "p", tmp_path / "spool").follow(arena(memory, 0, tmp_path / "arena"))
    assert [step.file for step in taken] == ["0-3.delta"]
    assert memory == image(steps[3])


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


def test_a_way_that_vanishes_meanwhile_is_found_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, steps = tmp_path / "p", versions(3)
    with Publisher(folder, PLACES, retention=Retention(deltas=2)) as publisher:
        for number, version in enumerate(steps):
            publish(publisher, number, version)
        base = MemorySource(memoryview(image(steps[0])), PLACES.runs, PLACES.content, "saved", subject="checkpoint")
        origin = DirectoryOrigin(folder)
        stale = [origin.chain()]
        publisher.compact(base, 0).result(60)
        assert not (folder / "0-1.delta").exists()
        fresh = origin.chain
        monkeypatch.setattr(origin, "chain", lambda: stale.pop() if stale else fresh())
        memory = image(steps[0])
        taken = Receiver(origin, tmp_path / "spool", None).follow(arena(memory, 0, tmp_path / "arena"))
    assert [step.file for step in taken] == ["0-2.delta"]
    assert memory == image(steps[2])


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
