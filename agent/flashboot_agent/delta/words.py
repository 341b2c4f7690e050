"""Which bytes are words of which format: what makes a delta small, never what makes it right. Pure.

Holds always: runs are in order, cover everything, and begin and end at whole words; whatever would not, is bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from flashboot_agent import _native
from flashboot_agent.wire.layout import Layout

BYTES: Final = 0
MAX_RUNS: Final = 1 << 20
"""Of more, which no model has, all are bytes: a reader's memory is bounded."""
WORD_BYTES: Final = _native.DELTA_WORD_BYTES
_INT16, _INT32, _BFLOAT16, _FLOAT16, _FLOAT32, _E4M3, _E5M2 = range(1, 8)

OF_SAFETENSORS: Final = {
    "BF16": _BFLOAT16, "F16": _FLOAT16, "F32": _FLOAT32, "F8_E4M3": _E4M3, "F8_E5M2": _E5M2,
    "F8_E4M3FNUZ": _E4M3, "F8_E5M2FNUZ": _E5M2,
    "I16": _INT16, "U16": _INT16, "I32": _INT32, "U32": _INT32, "I64": _INT32, "U64": _INT32, "F64": _INT32,
}  # fmt: skip
"""Others are bytes."""
OF_TORCH: Final = {
    "bfloat16": _BFLOAT16, "float16": _FLOAT16, "float32": _FLOAT32,
    "float8_e4m3fn": _E4M3, "float8_e4m3fnuz": _E4M3, "float8_e5m2": _E5M2, "float8_e5m2fnuz": _E5M2,
    "int16": _INT16, "uint16": _INT16, "int32": _INT32, "uint32": _INT32, "int64": _INT32, "uint64": _INT32,
    "float64": _INT32,
}  # fmt: skip


class Run(NamedTuple):
    end: int
    """Byte behind the run; it begins where the one before ends."""
    format: int


def runs(pieces: Iterable[tuple[int, int]], nbytes: int) -> list[Run]:
    """`pieces`: where each begins (rising, the first at or behind 0) and its format; it reaches to the next one."""
    found: list[Run] = []
    starts = [*pieces, (nbytes, BYTES)]
    for (begin, form), (end, _) in pairwise(starts):
        if end > begin:
            _append(found, Run(end, form))
    return found if 0 < len(found) <= MAX_RUNS else [Run(nbytes, BYTES)]


def _append(found: list[Run], run: Run) -> None:
    begin = found[-1].end if found else 0
    if begin % WORD_BYTES[run.format] or run.end % WORD_BYTES[run.format]:
        run = Run(run.end, BYTES)
    if found and found[-1].format == run.format:
        found[-1] = run
    else:
        found.append(run)


def of_layout(layout: Layout) -> list[Run]:
    """Of an arena: each storage is words of the first tensor that looks at it."""
    first: dict[int, int] = {}
    for tensor in layout.tensors:
        first.setdefault(tensor.storage, OF_TORCH.get(tensor.dtype, BYTES))
    pieces = [(storage.offset, first.get(number, BYTES)) for number, storage in enumerate(layout.storages)]
    return runs(pieces, layout.arena_bytes)


def table(of: Sequence[Run]) -> array[int]:
    """As `_native` takes them."""
    return array("Q", [number for run in of for number in run])
