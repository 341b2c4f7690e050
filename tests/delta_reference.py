"""The codec of docs/reference/delta-format.md again, with numpy and plain Python: what the C++ is compared with.

Written from the specification, for reading rather than for speed; it gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tests.delta_words import ESCAPE, FORMATS, MOST_RICE, Bits, Format, Words, stepped, steps, varint, words

CHUNK = 1 << 20
SAME, SPARSE, RAW = 0, 1, 2


def top_exponent(exponents: Words) -> int:
    sample = exponents[:: max(1, len(exponents) // 4096)]
    for exponent in range(255, 0, -1):
        if int((sample >= exponent).sum()) * 50 > len(sample):
            return exponent
    return 0


def worth_it(old: Words, new: Words, form: Format) -> bool:
    if len(old) < 4096:
        return True
    bits = 1024
    for probe in range(16):
        first = probe * (len(old) - 64) // 15
        a, b = old[first : first + 64], new[first : first + 64]
        bits += sum(1 + int(step).bit_length() for step in steps(a, b, form)[a != b])
    return bits * 4 < 3 * 1024 * 8 * form.bytes


def rice_bits(values: Words, rice: int) -> int:
    quotients = values >> rice
    return int(np.where(quotients < ESCAPE, quotients + 1 + rice, ESCAPE + 1 + 32).sum())


def choose_rice(values: Words) -> tuple[int, int]:
    middle = max(0, (int(values.sum()) // len(values)).bit_length() - 1)
    candidates = range(min(max(0, middle - 1), MOST_RICE), min(middle + 1, MOST_RICE) + 1)
    return min((rice_bits(values, rice), rice) for rice in candidates)[::-1]


def encode_class(gaps: Words, step: Words) -> tuple[bytes, list[tuple[int, int]]]:
    """The head of a class, and what its bits are: (value, Rice parameter), or (value, -1) for a single bit."""
    if not len(gaps):
        return b"\0", []
    gap_rice, _ = choose_rice(gaps)
    all_rice, all_bits = choose_rice(step)
    where = np.flatnonzero(step > 1)
    apart = len(step)
    if len(where):
        between = np.diff(where, prepend=-1) - 1
        sizes = (step[where] >> 1) - 1
        (between_rice, between_bits), (size_rice, size_bits) = choose_rice(between), choose_rice(sizes)
        apart += between_bits + size_bits
    head = varint(len(gaps))
    code = [(int(gap), gap_rice) for gap in gaps]
    if all_bits < apart:
        return head + bytes([gap_rice | 32, all_rice]), code + [(int(s), all_rice) for s in step]
    code += [(int(s) & 1, -1) for s in step]
    if not len(where):
        return head + bytes([gap_rice]), code
    for gap, size in zip(between, sizes, strict=True):
        code += [(int(gap), between_rice), (int(size), size_rice)]
    return head + bytes([gap_rice | 64, size_rice, between_rice]) + varint(len(where)), code


def encode_piece(base: bytes, new: bytes, form: Format, classes: int) -> bytes:
    old, now = words(base, form), words(new, form)
    if not worth_it(old, now, form):
        return bytes([RAW]) + new
    where = np.flatnonzero(old != now)
    if not len(where):
        return bytes([SAME])
    classes = classes if form.mask else 1
    exponents = old >> form.shift & form.mask
    top = top_exponent(exponents) if classes > 1 else 0
    in_class = np.clip(top - exponents, 0, classes - 1)
    heads, bits = b"", Bits()
    for c in range(classes):
        members = np.flatnonzero(in_class == c)
        changed = members[old[members] != now[members]]
        ranks = np.searchsorted(members, changed)
        head, code = encode_class(np.diff(ranks, prepend=-1) - 1, steps(old[changed], now[changed], form))
        heads += head
        for value, rice in code:
            if rice < 0:
                bits.put(value, 1)
            else:
                bits.put_rice(value, rice)
    piece = bytes([SPARSE, classes, top]) + heads + bits.to_bytes()
    return piece if len(piece) < 1 + len(new) else bytes([RAW]) + new


def pieces(offset: int, nbytes: int, runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, Format]]:
    """Begin and end in the chunk at `offset`, and the format."""
    at = 0
    for end, number in runs:
        if at < nbytes and end > offset + at:
            stop = min(end - offset, nbytes)
            yield at, stop, FORMATS[number]
            at = stop


def encode_chunk(
    base: bytes, new: bytes, offset: int, runs: Sequence[tuple[int, int]], classes: int
) -> tuple[int, bytes]:
    """Mode and body."""
    if base == new:
        return SAME, b""
    body = b""
    for begin, end, form in pieces(offset, len(base), runs):
        body += encode_piece(base[begin:end], new[begin:end], form, classes)
        if len(body) >= len(base):
            return RAW, new
    return SPARSE, body


def decode_chunk(base: bytes, mode: int, body: bytes, offset: int, runs: Sequence[tuple[int, int]]) -> bytes:
    if mode != SPARSE:
        return base if mode == SAME else body
    out = b""
    for begin, end, form in pieces(offset, len(base), runs):
        piece, body = decode_piece(base[begin:end], body, form)
        out += piece
    if body:
        raise ValueError("bytes behind the last piece")
    return out


def take_varint(body: bytes) -> tuple[int, bytes]:
    value = 0
    for at, byte in enumerate(body):
        value |= (byte & 127) << 7 * at
        if byte < 128:
            return value, body[at + 1 :]
    raise ValueError("it ends inside a number")


def decode_piece(base: bytes, body: bytes, form: Format) -> tuple[bytes, bytes]:
    mode, body = body[0], body[1:]
    if mode == SAME:
        return base, body
    if mode == RAW:
        return body[: len(base)], body[len(base) :]
    old = words(base, form)
    now = old.copy()
    classes, top, body = body[0], body[1], body[2:]
    in_class = np.clip(top - (old >> form.shift & form.mask), 0, classes - 1)
    heads = []
    for c in range(classes):
        count, body = take_varint(body)
        if not count:
            continue
        flags, body = body[0], body[1:]
        value_rice = between_rice = exceptions = 0
        if flags & 96:
            value_rice, body = body[0], body[1:]
        if flags & 64:
            between_rice, body = body[0], body[1:]
            exceptions, body = take_varint(body)
        heads.append((c, count, flags & 31, bool(flags & 32), value_rice, between_rice, exceptions))
    bits = Bits(body)
    for c, count, gap_rice, rice_steps, value_rice, between_rice, exceptions in heads:
        ranks = np.cumsum([bits.take_rice(gap_rice) + 1 for _ in range(count)]) - 1
        if rice_steps:
            step = np.array([bits.take_rice(value_rice) for _ in range(count)], np.int64)
        else:
            step = np.array([bits.take(1) for _ in range(count)], np.int64)
            place = -1
            for _ in range(exceptions):
                place += bits.take_rice(between_rice) + 1
                step[place] |= (bits.take_rice(value_rice) + 1) << 1
        where = np.flatnonzero(in_class == c)[ranks]
        now[where] = stepped(old[where], step, form)
    return now.astype(f"<u{form.bytes}").tobytes(), body[(bits.at + 7) // 8 :]
