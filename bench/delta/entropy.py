"""What a delta must have at least, when the base's exponents are known to both sides: the entropy, in bits. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

Words = np.ndarray[Any, Any]


def given_exponent(base: Words, new: Words, shift: int, mask: int) -> float:
    """Of which words change, and by which step, as independent choices whose chances depend on the exponent alone.

    `base` and `new` are the words as unsigned integers."""
    exponents = base >> shift & mask
    bits = 8 * base.dtype.itemsize
    step = (in_order(new, bits) - in_order(base, bits)) % (1 << bits)
    total = 0.0
    for exponent in np.unique(exponents):
        _, counts = np.unique(step[exponents == exponent], return_counts=True)  # a step of 0: no change
        share = counts / counts.sum()
        total += float(-(counts * np.log2(share)).sum())
    return total


def in_order(words: Words, bits: int) -> Words:
    """Sign and magnitude as integers, neighbours in value being neighbours in number."""
    wide, top = words.astype(np.int64), 1 << (bits - 1)
    return np.where(wide & top != 0, wide ^ (top - 1), wide)
