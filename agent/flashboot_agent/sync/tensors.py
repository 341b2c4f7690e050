"""Where the bytes of a trainer's tensors go in the image that has versions. Pure.

`Places` is the seam: TensorPlaces puts tensors one behind the other as they are, as `flashboot delta` does with a
checkpoint; a map from a trainer's names to an engine's arena is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Literal, NamedTuple, Protocol

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.core.safetensors_header import BITS
from flashboot_agent.delta.source import TensorImage
from flashboot_agent.delta.words import Run
from flashboot_agent.load.plan import Placed


class TensorSpec(NamedTuple):
    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]


class Box(NamedTuple):
    """A part of a tensor: a shard."""

    offsets: tuple[int, ...]
    """Of its first element, per dimension."""
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def meets(self, other: Box) -> bool:
        """Whether they have an element in common."""
        return all(
            max(mine, its) < min(mine + my_size, its + its_size)
            for mine, my_size, its, its_size in zip(self.offsets, self.shape, other.offsets, other.shape, strict=True)
        ) and bool(self.elements and other.elements)

    def __str__(self) -> str:
        return f"[{', '.join(f'{begin}:{begin + size}' for begin, size in zip(self.offsets, self.shape, strict=True))}]"


class Piece(NamedTuple):
    """Bytes that lie side by side in a shard's buffer and in the image."""

    image: int
    data: int
    nbytes: int


class Places(Protocol):
    """The image's facts, as a Source has them, and where each part of each tensor is in it."""

    subject: Literal["arena", "checkpoint"]
    content: str
    nbytes: int
    runs: list[Run]
    tensors: Mapping[str, TensorSpec]

    def fill(self, image: memoryview) -> None:
        """Write what no tensor gives into a new image, which has zeros."""

    def write(self, name: str, box: Box, data: memoryview, image: memoryview) -> None:
        """A shard, whose bytes are dense and in the order of rows."""

    def copy(self, name: str, old: memoryview, image: memoryview) -> None:
        """All of a tensor from another image."""


class TensorPlaces:
    """Tensors by the order of their names: the image of a checkpoint that has them."""

    subject: Literal["arena", "checkpoint"] = "checkpoint"

    def __init__(self, tensors: Mapping[str, TensorSpec]) -> None:
        """Raises BadRequest."""
        self.tensors: Mapping[str, TensorSpec] = dict(tensors)
        image = TensorImage(
            Placed(name, spec.dtype, spec.shape, 0, _nbytes(name, spec), 0, 0) for name, spec in tensors.items()
        )
        self.content, self.nbytes, self.runs = image.content, image.nbytes, image.runs
        self._offsets = {placed.name: placed.offset for placed in image.placed}
        if not self.nbytes:
            raise BadRequest("there are no tensors with elements: nothing that could have versions")

    def fill(self, image: memoryview) -> None:
        """Between tensors there are zeros."""

    def write(self, name: str, box: Box, data: memoryview, image: memoryview) -> None:
        for piece in self.pieces(name, box):
            image[piece.image : piece.image + piece.nbytes] = data[piece.data : piece.data + piece.nbytes]

    def copy(self, name: str, old: memoryview, image: memoryview) -> None:
        begin, end = self.extent(name)
        image[begin:end] = old[begin:end]

    def extent(self, name: str) -> tuple[int, int]:
        """Its first byte in the image, and the one behind its last."""
        return self._offsets[name], self._offsets[name] + _nbytes(name, self.tensors[name])

    def pieces(self, name: str, box: Box) -> Iterator[Piece]:
        """All bytes of a shard, in the order of rows."""
        spec, done = self.tensors[name], 0
        for begin, nbytes in strips(spec, box):
            yield Piece(self._offsets[name] + begin, done, nbytes)
            done += nbytes


def _nbytes(name: str, spec: TensorSpec) -> int:
    if spec.dtype not in BITS:
        raise BadRequest(f"{name} is {spec.dtype}, which safetensors has not")
    bits = prod(spec.shape) * BITS[spec.dtype]
    if bits % 8 or any(size < 0 for size in spec.shape):
        raise BadRequest(f"{name}: {spec.dtype} elements of shape {spec.shape} are no whole bytes")
    return bits // 8


def strips(spec: TensorSpec, box: Box) -> Iterator[tuple[int, int]]:
    """Byte of the tensor and number of bytes of each part of a box that lies side by side, in the order of rows."""
    bits = BITS[spec.dtype]
    if not box.elements:
        return
    if box.shape == spec.shape:
        yield 0, box.elements * bits // 8
        return
    strides = [prod(spec.shape[at + 1 :]) for at in range(len(spec.shape))]
    cut = max(at for at, size in enumerate(box.shape) if size != spec.shape[at])
    ranges = [
        range(begin, begin + size) for begin, size in zip(box.offsets[:cut], box.shape[:cut], strict=True)
    ]  # outside of the innermost dimension that is cut
    run = box.shape[cut] * strides[cut]
    for index in product(*ranges):
        begin = box.offsets[cut] * strides[cut] + _dot(index, strides)
        yield begin * bits // 8, run * bits // 8


def _dot(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(at * stride for at, stride in zip(index, strides, strict=False))
