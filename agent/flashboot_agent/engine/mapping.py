"""Memory that the agent hands over: descriptors in, mapped bytes and documents out.

The mapping's life is torch's: a tensor made from the buffer keeps the mapping alive, so that it goes with the last
tensor of the model and not before. Read-only mappings are read-only for the MMU: a late write ends in a signal, never
in other engines' weights.
"""

from __future__ import annotations

import mmap
import os
import warnings
from typing import Any

from flashboot_agent.core.errors import BadRequest, CommitRefused
from flashboot_agent.memory.memfd import read_up_to
from flashboot_agent.wire.layout import MAX_LAYOUT, Layout, LayoutError


def map_arena(descriptor: int, nbytes: int, *, writable: bool) -> mmap.mmap:
    """Map all of an arena. The descriptor stays the caller's.

    The mapping may be longer than `nbytes`: of an arena on reserved huge pages only whole pages can be unmapped, and a
    writable mapping that stayed would forbid the seal.

    Raises BadRequest when the file is not `nbytes` long.
    """
    held = os.fstat(descriptor).st_size
    if held < nbytes:
        raise BadRequest(f"the agent announced {nbytes} bytes and handed over {held}")
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(descriptor, held, flags=mmap.MAP_SHARED, prot=protection)


def unmap(mapping: mmap.mmap, what: str) -> None:
    """Raises CommitRefused while a tensor still lies in it (a fault of ours, told before the agent finds it)."""
    try:
        mapping.close()
    except BufferError as error:
        raise CommitRefused(f"{what}: something still holds a view on the writable mapping: {error}") from error


def as_tensor(mapping: mmap.mmap) -> Any:
    """A flat uint8 tensor over the mapping, without a copy."""
    import torch

    with warnings.catch_warnings():
        # The buffer of a read-only mapping is not writable on purpose; torch warns that it can't express that.
        # (A filter by its message would be compiled, which takes as long as making a thousand tensors.)
        warnings.simplefilter("ignore", category=UserWarning)
        return torch.frombuffer(mapping, dtype=torch.uint8)


def read_layout(descriptor: int) -> bytes:
    """The layout document's bytes. The descriptor stays the caller's. Raises BadRequest when it is too long."""
    size = os.fstat(descriptor).st_size
    if size > MAX_LAYOUT:
        raise BadRequest(f"the layout document has {size} bytes, at most {MAX_LAYOUT} are allowed")
    data = read_up_to(descriptor, size)
    if len(data) < size:
        raise BadRequest(f"the layout document ends at byte {len(data)} of {size}")
    return data


def parse_layout(document: bytes) -> Layout:
    """Raises BadRequest when it is no layout."""
    try:
        return Layout.from_bytes(document)
    except LayoutError as error:
        raise BadRequest(str(error)) from error
