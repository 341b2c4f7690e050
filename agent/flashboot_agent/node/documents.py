"""The documents of an arena: does a layout belong to these bytes and this identity? Pure.

Agents carry a layout as opaque bytes; of a peer's they read the two fields that tie it to the arena, of a seed's all.
"""

from __future__ import annotations

import json

from pydantic import ValidationError

from flashboot_agent.core import chunks, digest
from flashboot_agent.core.errors import BadRequest, IdentityMismatch
from flashboot_agent.core.identity import digest_of, require_equal
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.wire.attach import MAX_LAYOUT
from flashboot_agent.wire.layout import Layout


def identity_of(layout: bytes) -> dict[str, str]:
    """The full identity that a layout document carries. Raises BadRequest."""
    return _head(layout)[0]


def _head(layout: bytes) -> tuple[dict[str, str], object]:
    """Identity, and the size that it speaks of, unchecked. Raises BadRequest."""
    try:
        document = json.loads(layout)
        identity = document["identity"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequest(f"the layout document has no identity: {error!r}") from error
    if not isinstance(identity, dict) or not all(isinstance(value, str) for value in identity.values()):
        raise BadRequest("the layout document's identity is not a map of strings")
    return identity, document.get("arenaBytes", document.get("arena_bytes"))


def check(meta: ArenaMeta) -> None:
    """What a parent announces must belong together. Raises BadRequest or IdentityMismatch, naming what does not."""
    if len(meta.layout) > MAX_LAYOUT:
        raise BadRequest(f"{meta.arena}: a layout of {len(meta.layout)} bytes; at most {MAX_LAYOUT} are carried")
    if len(meta.chunk_digests) != 8 * chunks.chunk_count(meta.nbytes):
        raise BadRequest(f"{meta.arena}: {len(meta.chunk_digests) // 8} digests for {meta.nbytes} bytes")
    if digest.root_digest(meta.chunk_digests) != meta.digest:
        raise BadRequest(f"{meta.arena}: the chunk digests differ from their root {meta.digest}")
    identity, arena_bytes = _head(meta.layout)
    if digest_of(identity) != meta.identity:
        raise IdentityMismatch(f"{meta.arena}: the layout carries another identity than {meta.identity}")
    if arena_bytes != meta.nbytes:
        raise BadRequest(f"{meta.arena}: the layout speaks of {arena_bytes} bytes, the arena has {meta.nbytes}")


def parse_committed(document: bytes, identity: dict[str, str], arena_bytes: int) -> Layout:
    """A seed's layout, in full. Raises BadRequest, or IdentityMismatch against what the seed said in its hello."""
    try:
        layout = Layout.model_validate_json(document)
    except ValidationError as error:
        raise BadRequest(f"the layout document is malformed: {error}"[:4000]) from error
    require_equal(identity, layout.identity, whose="layout")
    if layout.arena_bytes != arena_bytes:
        raise BadRequest(f"the layout speaks of {layout.arena_bytes} bytes, the arena has {arena_bytes}")
    return layout
