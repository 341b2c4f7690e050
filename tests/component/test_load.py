"""FlashLoad on real files and memories: checkpoints, images, files that change under us, writers that are killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flashboot_agent import _native
from flashboot_agent.core.checkpoint import INDEX
from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import (
    CheckpointIndexMissingShard,
    CheckpointMalformed,
    CheckpointMissing,
    CheckpointTruncated,
    ImageDamaged,
)
from flashboot_agent.load import cache, image_write
from flashboot_agent.load.image import open_image
from flashboot_agent.load.image_read import read_pieces
from flashboot_agent.load.image_write import STEP, Stopped, clean, write_image
from flashboot_agent.load.load import load_checkpoint, open_checkpoint
from tests.checkpoints import entry, tensor_file
from tests.component.agents import eventually
from tests.images import manifest_for

MIB = 1 << 20
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
TENSORS = {name: os.urandom(size) for name, size in (("a", 3 * MIB + 5), ("b", 7), ("none", 0), ("c", 2 * MIB + 1))}


def file_of(*names: str) -> bytes:
    entries, data = {}, b""
    for name in names:
        entries[name] = entry("U8", [len(TENSORS[name])], len(data))
        data += TENSORS[name]
    return tensor_file(entries, data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ONE).write_bytes(file_of("a", "b", "none"))
    (tmp_path / TWO).write_bytes(file_of("c"))
    placed = {"a": ONE, "b": ONE, "none": ONE, "c": TWO}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": placed}))
    return tmp_path


class Memory:
    """What `allocate` gives, full of other bytes; at most once."""

    def __init__(self) -> None:
        self.bytes: bytearray | None = None

    def __call__(self, nbytes: int) -> memoryview:
        assert self.bytes is None
        self.bytes = bytearray(b"\xee" * nbytes)
        return memoryview(self.bytes)


@pytest.mark.parametrize("direct", [None, False, True])
def test_a_folder_is_loaded_with_its_tensors_aligned(folder: Path, direct: bool | None) -> None:
    memory = Memory()
    loaded = load_checkpoint(folder, memory, threads=2, direct=direct)
    assert memory.bytes is not None
    assert {tensor.name for tensor in loaded.plan.tensors} == TENSORS.keys()
    expected = bytearray(len(memory.bytes))
    for tensor in loaded.plan.tensors:
        assert tensor.offset % 64 == 0
        expected[tensor.offset : tensor.offset + tensor.nbytes] = TENSORS[tensor.name]
    assert memory.bytes == expected
    assert loaded.digests == chunk_digests(bytes(memory.bytes))
    assert loaded.how.why
    if direct is False:
        assert not loaded.how.direct


def test_one_file_is_loaded_too_without_digests(folder: Path) -> None:
    memory = Memory()
    loaded = load_checkpoint(folder / TWO, memory, threads=1, digests=False)
    assert [tensor.name for tensor in loaded.plan.tensors] == ["c"]
    assert loaded.digests == b""
    assert memory.bytes is not None
    assert bytes(memory.bytes[: 2 * MIB + 1]) == TENSORS["c"]


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (lambda f: (f / TWO).write_bytes(file_of("c")[:-1]), CheckpointTruncated, TWO),
        (lambda f: (f / TWO).write_bytes(b"no safetensors"), CheckpointMalformed, TWO),
        (lambda f: (f / TWO).unlink(), CheckpointIndexMissingShard, TWO),
        (lambda f: (f / TWO).write_bytes(file_of("b", "c")), CheckpointMalformed, "tensor 'b' is in .* and in .*"),
        (lambda f: (f / TWO).write_bytes(file_of("none")), CheckpointMalformed, "has no tensor 'c'"),
        (lambda f: [(f / file).unlink() for file in (ONE, TWO, INDEX)], CheckpointMissing, "neither"),
    ],
)
def test_nothing_is_allocated_for_a_checkpoint_that_is_not_sound(
    folder: Path, damage: object, error: type[Exception], words: str
) -> None:
    damage(folder)  # type: ignore[operator]
    memory = Memory()
    with pytest.raises(error, match=words):
        load_checkpoint(folder, memory, threads=2)
    assert memory.bytes is None


def test_a_path_that_is_not_there_or_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match=r"x\.safetensors is not there"):
        load_checkpoint(tmp_path / "x.safetensors", Memory(), threads=1)
    os.mkfifo(tmp_path / "fifo.safetensors")
    with pytest.raises(CheckpointMalformed, match="no regular file"):
        load_checkpoint(tmp_path / "fifo.safetensors", Memory(), threads=1)


def test_a_file_that_shrinks_after_its_header_was_checked_is_told_with_tensor_and_offset(folder: Path) -> None:
    with open_checkpoint(folder) as checkpoint:
        cut = os.path.getsize(folder / ONE) - 10
        os.truncate(folder / ONE, cut)
        with pytest.raises(CheckpointTruncated, match=rf"{ONE} was cut while it was read: at byte {cut} \(tensor 'a'"):
            checkpoint.read(memoryview(bytearray(checkpoint.plan.nbytes)), threads=2)


def test_a_file_that_is_replaced_is_read_as_it_was_checked(folder: Path) -> None:
    with open_checkpoint(folder) as checkpoint:
        (folder / TWO).unlink()
        (folder / TWO).write_bytes(b"x")
        memory = bytearray(checkpoint.plan.nbytes)
        checkpoint.read(memoryview(memory), threads=2)
    assert TENSORS["c"] in bytes(memory)


def test_a_load_can_be_cancelled(folder: Path) -> None:
    progress = _native.BulkProgress()
    progress.cancel()
    with pytest.raises(_native.BulkCancelled):
        load_checkpoint(folder, Memory(), threads=2, progress=progress)


# Page cache or not


def test_what_is_in_the_page_cache_is_read_from_there(folder: Path) -> None:
    fd = os.open(folder / ONE, os.O_RDONLY)
    try:
        os.pread(fd, 8 * MIB, 0)
        if cache.resident([fd]) is None:
            pytest.skip("this file system does not tell")
        with cache.readers([fd]) as (files, how):
            assert (files, how.direct) == ([fd], False)
            assert "100 % of the probed pages" in how.why
    finally:
        os.close(fd)


def test_what_is_not_in_the_page_cache_is_read_past_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "resident", lambda _: 0.1)
    with open(folder / ONE, "rb") as file, cache.readers([file.fileno()]) as (files, how):
        assert how.direct, how.why
        assert "10 % of the probed pages" in how.why
        assert files != [file.fileno()]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(files[0])


def test_a_file_system_without_o_direct_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(cache, "_try_block", refuse)
    memory = Memory()
    loaded = load_checkpoint(folder, memory, threads=2, direct=True)
    assert not loaded.how.direct
    assert "refuses O_DIRECT (Invalid argument)" in loaded.how.why


# Images

DATA = os.urandom(3 * MIB + 12345)
DIGESTS = chunk_digests(DATA)


def write(path: Path, *, rate: int = 0, stop: threading.Event | None = None, data: bytes = DATA) -> int:
    digests = chunk_digests(data)
    manifest = manifest_for(len(data), root_digest(digests), layout=b"layout")
    return write_image(
        path,
        manifest,
        b"layout",
        digests,
        memoryview(data),
        bytes_per_second=rate,
        stop=stop or threading.Event(),
    )


def read(path: Path, *, direct: bool | None = None, start: int = 0) -> bytes:
    with open_image(path) as image, cache.readers([image.fd], direct=direct) as how:
        memory = bytearray(image.manifest.bytes)
        progress = _native.BulkProgress()
        ends = list(read_pieces(image, memoryview(memory), start, len(memory), threads=2, how=how, progress=progress))
        assert ends[-1] == len(memory)
        assert progress.done == len(memory) - start
        assert (image.layout, image.digests) == (b"layout", DIGESTS)
    return bytes(memory)


@pytest.mark.parametrize("direct", [None, False, True])
def test_an_image_comes_back_as_it_was_written(tmp_path: Path, direct: bool | None) -> None:
    size = write(tmp_path / "image")
    assert size == os.path.getsize(tmp_path / "image")
    assert read(tmp_path / "image", direct=direct) == DATA
    assert read(tmp_path / "image", direct=direct, start=2 * MIB)[2 * MIB :] == DATA[2 * MIB :]
    assert os.listdir(tmp_path) == ["image"]


@pytest.mark.parametrize("at", [65536, 65536 + 2 * MIB + 77, -1])
@pytest.mark.parametrize("direct", [False, True])
def test_a_flipped_byte_is_told_with_its_chunk(tmp_path: Path, at: int, direct: bool) -> None:
    write(tmp_path / "image")
    content = bytearray((tmp_path / "image").read_bytes())
    content[at] ^= 1
    (tmp_path / "image").write_bytes(content)
    chunk = (at if at >= 0 else len(content) + at) // MIB * MIB
    with pytest.raises(ImageDamaged, match=rf"image: at byte {65536 + chunk}: the chunk at arena byte {chunk} differs"):
        read(tmp_path / "image", direct=direct)


def test_an_image_that_shrinks_while_it_is_read_is_damaged(tmp_path: Path) -> None:
    write(tmp_path / "image")
    with open_image(tmp_path / "image") as image, cache.readers([image.fd]) as how:
        os.truncate(tmp_path / "image", 65536 + MIB)
        pieces = read_pieces(
            image,
            memoryview(bytearray(len(DATA))),
            0,
            len(DATA),
            threads=2,
            how=how,
            progress=_native.BulkProgress(),
        )
        with pytest.raises(ImageDamaged, match=f"at byte {65536 + MIB}: the file ends here"):
            list(pieces)


def test_a_writer_that_is_stopped_leaves_nothing_and_spares_what_was_there(tmp_path: Path) -> None:
    write(tmp_path / "image")
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        write(tmp_path / "image", stop=stop)
    assert os.listdir(tmp_path) == ["image"]
    assert read(tmp_path / "image") == DATA


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "image")
    assert os.listdir(tmp_path) == []


def test_the_throttle_spreads_the_bytes_over_time(tmp_path: Path) -> None:
    waits: list[float] = []

    class Recorder(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    data = bytes(3 * STEP)
    digests = chunk_digests(data)
    write_image(
        tmp_path / "image",
        manifest_for(len(data), root_digest(digests)),
        b"",
        digests,
        memoryview(data),
        bytes_per_second=STEP,
        stop=Recorder(),
        clock=lambda: 100.0,
    )
    assert waits == [1.0, 2.0, 3.0]


WRITER = """
import sys, threading
from tests.component.test_load import STEP, write
from pathlib import Path
print("go", flush=True)
write(Path(sys.argv[1]), rate=1 << 20, data=bytes(2 * STEP))
"""


def test_a_writer_that_is_killed_leaves_no_image_that_anybody_believes(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root / 'agent'}:{root / 'operator'}:{root}"}
    path = tmp_path / "image"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], env=env, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"go\n"
        temporary = path.with_name("image" + image_write.TEMPORARY)
        eventually(lambda: temporary.stat().st_size == 65536 + 2 * STEP, "the writer in the middle")
        writer.send_signal(signal.SIGKILL)
    assert not path.exists()
    with pytest.raises(ImageDamaged, match="at byte 0"), open_image(temporary):
        pass
    assert clean(tmp_path) == [temporary.name]
    assert os.listdir(tmp_path) == []
