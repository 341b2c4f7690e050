"""Several processes write one version: the same bytes as one alone would publish, and nobody writes at a wrong time.

The locks are those of open files, so that one process stands for several here; tests/engine/test_sync_shards.py has
real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from flashboot_agent.core.errors import BadRequest, DeadlineExceeded, DiskFull
from flashboot_agent.sync import shared
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.shard_writer import ShardWriter
from flashboot_agent.sync.shared_images import SharedImages
from flashboot_agent.sync.tensors import Box, TensorPlaces, TensorSpec
from tests.syncs import PLACES, SPECS, Version, files_of_at_most, publish, versions

MATRICES = ("layers.0.weight", "layers.1.weight")
SOON = 0.05


class Stack:
    """A publisher, which has what is not cut, and writers of rows of the matrices."""

    def __init__(
        self,
        folder: Path,
        writers: int,
        stack: ExitStack,
        *,
        wait_seconds: float = 20,
        there: list[ShardWriter] | None = None,
    ) -> None:
        """`there`: writers that were made before."""
        self.images = stack.enter_context(SharedImages(folder / "memory", PLACES.nbytes, range(1, writers + 1)))
        self.publisher = stack.enter_context(
            Publisher(folder / "published", PLACES, shared=self.images, wait_seconds=wait_seconds)
        )
        self.writers = there or [
            stack.enter_context(ShardWriter(folder / "memory", PLACES, rank, wait_seconds=SOON))
            for rank in range(1, writers + 1)
        ]

    def begin(self, number: int) -> None:
        self.publisher.begin(number)
        for writer in self.writers:
            writer.begin(number)

    def write(self, version: Version, *, but: int | None = None) -> None:
        """Everything of a version, but not the shards of one rank."""
        for name in SPECS.keys() - set(MATRICES):
            self.publisher.add(name, version[name])
        for rank, writer in enumerate(self.writers, 1):
            if rank != but:
                self.write_shards(rank, version)
                writer.commit()

    def write_shards(self, rank: int, version: Version) -> None:
        """Rows, as many for each but for the last one, which has fewer or none."""
        for name in MATRICES:
            (rows, columns), each = SPECS[name].shape, -(-SPECS[name].shape[0] // len(self.writers))
            begin, end = min(rows, (rank - 1) * each), min(rows, rank * each)
            data = version[name][2 * columns * begin : 2 * columns * end]
            self.writers[rank - 1].add(name, data, Box((begin, 0), (end - begin, columns)))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as all_of_them:
        yield all_of_them


def alone(folder: Path, all_versions: list[Version]) -> list[str]:
    with Publisher(folder, PLACES) as publisher:
        return [publish(publisher, number, version).digest for number, version in enumerate(all_versions)]


@pytest.mark.parametrize("writers", [1, 3, 7])
def test_shards_of_several_make_the_files_that_one_alone_makes(tmp_path: Path, stack: ExitStack, writers: int) -> None:
    several, all_versions = Stack(tmp_path, writers, stack), versions(4)
    digests = []
    for number, version in enumerate(all_versions):
        several.begin(number)
        several.write(version)
        digests.append(several.publisher.commit().result(60).digest)
    assert digests == alone(tmp_path / "alone", all_versions)
    files = {path.name: path.read_bytes() for path in (tmp_path / "published").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "alone").iterdir()}


def test_the_publisher_waits_for_the_last_one(tmp_path: Path, stack: ExitStack) -> None:
    several, (version,) = Stack(tmp_path, 2, stack), versions(1)
    several.begin(0)
    several.write(version, but=2)
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(several.publisher.commit)
        several.write_shards(2, version)
        assert not committing.done()
        several.writers[1].commit()
        assert [committing.result(20).result(20).digest] == alone(tmp_path / "alone", [version])


def test_who_is_not_done_is_named_and_may_be_late(tmp_path: Path, stack: ExitStack) -> None:
    several, (version,) = Stack(tmp_path, 3, stack, wait_seconds=SOON), versions(1)
    several.begin(0)
    several.write(version, but=2)
    with pytest.raises(DeadlineExceeded, match=r"version 0: ranks 2 are not done after 0.05 s; commit\(\) once more"):
        several.publisher.commit()
    several.write_shards(2, version)
    several.writers[1].commit()
    assert [several.publisher.commit().result(20).digest] == alone(tmp_path / "alone", [version])


def test_what_nobody_has_written_is_named_and_added(tmp_path: Path, stack: ExitStack) -> None:
    several, (version,) = Stack(tmp_path, 2, stack), versions(1)
    several.begin(0)
    several.write(version, but=2)
    several.writers[1].add("layers.0.weight", version["layers.0.weight"][150 * 1400 :], Box((150, 0), (150, 700)))
    several.writers[1].commit()
    with pytest.raises(BadRequest, match=r"layers.1.weight \(315000 elements\)"):
        several.publisher.commit()
    rest = version["layers.1.weight"][450 * 1400 :]
    several.publisher.add("layers.1.weight", rest, Box((450, 0), (450, 700)))
    assert [several.publisher.commit().result(20).digest] == alone(tmp_path / "alone", [version])


def test_the_same_shard_of_two_is_a_replica(tmp_path: Path, stack: ExitStack) -> None:
    several, (version,) = Stack(tmp_path, 2, stack), versions(1)
    several.begin(0)
    several.writers[0].add("embed", version["embed"])
    several.writers[1].add("embed", version["embed"])
    several.write(version)
    assert [several.publisher.commit().result(20).digest] == alone(tmp_path / "alone", [version])


def test_shards_that_overlap_end_the_version(tmp_path: Path, stack: ExitStack) -> None:
    several, all_versions = Stack(tmp_path, 2, stack), versions(2)
    several.begin(0)
    several.write(all_versions[0])
    several.publisher.commit()
    several.begin(1)
    several.write(all_versions[1], but=2)
    several.write_shards(2, all_versions[1])
    several.writers[1].add("embed", all_versions[1]["embed"][:1000], Box((0,), (500,)))
    several.writers[1].commit()
    with pytest.raises(BadRequest, match=r"version 1: embed\[0:500\] was added already, as \[0:1001\]"):
        several.publisher.commit()
    several.begin(2)
    several.write(all_versions[1])
    assert several.publisher.commit().result(20).digest == alone(tmp_path / "alone", all_versions)[-1]


def test_no_version_begins_while_somebody_writes_the_one_before(tmp_path: Path, stack: ExitStack) -> None:
    several, (version,) = Stack(tmp_path, 1, stack, wait_seconds=SOON), versions(1)
    several.begin(0)
    several.publisher.abandon()
    with pytest.raises(DeadlineExceeded, match="a process still writes shards"):
        several.publisher.begin(1)
    several.writers[0].abandon()
    several.begin(2)
    several.write(version)
    assert [several.publisher.commit().result(20).digest] == alone(tmp_path / "alone", [version])


def test_what_was_done_for_a_version_that_began_once_more_does_not_count(tmp_path: Path, stack: ExitStack) -> None:
    several, (version,) = Stack(tmp_path, 1, stack, wait_seconds=SOON), versions(1)
    several.begin(0)
    several.write_shards(1, version)
    several.writers[0].commit()
    several.publisher.abandon()
    several.publisher.begin(0)
    with pytest.raises(DeadlineExceeded, match="ranks 1 are not done"):
        several.publisher.commit()


def test_a_version_is_written_to_while_it_is_begun_alone(tmp_path: Path, stack: ExitStack) -> None:
    several, (version,) = Stack(tmp_path, 1, stack), versions(1)
    (writer,) = several.writers
    with pytest.raises(DeadlineExceeded, match=r"has not begun version 0 after .* begun is nothing"):
        writer.begin(0)
    several.publisher.begin(3)
    with pytest.raises(BadRequest, match="rank 1: version 3 is begun, not 2"):
        writer.begin(2)
    with pytest.raises(DeadlineExceeded, match=r"has not begun version 4 after .* begun is version 3"):
        writer.begin(4)
    with pytest.raises(BadRequest, match=r"no version is begun; begin\(\) one first"):
        writer.add("embed", version["embed"])
    writer.begin(3)
    with pytest.raises(BadRequest, match="version 3 is begun: commit"):
        writer.begin(3)
    several.write(version)
    several.publisher.commit().result(20)
    with pytest.raises(DeadlineExceeded, match="begun is nothing"):
        writer.begin(3)


def test_a_writer_of_other_tensors_is_refused(tmp_path: Path, stack: ExitStack) -> None:
    several = Stack(tmp_path, 1, stack)
    several.publisher.begin(0)
    other = TensorPlaces(SPECS | {"scale": TensorSpec("F32", ())})
    with ShardWriter(tmp_path / "memory", other, 1) as writer, pytest.raises(BadRequest, match="tensors are sha256:"):
        writer.begin(0)


def test_a_folder_has_one_publisher_and_is_gone_after_it(tmp_path: Path) -> None:
    with SharedImages(tmp_path / "memory", PLACES.nbytes, [1]) as images:
        with pytest.raises(BadRequest, match="another process publishes there"):
            SharedImages(tmp_path / "memory", PLACES.nbytes, [1])
        assert len(list((tmp_path / "memory").iterdir())) == len(images.images)
    assert not (tmp_path / "memory").exists()


def test_a_writer_that_outlives_the_publisher_goes_on_with_the_next_one(tmp_path: Path, stack: ExitStack) -> None:
    all_versions = versions(2)
    writer = stack.enter_context(ShardWriter(tmp_path / "memory", PLACES, 1, wait_seconds=SOON))
    with ExitStack() as first:
        before = Stack(tmp_path, 1, first, there=[writer])
        before.begin(0)
        before.write(all_versions[0])
        before.publisher.commit().result(20)
        before.begin(1)
        before.write_shards(1, all_versions[1])
    after = Stack(tmp_path, 1, stack, wait_seconds=SOON, there=[writer])
    after.publisher.begin(0)
    writer.commit()  # what it has written, of version 1 and to images that are gone
    with pytest.raises(DeadlineExceeded, match="ranks 1 are not done"):
        after.publisher.commit()
    after.publisher.abandon()
    for number, version in enumerate(all_versions):
        after.begin(number)
        after.write(version)
        digest = after.publisher.commit().result(20).digest
    assert digest == alone(tmp_path / "alone", all_versions)[-1]


def test_a_version_that_ends_while_a_writer_looks_is_not_written_to(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    several, real = Stack(tmp_path, 1, stack), shared.lock
    several.publisher.begin(0)

    def ended(descriptor: int, kind: int) -> bool:
        (tmp_path / "memory" / "begun").unlink(missing_ok=True)
        return real(descriptor, kind)

    monkeypatch.setattr(shared, "lock", ended)
    with pytest.raises(DeadlineExceeded, match="begun is nothing"):
        several.writers[0].begin(0)
    several.publisher.abandon()
    several.publisher.begin(1)  # it holds no lock


def test_no_room_for_the_images_is_told_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with files_of_at_most(PLACES.nbytes - 1), pytest.raises(DiskFull, match="memory"):
        SharedImages(tmp_path / "memory", PLACES.nbytes, [1])
    assert not (tmp_path / "memory").exists()


def test_a_document_that_is_none_is_refused_by_its_name(tmp_path: Path, stack: ExitStack) -> None:
    several = Stack(tmp_path, 1, stack)
    several.begin(0)
    (tmp_path / "memory" / "shards-1").write_bytes(b"{}")
    with pytest.raises(BadRequest, match="shards-1: "):
        several.publisher.commit()
