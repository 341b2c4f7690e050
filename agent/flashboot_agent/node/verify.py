"""Whether an arena's bytes are still what its record says. Sealed ones can't change; this is against faults of ours."""

from __future__ import annotations

import threading

from flashboot_agent.core import chunks, digest
from flashboot_agent.core.errors import NotReady
from flashboot_agent.node.arena import Arena


def verify_all(arena: Arena, threads: int, stop: threading.Event) -> bool:
    """Compute every digest of a sealed arena anew; True when they are as recorded.

    Raises UnknownArena when it goes, NotReady soon after `stop`, ArenaUpdating."""
    with arena.reading():
        for offset in range(0, arena.nbytes, 64 << 20):
            if stop.is_set():
                raise NotReady(f"{arena.name} was not verified: this agent ends")
            length = min(64 << 20, arena.nbytes - offset)
            first = offset // chunks.DIGEST_CHUNK_BYTES * 8
            with arena.whole() as view, view[offset : offset + length] as part:
                found = digest.chunk_digests(part, threads)
            if arena.meta.chunk_digests[first : first + len(found)] != found:
                return False
    return True
