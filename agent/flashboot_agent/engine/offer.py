"""What the agent offers a rank in the end: a sealed arena, or to be the seed. No torch is needed here."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from types import SimpleNamespace

from flashboot_agent.core.errors import DigestMismatch, TornFrame
from flashboot_agent.core.identity import document_digest, require_equal
from flashboot_agent.engine.mapping import map_arena, parse_layout, read_layout
from flashboot_agent.engine.messages import Ready
from flashboot_agent.memory.memfd import close_all
from flashboot_agent.wire.layout import Layout


class Sealed:
    """A resident arena: `descriptor` is the caller's to close."""

    def __init__(self, arena: str, nbytes: int, digest: str, descriptor: int, layout: bytes) -> None:
        self.arena = arena
        self.nbytes = nbytes
        self.digest = digest
        self.descriptor = descriptor
        self.layout = layout


class MustSeed(SimpleNamespace):
    """This engine loads the checkpoint and fills the arena."""

    arena: str


def sealed(message: Ready, descriptors: list[int], who: str) -> Sealed:
    """What came with `ready`. Takes over the descriptors.

    Raises TornFrame, BadRequest; DigestMismatch when the layout is not the one that the agent speaks of."""
    if len(descriptors) != 2:
        close_all(descriptors)
        raise TornFrame(f"{who}: ready came with {len(descriptors)} descriptors instead of arena and layout")
    arena, document = descriptors
    try:
        layout = read_layout(document)
    except BaseException:  # whatever it was: the caller does not get the arena's descriptor
        os.close(arena)
        raise
    finally:
        os.close(document)
    if document_digest(layout) != message.layout_digest:
        os.close(arena)
        raise DigestMismatch(
            f"{who}: the layout of {message.arena} differs from its digest {message.layout_digest}; "
            "this node's agent holds it damaged: restart the agent, or delete the arena's pods here"
        )
    return Sealed(message.arena, message.bytes, message.digest, arena, layout)


def opened(offer: Sealed, identity: Mapping[str, str]) -> tuple[Layout, mmap.mmap]:
    """Read and compare the layout, map the bytes. Takes over the descriptor.

    Raises BadRequest, IdentityMismatch."""
    try:
        layout = parse_layout(offer.layout)
        require_equal(identity, layout.identity, whose=offer.arena)
        return layout, map_arena(offer.descriptor, offer.nbytes, writable=False)
    finally:
        os.close(offer.descriptor)
