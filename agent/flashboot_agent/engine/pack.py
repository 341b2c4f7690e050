"""Move the storages of a loaded model into an arena, one after the other, without a moment in which a byte is nowhere.

Each shared storage is copied to its place, its tensors are set over that place, and with the last of them the memory it
came from is freed: beside the arena, which is reserved as a whole, the model's own memory only shrinks. The tensors
look through a read-only mapping that forbids no seal. Storages that stay private are copied and left alone.

Holds always: after an error at any point the model is complete, partly here and partly in the arena, which lives as
long as it is mapped; the same call with a new descriptor moves everything on to there.
"""

from __future__ import annotations

import os
from typing import Any

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.engine.mapping import as_tensor, map_arena, unmap
from flashboot_agent.engine.plan import Plan


class Packing:
    """One model on its way. Takes the plan's references to storages over, so that they can be freed."""

    def __init__(self, planned: Plan) -> None:
        import torch

        self._layout = planned.layout
        self._sources = [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in planned.storages]
        """For each storage its bytes where they are now."""
        planned.storages.clear()
        self._views: list[list[int]] = [[] for _ in self._sources]
        for number, view in enumerate(planned.layout.tensors):
            self._views[view.storage].append(number)
        self._tensors = planned.tensors

    def move_to(self, descriptor: int, nbytes: int, only_to_read: int | None = None) -> None:
        """Takes over the descriptors: one that must allow writing, and one of the same memory that does not, which is
        made of the other where this process owns the memory. No writable mapping is left afterwards.

        Raises BadRequest when the memory is smaller than announced, OSError, CommitRefused.
        """
        try:
            only_to_read = _to_read(descriptor) if only_to_read is None else only_to_read
            writable = map_arena(descriptor, nbytes, writable=True)
            readable = as_tensor(map_arena(only_to_read, nbytes, writable=False))
        finally:
            os.close(descriptor)
            if only_to_read is not None:
                os.close(only_to_read)
        target = as_tensor(writable)
        try:
            for number, place in enumerate(self._layout.storages):
                if place.bytes:
                    target[place.offset : place.offset + place.bytes].copy_(self._sources[number])
                    if place.kind == "shared":
                        self._look_through(number, readable)
        finally:
            del target
            unmap(writable, "pack")

    def _look_through(self, number: int, readable: Any) -> None:
        import torch

        place = self._layout.storages[number]
        with torch.no_grad():
            for index in self._views[number]:
                tensor, view = self._tensors[index], self._layout.tensors[index]
                offset = place.offset // tensor.element_size() + view.offset
                tensor.set_(readable.untyped_storage(), offset, tuple(view.shape), tuple(view.stride))
        self._sources[number] = readable[place.offset : place.offset + place.bytes]


def _to_read(descriptor: int) -> int:
    """The same memory by a descriptor that can't write: mappings of the other count as writers and forbid the seal."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise BadRequest(
            f"the arena's memory can't be opened for reading ({error.strerror}); is /proc mounted?"
        ) from error
