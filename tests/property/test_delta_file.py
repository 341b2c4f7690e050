"""Delta files that were changed, cut or forged: refused with their name, and nothing else happens."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flashboot_agent.core.errors import (
    BadRequest,
    DeltaBaseMismatch,
    DeltaDamaged,
    DeltaUntrusted,
    DiskFull,
    FlashBootError,
)
from flashboot_agent.delta import trailer, words
from flashboot_agent.delta.apply import apply_to, verify
from flashboot_agent.delta.document import HEADER, read_header, runs_from_bytes
from flashboot_agent.delta.file import DeltaWriter, open_delta
from flashboot_agent.delta.make import Versions, make
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.delta.spans import SpanDigests
from flashboot_agent.delta.trailer import TRAILER
from flashboot_agent.delta.words import BYTES, Run, runs
from tests.deltas import CONTENT, small_delta, source

KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()


def test_what_was_made_applies_and_says_between_what(tmp_path: Path) -> None:
    path, base, new = small_delta(tmp_path)
    result = bytearray(len(base))

    def write(offset: int, view: memoryview) -> None:
        result[offset : offset + view.nbytes] = view

    with open_delta(path, None) as delta:
        apply_to(delta, source(base), write, threads=2)
        metadata = delta.contents.metadata
    assert result == new
    assert (metadata.base_version, metadata.new_version) == (7, 8)
    assert path.stat().st_size * 100 < len(base)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_verifying_leaves_a_base_in_memory_as_it_is(tmp_path: Path) -> None:
    path, base, _ = small_delta(tmp_path)
    memory = bytearray(base)
    with open_delta(path, None) as delta:
        verify(delta, MemorySource(memoryview(memory), delta.contents.runs, CONTENT), threads=2)
    assert memory == base


def test_each_flipped_bit_is_refused(tmp_path: Path) -> None:
    """A bit of each byte of header, metadata, runs, table and trailer, and of some of the bodies, in turn."""
    path, base, _ = small_delta(tmp_path, 40_000)
    data = path.read_bytes()
    header = read_header(data, path)
    flips = 0
    for at in [
        *range(header.bodies_at),
        *range(header.bodies_at, header.trailer_at, 7),
        *range(header.trailer_at, len(data)),
    ]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises((DeltaDamaged, DeltaUntrusted), match=path.name), open_delta(path, None) as delta:
            verify(delta, source(base))
        flips += 1
    print(f"{flips} flipped bits of {len(data)} bytes, each refused")
    assert flips > HEADER.size + TRAILER.size


def test_each_flipped_bit_of_a_forged_file_is_refused_by_what_is_inside(tmp_path: Path) -> None:
    """The same with right digests of spans and a right trailer: sizes, digests and codes must find it, or the result is
    the same."""
    path, base, new = small_delta(tmp_path, 40_000)
    data = path.read_bytes()
    header = read_header(data, path)
    refused = harmless = 0
    for at in range(header.trailer_at):
        forged = bytearray(data[: header.trailer_at])
        forged[at] ^= 1 << at % 8
        if at >= header.bodies_at:
            spans = SpanDigests()
            spans.feed(bytes(forged[header.bodies_at :]))
            digests = spans.finish()
            forged[header.bodies_at - len(digests) : header.bodies_at] = digests
        path.write_bytes(bytes(forged) + trailer.make(hashlib.sha256(forged[: header.bodies_at]), None))
        memory, result = source(base), bytearray(len(base))

        def write(offset: int, view: memoryview, result: bytearray = result) -> None:
            result[offset : offset + view.nbytes] = view

        try:
            with open_delta(path, None) as delta:
                apply_to(delta, source(bytes(memory.memory)), write)
        except FlashBootError as error:
            refused += path.name in str(error)
        else:
            assert result == new
            harmless += 1
    print(f"{refused} forged bytes refused, {harmless} that say the same (version, note, count of changes)")
    assert refused + harmless == header.trailer_at
    assert refused > 20 * harmless


@pytest.mark.parametrize("left", [0, 1, 63, 64, 300, -1, -64, -128, -129])
def test_a_file_that_was_cut_or_goes_on_is_refused(tmp_path: Path, left: int) -> None:
    path, _, _ = small_delta(tmp_path, 40_000)
    data = path.read_bytes()
    path.write_bytes(data[:left])
    with pytest.raises(DeltaDamaged, match=path.name), open_delta(path, None):
        pass
    path.write_bytes(data + b"\0")
    with pytest.raises(DeltaDamaged, match="goes on"), open_delta(path, None):
        pass


def test_only_trusted_signatures_are_taken(tmp_path: Path) -> None:
    path, base, new = small_delta(tmp_path, 40_000)
    with pytest.raises(DeltaUntrusted, match="not signed"), open_delta(path, [KEY.public_key()]):
        pass
    make(source(base), source(new), path, Versions(1, 2), key=KEY)
    with open_delta(path, [OTHER.public_key(), KEY.public_key()]) as delta:
        assert delta.signer.startswith("signed by key")
    with pytest.raises(DeltaUntrusted, match="not trusted"), open_delta(path, [OTHER.public_key()]):
        pass
    with pytest.raises(DeltaUntrusted, match="public key"), open_delta(path, None):
        pass
    forged = bytearray(path.read_bytes())
    forged[-20] ^= 1  # the signature
    path.write_bytes(forged)
    with pytest.raises(DeltaUntrusted, match="not one of key"), open_delta(path, [KEY.public_key()]):
        pass


def test_another_base_is_refused_with_chunk_and_versions(tmp_path: Path) -> None:
    path, base, _ = small_delta(tmp_path)
    other = bytearray(base)
    other[1_100_000] ^= 1
    with open_delta(path, None) as delta, pytest.raises(DeltaBaseMismatch, match=r"7 → 8\), chunk 1"):
        verify(delta, source(bytes(other)))
    with open_delta(path, None) as delta, pytest.raises(DeltaBaseMismatch, match="bytes"):
        verify(delta, source(base[:-2]))


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    class Failing(type(source(b"ab"))):  # type: ignore[misc]
        def view(self, offset: int, nbytes: int) -> memoryview:
            raise OSError(28, "No space left on device")

    base = bytes(4096)
    broken = Failing(memoryview(base), source(base).runs, source(base).content)
    with pytest.raises(DiskFull, match=r"never \(0 → 1\)"):
        make(source(base), broken, tmp_path / "never", Versions(0, 1))
    assert not list(tmp_path.iterdir())


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path, base, _ = small_delta(tmp_path, 40_000)
    before = path.read_bytes()
    (tmp_path / "small.delta.writing").write_bytes(b"left by one that was killed" * 10_000)
    runs = source(base).runs
    with DeltaWriter(path, len(base), runs), pytest.raises(BadRequest, match="another process is writing it"):
        DeltaWriter(path, len(base), runs)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    small_delta(tmp_path, 40_000)
    assert path.read_bytes() == before


def test_a_file_of_very_many_runs_is_refused_before_they_take_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MAX_RUNS", 100)
    assert list(runs_from_bytes(b"\x08" * 100))[-1] == Run(100, 0)
    with pytest.raises(ValueError, match="more than 100 runs"):
        list(runs_from_bytes(b"\x08" * 101))
    assert runs([(2 * at, 1 + at % 2) for at in range(101)], 202) == [Run(202, BYTES)]


def test_a_file_has_what_the_format_says_where_it_says(tmp_path: Path) -> None:
    """Read once more by the document alone: docs/reference/delta-format.md."""
    base, new = small_delta(tmp_path)[1:]
    path = tmp_path / "signed.delta"
    make(source(base), source(new), path, Versions(1, 2), key=KEY)
    data = path.read_bytes()
    magic, version, flags, chunk, nbytes, text, runs, bodies = struct.unpack("<8sHHIQIIQ", data[:40])
    assert (magic, version, flags, chunk, nbytes) == (b"FBDELTA\0", 2, 0, 1 << 20, len(base))
    assert data[40:64] == bytes(24)
    assert json.loads(data[64 : 64 + text])["newVersion"] == 2
    chunks, spans = -(-nbytes // chunk), -(-bodies // 65536)
    table = 64 + text + runs
    sizes = struct.unpack(f"<{chunks}I", data[table + 16 * chunks : table + 20 * chunks])
    assert sum(size & (1 << 30) - 1 for size in sizes) == bodies
    front = table + 20 * chunks + 32 * spans
    for number in range(spans):
        body = data[front : front + bodies][number * 65536 : (number + 1) * 65536]
        at = table + 20 * chunks + 32 * number
        assert data[at : at + 32] == hashlib.sha256(body).digest()
    end = data[front + bodies :]
    digest = hashlib.sha256(data[:front] + end[:24]).digest()
    assert (len(end), end[0], end[1:8], end[24:56], end[120:]) == (128, 1, bytes(7), digest, b"FBDELTAE")
    KEY.public_key().verify(end[56:120], b"flashboot delta v2\0" + digest)
