"""A trainer publishes versions and a receiver follows them, always by whole versions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.core.errors import (
    BadRequest,
    DeadlineExceeded,
    DeltaBaseMismatch,
    DeltaUntrusted,
    NotReady,
)
from flashboot_agent.delta.make import make
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.sync import press as press_module
from flashboot_agent.sync.chain import Retention
from flashboot_agent.sync.origin import DirectoryOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.tensors import Box, TensorPlaces, TensorSpec
from tests.syncs import (
    KEY,
    PLACES,
    arena,
    image,
    names,
    publish,
    receiver,
    versions,
)


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
