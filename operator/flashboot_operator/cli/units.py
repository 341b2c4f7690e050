"""Sizes, bandwidths and times as people write them, both ways. `parse_*` raise ValueError with an example of what is
meant."""

from __future__ import annotations

import re

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_PREFIXES = {**_DECIMAL, **_BINARY}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NUMBER = r"(\d+(?:\.\d+)?(?:e\d+)?)\s*"
_SIZE = re.compile(_NUMBER + r"([kKMGT]i?)?B?")
_RATE = re.compile(_NUMBER + r"([kKMGT]i?)?(B|bit)/s")
_TIME = re.compile(_NUMBER + r"(s|ms|us|µs|ns)")


def _prefix(text: str | None) -> int:
    return _PREFIXES["k" if text == "K" else text or ""]


def _positive(text: str, value: float) -> float:
    if value <= 0:
        raise ValueError(f"{text!r} must be above 0")
    return value


def parse_size(text: str) -> int:
    """Bytes: 8GB, 64MiB, 1500000000."""
    if (match := _SIZE.fullmatch(text.strip())) is None:
        raise ValueError(f"{text!r} is not a size; write it like 8GB or 64MiB")
    return int(_positive(text, float(match[1]) * _prefix(match[2])))


def parse_rate(text: str) -> float:
    """Bytes a second: 700GB/s, 300Mbit/s."""
    if (match := _RATE.fullmatch(text.strip())) is None:
        raise ValueError(f"{text!r} is not a bandwidth; write it like 700GB/s or 300Mbit/s")
    return _positive(text, float(match[1]) * _prefix(match[2]) / (8 if match[3] == "bit" else 1))


def parse_time(text: str) -> float:
    """Seconds: 10us, 5ms, 2s. Zero is allowed."""
    if (match := _TIME.fullmatch(text.strip())) is None:
        raise ValueError(f"{text!r} is not a time; write it like 10us, 5ms or 2s")
    return float(match[1]) * _SECONDS[match[2]]


def show_size(value: float) -> str:
    """In binary units when it is a multiple of 64 KiB, as chunks are; else in decimal ones."""
    for name, factor in reversed(_BINARY.items()):
        if value >= factor and value % 65536 == 0:
            return f"{value / factor:.4g} {name}B"
    for name, factor in reversed(_DECIMAL.items()):
        if value >= factor:
            return f"{value / factor:.4g} {name}B"
    return "0 B"


def show_rate(value: float) -> str:
    return f"{show_size(value)}/s"


def show_time(value: float) -> str:
    for name, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= factor:
            return f"{value / factor:.4g} {name}"
    return "0 s"


def show_age(seconds: float) -> str:
    """As kubectl shows ages: 45s, 12m, 7h, 3d."""
    for name, factor in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f}{name}"
    return f"{max(0.0, seconds):.0f}s"
