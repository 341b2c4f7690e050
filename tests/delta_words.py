"""Words of docs/reference/delta-format.md and their steps, and its bits, again with numpy and plain Python."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]

ESCAPE = 23
MOST_RICE = 27


@dataclass(frozen=True)
class Format:
    bytes: int
    shift: int
    mask: int
    floating: bool


FORMATS = [
    Format(1, 0, 0, False),
    Format(2, 0, 0, False),
    Format(4, 0, 0, False),
    Format(2, 7, 255, True),
    Format(2, 10, 31, True),
    Format(4, 23, 255, True),
    Format(1, 3, 15, True),
    Format(1, 2, 31, True),
]


class Bits:
    """The lowest bit first."""

    def __init__(self, data: bytes = b"") -> None:
        self.value = int.from_bytes(data, "little")
        self.limit = 8 * len(data)
        self.at = 0

    def put(self, value: int, count: int) -> None:
        self.value |= value << self.at
        self.at += count

    def put_rice(self, value: int, rice: int) -> None:
        quotient = value >> rice
        if quotient < ESCAPE:
            self.put(1 << quotient, quotient + 1)
            self.put(value & ((1 << rice) - 1), rice)
        else:
            self.put(1 << ESCAPE, ESCAPE + 1)
            self.put(value, 32)

    def take(self, count: int) -> int:
        if self.at + count > self.limit:
            raise ValueError("overrun")
        value = self.value >> self.at & ((1 << count) - 1)
        self.at += count
        return value

    def take_rice(self, rice: int) -> int:
        quotient = 0
        while self.take(1) == 0:
            quotient += 1
        if quotient == ESCAPE:
            return self.take(32)
        return quotient << rice | self.take(rice)

    def to_bytes(self) -> bytes:
        return self.value.to_bytes((self.at + 7) // 8, "little")


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def words(data: bytes, form: Format) -> Words:
    return np.frombuffer(data, f"<u{form.bytes}").astype(np.int64)


def in_order(values: Words, form: Format) -> Words:
    top = 1 << (8 * form.bytes - 1)
    return np.where(values & top != 0, values ^ (top - 1), values) if form.floating else values


def steps(old: Words, new: Words, form: Format) -> Words:
    """0, 1, 2, 3, … for differences of -1, 1, -2, 2, …"""
    size = 1 << 8 * form.bytes
    difference = (in_order(new, form) - in_order(old, form)) % size
    return np.where(difference >= size // 2, 2 * (size - 1 - difference), 2 * difference - 1)


def stepped(old: Words, step: Words, form: Format) -> Words:
    difference = np.where(step & 1, (step >> 1) + 1, -(step >> 1) - 1)
    return in_order((in_order(old, form) + difference) % (1 << 8 * form.bytes), form)
