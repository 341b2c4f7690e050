"""The bytes of a random tensor: the same seed and name give the same bytes on every machine.

They come from the raw bits of PCG64 (whose stream numpy guarantees) and integer arithmetic, never from a library's
normal distribution. Every value is finite.
"""

from __future__ import annotations

import math
import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from demo.architectures import DType, Tensor

ITEM_BYTES: Final[dict[DType, int]] = {"BF16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1}


def data_bytes(tensor: Tensor) -> int:
    return ITEM_BYTES[tensor.dtype] * math.prod(tensor.shape)


def drawn(tensor: Tensor, seed: int) -> bytes:
    """The tensor's bytes, little-endian: uniform in ±scale unless it says otherwise, from a stream of its own."""
    count = math.prod(tensor.shape)
    if tensor.scale == 0.0:
        return _stored(np.ones(count, dtype=np.float32), tensor.dtype)
    bits = np.random.PCG64([seed, zlib.crc32(tensor.name.encode())]).random_raw(-(-count // 4))
    halves = np.ascontiguousarray(bits.astype("<u8")).view("<i2")[:count]
    if tensor.dtype == "F8_E4M3":
        return (
            (halves.view("<u2") & np.uint16(0xBF)).astype(np.uint8).tobytes()
        )  # under 2, and never the pattern of NaN
    if tensor.draw == "below":
        return (halves.view("<u2") % np.uint16(tensor.scale)).astype("<i4").tobytes()
    if tensor.draw == "powers":
        exponents = np.floor(np.log2(tensor.scale)) - (halves & 3).astype(np.float64)
        return bytes(np.exp2(exponents).astype("<f4").tobytes())
    values = halves.astype(np.float32) * np.float32(tensor.scale / 32768.0)
    if tensor.draw == "positive":
        values = np.abs(values) + np.float32(tensor.scale / 32768.0)
    return _stored(values, tensor.dtype)


def _stored(values: NDArray[np.float32], dtype: DType) -> bytes:
    if dtype == "BF16":
        return (values.view("<u4") >> np.uint32(16)).astype("<u2").tobytes()
    return values.astype("<f4").tobytes()
