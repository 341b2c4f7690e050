"""The documents of an arena: does a layout belong to these bytes and this identity? Pure.

Agents carry a layout as opaque bytes; of a peer's they read the head, which ties it to the arena, of a seed's all.
"""

from __future__ import annotations

from flashboot_agent.core import chunks, digest
from flashboot_agent.core.errors import BadRequest, IdentityMismatch
from flashboot_agent.core.identity import digest_of, require_equal
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.wire.layout import MAX_LAYOUT, Head, Layout, LayoutError, read_head


def identity_of(layout: bytes) -> dict[str, str]:
    """The full identity that a layout document carries. Raises BadRequest."""
    return _head(layout).identity


def _head(layout: bytes) -> Head:
    try:
        return read_head(layout)
    except LayoutError as error:
        raise BadRequest(str(error)) from error


def check(meta: ArenaMeta) -> None:
    """What a parent announces must belong together. Raises BadRequest or IdentityMismatch, naming what does not."""
    if len(meta.layout) > MAX_LAYOUT:
        raise BadRequest(f"{meta.arena}: a layout of {len(meta.layout)} bytes; at most {MAX_LAYOUT} are carried")
    if len(meta.chunk_digests) != 8 * chunks.chunk_count(meta.nbytes):
        raise BadRequest(f"{meta.arena}: {len(meta.chunk_digests) // 8} digests for {meta.nbytes} bytes")
    if digest.root_digest(meta.chunk_digests) != meta.digest:
        raise BadRequest(f"{meta.arena}: the chunk digests differ from their root {meta.digest}")
    head = _head(meta.layout)
    if digest_of(head.identity) != meta.identity:
        raise IdentityMismatch(f"{meta.arena}: the layout carries another identity than {meta.identity}")
    if head.arena_bytes != meta.nbytes:
        raise BadRequest(f"{meta.arena}: the layout speaks of {head.arena_bytes} bytes, the arena has {meta.nbytes}")


def parse_committed(document: bytes, identity: dict[str, str], arena_bytes: int) -> Layout:
    """A seed's layout, in full. Raises BadRequest, or IdentityMismatch against what the seed said in its hello."""
    try:
        layout = Layout.from_bytes(document)
    except LayoutError as error:
        raise BadRequest(str(error)) from error
    require_equal(identity, layout.identity, whose="layout")
    if layout.arena_bytes != arena_bytes:
        raise BadRequest(f"the layout speaks of {layout.arena_bytes} bytes, the arena has {arena_bytes}")
    return layout
