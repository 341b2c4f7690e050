"""The codec in C++ and the one in tests/delta_reference.py: the same bytes, and every pair of versions comes back."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent import _native
from flashboot_agent.core.digest import chunk_digest
from flashboot_agent.delta import words
from flashboot_agent.delta.words import Run
from tests import delta_reference as reference
from tests.delta_words import FORMATS
from tests.deltas import stepped_version, weights

VECTORS = Path(__file__).parents[1] / "vectors" / "delta"
RATES = (0.0, 0.0005, 0.01, 0.1, 0.6, 1.0)


def encoded(base: bytes, new: bytes, runs: list[Run], classes: int, threads: int = 1) -> tuple[array[int], bytes]:
    """Rows and bodies."""
    places = bytearray((len(base) // reference.CHUNK + 1) * reference.CHUNK)
    rows = _native.delta_encode(base, new, 0, words.table(runs), classes, places, threads=threads)
    table, bodies = array("Q", rows), b""
    for chunk, at in enumerate(range(0, len(table), 5)):
        start = chunk * reference.CHUNK
        bodies += (new if table[at] == reference.RAW else places)[start : start + table[at + 1]]
    return table, bodies


def require_same_as_reference(base: bytes, new: bytes, runs: list[Run], classes: int) -> None:
    rows, bodies = encoded(base, new, runs, classes)
    done = 0
    for chunk, at in enumerate(range(0, len(rows), 5)):
        start = chunk * reference.CHUNK
        before, after = (data[start : start + reference.CHUNK] for data in (base, new))
        mode, body = reference.encode_chunk(before, after, start, runs, classes)
        assert (mode, body) == (rows[at], bodies[done : done + rows[at + 1]])
        assert reference.decode_chunk(before, mode, body, start, runs) == after
        assert tuple(rows[at + 2 : at + 4]) == (chunk_digest(before), chunk_digest(after))
        done += rows[at + 1]


def require_round_trip(base: bytes, new: bytes, runs: list[Run], classes: int) -> None:
    rows, bodies = encoded(base, new, runs, classes)
    memory = bytearray(base)
    there = _native.DeltaWindow(memory, 0, words.table(runs), rows, bodies, reverse=True, threads=2)
    assert memory == base, "locating wrote"
    journal = there.journal()
    there.write(memory, threads=2)
    assert memory == new
    back = _native.DeltaWindow(memory, 0, words.table(runs), *there.reverse(), reverse=False, threads=1)
    back.write(memory, threads=1)
    assert memory == base
    there.write(memory, threads=1)
    memory[: len(memory) // 2] = base[: len(memory) // 2]  # as a crash in the middle leaves it
    _native.delta_put_back(memory, journal)
    assert memory == base


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("number", range(len(FORMATS)))
def test_every_format_and_density_has_the_bytes_of_the_reference(number: int, rate: float) -> None:
    base = weights(9_000, number)
    new = stepped_version(base, number, rate)
    for classes in (1, 3, 16):
        runs = [Run(len(base), number)]
        require_same_as_reference(base, new, runs, classes)
        require_round_trip(base, new, runs, classes)


def test_chunks_and_pieces_are_cut_where_the_format_says() -> None:
    base = weights(900_000, 3)  # 1.8 MB
    new = stepped_version(base, 3, 0.005)
    runs = [Run(400_000, 3), Run(400_004, 5), Run(1_048_576 + 64, 6), Run(1_300_000, 2), Run(len(base), 3)]
    require_same_as_reference(base, new, runs, 16)
    require_round_trip(base, new, runs, 16)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes, list[Run], int]:
    """Small pieces of any formats, any bits, changed anywhere."""
    base, new, runs = bytearray(), bytearray(), list[Run]()
    for _ in range(draw(st.integers(1, 4))):
        number = draw(st.integers(0, len(FORMATS) - 1))
        elements = 4 * draw(st.integers(1, 60))
        seed = draw(st.integers(0, 1 << 32))
        piece = weights(elements, number, seed) if draw(st.booleans()) else draw(st.binary(min_size=4, max_size=400))
        piece = piece[: len(piece) // 4 * 4]
        base += piece
        new += stepped_version(piece, number, draw(st.sampled_from(RATES)), seed + 1) if draw(st.booleans()) else piece
        runs.append(Run(len(base), number))
    return bytes(base), bytes(new), runs, draw(st.integers(1, 16))


@settings(max_examples=200, deadline=None)
@given(pairs())
def test_any_pair_has_the_bytes_of_the_reference_and_comes_back(pair: tuple[bytes, bytes, list[Run], int]) -> None:
    require_same_as_reference(*pair)
    require_round_trip(*pair)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 2), st.integers(0, 7))
def test_any_bytes_as_a_body_are_refused_and_write_nothing(body: bytes, mode: int, number: int) -> None:
    base = weights(1000, number)
    rows = array("Q", [mode, len(body), chunk_digest(base), 1, 0])
    memory = bytearray(base)

    def apply() -> None:
        of = words.table([Run(len(base), number)])
        _native.DeltaWindow(memory, 0, of, rows, body, reverse=True, threads=1).write(memory, threads=1)

    with pytest.raises(_native.DeltaBroken) as refused:
        apply()
    assert refused.value.args[0] in ("malformed", "result")
    assert memory == base


@pytest.mark.parametrize("path", sorted(VECTORS.glob("*.json")), ids=lambda path: path.stem)
def test_the_vectors_of_the_specification(path: Path) -> None:
    vector = json.loads(path.read_text())
    base, result, body = (bytes.fromhex(vector[name]) for name in ("base", "result", "body"))
    runs = [Run(*run) for run in vector["runs"]]
    rows, bodies = encoded(base, result, runs, vector["classes"])
    assert (rows[0], bodies) == (vector["mode"], body)
    assert reference.decode_chunk(base, vector["mode"], body, 0, runs) == result
