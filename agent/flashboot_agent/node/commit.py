"""What a seed commits: its layout is read out of its memory and checked, its bytes are sealed and digested.

Holds always: a wrong layout is refused before the arena is sealed; what the plug-in handed over blocks nobody for ever.
"""

from __future__ import annotations

import os

from flashboot_agent.core import digest
from flashboot_agent.core.errors import BadRequest
from flashboot_agent.core.identity import digest_of
from flashboot_agent.memory import memfd
from flashboot_agent.node import documents
from flashboot_agent.node.arena import Arena
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.wire.layout import MAX_LAYOUT


def publish(arena: Arena, document: bytes, identity: dict[str, str]) -> None:
    """Check the layout, seal, digest, publish. Nothing is changed when it raises, but for the seal itself.

    Raises BadRequest, IdentityMismatch, CommitRefused (it is still mapped for writing).
    """
    documents.parse_committed(document, identity, arena.nbytes)
    with arena.pinned():
        arena.region.seal(updatable=arena.record.updatable)
        with arena.whole() as view:
            digests = digest.chunk_digests(view, len(os.sched_getaffinity(0)))
        arena.publish_seed(
            ArenaMeta(arena.name, digest_of(identity), arena.nbytes, document, digests, digest.root_digest(digests))
        )


def read_document(fd: int) -> bytes:
    """All bytes of a memfd, which the peer may still change; what is returned is a copy. Takes over the descriptor.

    Raises BadRequest.
    """
    try:
        facts = os.fstat(fd)
        if not memfd.is_memory(fd):  # a read of anything else may never come back
            raise BadRequest("the layout's descriptor is not a memfd")
        if not 0 < facts.st_size <= MAX_LAYOUT:
            raise BadRequest(f"the layout has {facts.st_size} bytes; allowed are 1 to {MAX_LAYOUT}")
        document = memfd.read_up_to(fd, facts.st_size)
        if len(document) < facts.st_size:
            raise BadRequest(f"the layout ended at byte {len(document)} of {facts.st_size}")
        return document
    finally:
        os.close(fd)
