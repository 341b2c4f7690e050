"""The storages of an engine's arena as what a Publisher is given: for versions that the converter makes.

Where no permutation map can be (engine/convert.py says why), a process with the engine's configuration converts the
trainer's tensors and adds what it is given, storage by storage; the chain is the one that a map's would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.core.identity import document_digest
from flashboot_agent.delta import words
from flashboot_agent.sync.tensors import Box, TensorSpec
from flashboot_agent.wire.layout import Layout


def name_at(offset: int) -> str:
    """Of the storage that begins at this byte of the arena."""
    return f"storage at byte {offset}"


class StoragePlaces:
    """Places (sync/tensors.py) of a layout: the bytes of each storage, but of those that engines write to."""

    subject: Literal["arena", "checkpoint"] = "arena"

    def __init__(self, layout: Layout, base: memoryview) -> None:
        """`base`: any version of this arena, which has what is in no storage, or in one that engines write to.

        Raises BadRequest."""
        if base.nbytes != layout.arena_bytes:
            raise BadRequest(f"an arena of {base.nbytes} bytes, the layout's have {layout.arena_bytes}")
        self.content, self.nbytes = document_digest(layout.to_bytes()), layout.arena_bytes
        self.runs = words.of_layout(layout)
        updated = [each for each in layout.storages if each.bytes and each.kind != "runtime"]
        self.tensors: Mapping[str, TensorSpec] = {
            name_at(storage.offset): TensorSpec("U8", (storage.bytes,)) for storage in updated
        }
        self._offsets = {name_at(storage.offset): storage.offset for storage in updated}
        self._base = base

    def fill(self, image: memoryview) -> None:
        image[:] = self._base

    def write(self, name: str, box: Box, data: memoryview, image: memoryview) -> None:
        begin = self._offsets[name] + box.offsets[0]
        image[begin : begin + data.nbytes] = data

    def copy(self, name: str, old: memoryview, image: memoryview) -> None:
        begin = self._offsets[name]
        end = begin + self.tensors[name].shape[0]
        image[begin:end] = old[begin:end]
