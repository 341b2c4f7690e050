"""What an agent that died in the midst of an update left: put right before anybody hears of the arena.

The journal on disk says how to get back; the record, which versions the bytes may be. Only a digest of every byte
decides: what is neither version is dropped, whether the journal was lost, damaged, or of something else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import FlashBootError
from flashboot_agent.delta.arena import put_back
from flashboot_agent.logs import Log
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.record import RecordDamaged
from flashboot_agent.sync.resident import JOURNAL, REVERSE

log = Log(__name__)

Settle = Callable[[Arena], None]


def settle(arena: Arena, folder: Path) -> None:
    """Make an arena whose record says `updating` the base or the new version. `folder`: this arena's own.

    Raises RecordDamaged: it has to go."""
    between, threads = arena.record.between, len(os.sched_getaffinity(0))
    if between is None:
        raise RecordDamaged("it says updating, and not between which versions")
    why = ""
    with arena.region.map_for_update() as mapping:
        try:
            put_back(mapping.view, folder / JOURNAL, folder / REVERSE, threads=threads)
        except (FlashBootError, OSError) as error:
            why = f" (its journal can't be used: {error})"
        digests = chunk_digests(mapping.view, threads)
    found = root_digest(digests)
    versions = {between.base_digest: between.base, between.new_digest: between.new}
    if found not in versions:
        raise RecordDamaged(f"its update {between} was broken off, and its bytes are of neither version{why}")
    arena.end_update(versions[found], digests)
    log.info("update settled", arena=arena.name, versions=str(between), version=arena.record.version)
