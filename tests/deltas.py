"""Versions of weights for tests: words with the exponents of weights, changed by steps like those of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flashboot_agent.delta.make import Versions, make
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.delta.words import Run
from tests.delta_words import FORMATS, stepped, words

CONTENT = "sha256:" + "c" * 64
BFLOAT16 = 3


def weights(elements: int, number: int, seed: int = 1) -> bytes:
    """Words of this format, most of them around 2^-6, some with any bits at all."""
    form, dice = FORMATS[number], np.random.default_rng(seed)
    values = dice.integers(0, 1 << 8 * form.bytes, elements)
    if form.mask:
        exponent = np.clip(form.mask // 2 - dice.geometric(0.3, elements), 0, form.mask)
        usual = values & ~(form.mask << form.shift) | exponent << form.shift
        values = np.where(dice.random(elements) < 0.98, usual, values)
    return values.astype(f"<u{form.bytes}").tobytes()


def stepped_version(base: bytes, number: int, rate: float, seed: int = 2) -> bytes:
    """About so many of the words changed, nine in ten of them by one."""
    form, dice = FORMATS[number], np.random.default_rng(seed)
    old = words(base, form)
    step = np.where(
        dice.random(len(old)) < 0.9,
        dice.integers(0, 2, len(old)),
        dice.integers(0, (1 << 8 * form.bytes) - 1, len(old)),
    )
    new = np.where(dice.random(len(old)) < rate, stepped(old, step, form), old)
    return new.astype(f"<u{form.bytes}").tobytes()


def source(data: bytes, runs: list[Run] | None = None) -> MemorySource:
    return MemorySource(memoryview(bytearray(data)), runs or [Run(len(data), BFLOAT16)], CONTENT)


def small_delta(folder: Path, elements: int = 700_000, rate: float = 0.01) -> tuple[Path, bytes, bytes]:
    """A delta of a few chunks from version 7 to 8, its base and its result."""
    base = weights(elements, BFLOAT16)
    new = stepped_version(base, BFLOAT16, rate)
    path = folder / "small.delta"
    make(source(base), source(new), path, Versions(7, 8), threads=2)
    return path, base, new
