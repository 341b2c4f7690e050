"""Pairs of versions that the benchmark measures: a trained model's weights before and after an update, at the rates of
change that people have measured, and what codecs find hard.

The update is AdamW's own (bench/delta/train.py); its learning rate is chosen so that the wanted share of the BF16 words
changes, as a larger or smaller rate in training would.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.delta.entropy import Words
from flashboot_agent.delta.words import Run
from setup_env.cache import Cache

BFLOAT16, E4M3 = 3, 6
_TRAINING_SECONDS = 1800
_FP8_BLOCK = 128


@dataclass(frozen=True)
class Pair:
    name: str
    base: bytes
    new: bytes
    format: int

    @property
    def runs(self) -> list[Run]:
        return [Run(len(self.base), self.format)]

    def words(self) -> tuple[Words, Words]:
        dtype = np.uint8 if self.format == E4M3 else np.uint16
        return np.frombuffer(self.base, dtype), np.frombuffer(self.new, dtype)

    @property
    def changed(self) -> float:
        """Share of the words."""
        base, new = self.words()
        return float((base != new).mean())


class Trained:
    """Master weights and an update."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            names = [name.removeprefix("weight/") for name in file.files if name.startswith("weight/")]
            self.weights = [file[f"weight/{name}"] for name in names]
            self.updates = [file[f"update/{name}"] for name in names]

    def pair(self, rate: float) -> Pair:
        """BF16 words of which `rate` change."""
        masters, update = (np.concatenate([each.ravel() for each in all_]) for all_ in (self.weights, self.updates))
        base = bfloat16(masters)
        new = bfloat16(masters + _learning_rate(lambda lr: bfloat16(masters + lr * update) != base, rate) * update)
        return Pair(f"BF16, {rate * 100:g} % changed", base.tobytes(), new.tobytes(), BFLOAT16)

    def fp8_pair(self, rate: float) -> Pair:
        """E4M3 words in blocks of 128 x 128 with a scale each; the scales, FP32, are another tensor."""
        blocks = [_blocks(weight) for weight in self.weights if weight.ndim > 1]
        updates = [_blocks(update) for update in self.updates if update.ndim > 1]
        masters, update = np.concatenate(blocks), np.concatenate(updates)
        base, some = e4m3(masters), slice(None, None, 16)  # blocks that choose the learning rate
        lr = _learning_rate(lambda lr: e4m3(masters[some] + lr * update[some]) != base[some], rate)
        new = e4m3(masters + lr * update)
        return Pair(f"FP8, {rate * 100:g} % changed", base.tobytes(), new.tobytes(), E4M3)


def trained(cache: Cache, torch_python: Path) -> Trained:
    """Made once, in minutes, and kept."""
    script = Path(__file__).with_name("train.py")

    def build(into: Path) -> None:
        words = [str(torch_python), "-m", "bench.delta.train", str(into / "trained.npz")]
        subprocess.run(words, check=True, timeout=_TRAINING_SECONDS, env={**os.environ, "OMP_NUM_THREADS": "1"})

    return Trained(cache.entry("bench-delta", [script], build, keep=1) / "trained.npz")


def incompressible(nbytes: int) -> Pair:
    dice = np.random.default_rng(1)
    return Pair("unrelated random words", dice.bytes(nbytes), dice.bytes(nbytes), BFLOAT16)


def unrelated(nbytes: int) -> Pair:
    """Weights of two models that have nothing to do with each other."""
    dice = np.random.default_rng(2)
    base, new = (bfloat16((dice.standard_normal(nbytes // 2) * 0.02).astype(np.float32)) for _ in range(2))
    return Pair("weights of another model", base.tobytes(), new.tobytes(), BFLOAT16)


def repeated(pair: Pair, nbytes: int) -> Pair:
    """As often as it takes, for speeds of more than the caches hold."""
    times = max(1, round(nbytes / len(pair.base)))
    return Pair(pair.name, pair.base * times, pair.new * times, pair.format)


def bfloat16(values: Words) -> Words:
    """Rounded to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def e4m3(blocks: Words) -> Words:
    """Each block over its scale, rounded to the nearest of the 127 magnitudes."""
    magnitudes = np.array([_e4m3_value(bits) for bits in range(127)], np.float32)
    between = (magnitudes[1:] + magnitudes[:-1]) / 2
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    scaled = blocks / np.where(largest == 0, 1, largest / 448)
    words = np.searchsorted(between, np.abs(scaled)).astype(np.uint8)
    return np.where(scaled < 0, words | 0x80, words).astype(np.uint8)


def _e4m3_value(bits: int) -> float:
    exponent, mantissa = bits >> 3, bits & 7
    return float(mantissa / 512) if exponent == 0 else float((1 + mantissa / 8) * 2.0 ** (exponent - 7))


def _blocks(matrix: Words) -> Words:
    """A block of 128 x 128 per row; what is left over at the edges is left out."""
    flat = matrix.reshape(-1, matrix.shape[-1])
    rows, columns = (size // _FP8_BLOCK * _FP8_BLOCK for size in flat.shape)
    cut = flat[:rows, :columns].reshape(rows // _FP8_BLOCK, _FP8_BLOCK, columns // _FP8_BLOCK, _FP8_BLOCK)
    return np.ascontiguousarray(cut.transpose(0, 2, 1, 3)).reshape(-1, _FP8_BLOCK * _FP8_BLOCK)


def _learning_rate(changed: Callable[[float], Any], rate: float) -> float:
    low, high = 1e-10, 1e-2
    for _ in range(30):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if float(changed(middle).mean()) < rate else (low, middle)
    return high
