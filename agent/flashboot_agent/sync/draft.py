"""What of a version was added so far. Pure.

Holds always: no element is added twice, and a version is whole only when each element of each tensor was added, or its
tensor is kept as it was; so that no version has old bytes in a tensor that somebody forgot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.core.safetensors_header import BITS
from flashboot_agent.sync.tensors import Box, TensorSpec

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Draft:
    def __init__(self, version: int, tensors: Mapping[str, TensorSpec]) -> None:
        self.version = version
        self._tensors = tensors
        self._boxes: dict[str, list[Box]] = {}
        self._kept: set[str] = set()

    def checked(self, name: str, box: Box | None, nbytes: int) -> Box:
        """What may be added: `box` (None is the whole tensor) of so many bytes. Raises BadRequest."""
        spec = self._spec(name)
        box = Box((0,) * len(spec.shape), spec.shape) if box is None else box
        self._require_inside(name, spec, box)
        wanted = box.elements * BITS[spec.dtype] // 8
        if nbytes != wanted:
            raise BadRequest(f"{self} {name}{box}: {nbytes} bytes, {wanted} are needed ({spec.dtype})")
        self._require_free(name, box)
        return box

    def take(self, name: str, box: Box) -> None:
        """Another process has written it. The same box once more is a replica's: it counts once. (Who has mistaken its
        offsets for another's is found out all the same: its own place is missing.) Raises BadRequest."""
        self._require_inside(name, self._spec(name), box)
        if box in self._boxes.get(name, ()):
            return
        self._require_free(name, box)
        self.add(name, box)

    def boxes(self) -> Iterator[tuple[str, Box]]:
        """What was added."""
        return ((name, box) for name, boxes in self._boxes.items() for box in boxes)

    def _require_free(self, name: str, box: Box) -> None:
        for other in self._boxes.get(name, ()):
            if box.meets(other):
                raise BadRequest(f"{self} {name}{box} was added already, as {other}")
        if name in self._kept:
            raise BadRequest(f"{self} {name} is kept as it was; don't add it")

    def add(self, name: str, box: Box) -> None:
        """What was checked is added."""
        self._boxes.setdefault(name, []).append(box)

    def keep(self, name: str) -> None:
        """Raises BadRequest."""
        self._spec(name)
        if self._boxes.get(name):
            raise BadRequest(f"{self} a part of {name} was added; add the rest of it")
        self._kept.add(name)

    @property
    def added(self) -> set[str]:
        """Tensors of which there is something, which are not kept."""
        return set(self._boxes)

    def require_whole(self) -> None:
        """Raises BadRequest, which names what is missing."""
        missing = [name for name, spec in self._tensors.items() if self._left(name, spec)]
        if missing:
            names = ", ".join(f"{name} ({self._left(name, self._tensors[name])} elements)" for name in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise BadRequest(f"{self} not all was added: {names}{more}; add it, or keep() what did not change")

    def _left(self, name: str, spec: TensorSpec) -> int:
        if name in self._kept:
            return 0
        return prod(spec.shape) - sum(box.elements for box in self._boxes.get(name, ()))

    def _spec(self, name: str) -> TensorSpec:
        if (spec := self._tensors.get(name)) is None:
            raise BadRequest(f"{self} there is no tensor {name}; all versions have the same tensors")
        return spec

    def _require_inside(self, name: str, spec: TensorSpec, box: Box) -> None:
        inside = len(box.shape) == len(box.offsets) == len(spec.shape) and all(
            begin >= 0 and size >= 0 and begin + size <= whole
            for begin, size, whole in zip(box.offsets, box.shape, spec.shape, strict=True)
        )
        if not inside:
            raise BadRequest(f"{self} {name} has shape {spec.shape}; {box.shape} from {box.offsets} is no part of it")
        if box.shape != spec.shape and BITS[spec.dtype] % 8:
            raise BadRequest(f"{self} {name}: {spec.dtype} elements are no whole bytes; add the whole tensor")

    def __str__(self) -> str:
        return f"version {self.version}:"


def dense(draft: Draft, name: str, data: Buffer) -> memoryview:
    """Bytes that are given for a version. Raises BadRequest."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise BadRequest(f"{draft} {name}: its bytes are not side by side; add a dense copy")
    return view.cast("B") if view.nbytes else memoryview(b"")  # zeros in a shape can't be cast
