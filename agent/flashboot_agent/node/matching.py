"""May this engine have that arena? Full identities decide, and a refusal names the fields in which they differ.

the arena that the operator names is another's  →  one of this node with exactly the engine's identity, if there is
                                                →  else the operator looks for one, or lets the engine seed its own
                                                →  refused, when the operator says so or does not answer
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from flashboot_agent.core.errors import FlashBootError, IdentityMismatch
from flashboot_agent.core.identity import digest_of, require_equal
from flashboot_agent.node import documents
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.place import Place

DOCUMENTS_SECONDS: Final = 2.0
"""For the documents of an arena whose identity the operator knows; they come before its bytes."""


class Matching:
    """Of one engine, from its hello on."""

    def __init__(
        self, identity: Mapping[str, str], place: Place, patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """patience: seconds that an engine which can't have its arena waits for the operator's word."""
        self.identity = digest_of(identity)
        self._fields = dict(identity)
        self._place = place
        self._patience = patience
        self._clock = clock
        self._since: float | None = None
        self._found: tuple[str, str | None, IdentityMismatch | None] | None = None

    @property
    def differed(self) -> bool:
        """An arena that the operator named was another's."""
        return self._since is not None

    def twin(self, store: ArenaStore, wanted: WantedArena) -> Arena | None:
        """A sealed arena of the same ModelReplica and rank, with exactly this engine's identity, whatever its name."""
        for arena in store.all():
            record = arena.record
            same = (record.model_replica_uid, record.place) == (wanted.model_replica_uid, self._place)
            other_bytes = wanted.identity == self.identity and wanted.digest not in (None, record.digest)
            if same and arena.state == "sealed" and record.identity == self.identity and not other_bytes:
                return arena
        return None

    def mismatch(self, arena: Arena | None, wanted: WantedArena | None) -> IdentityMismatch | None:
        """Why this engine may not have `arena`, the one that is wanted, as far as it is here; None when it may, or
        while nobody knows. Without its documents the fields can't be named, and they are waited for a little."""
        known = arena.record.identity if arena is not None else None
        identity = known or (wanted.identity if wanted is not None else None)
        if identity in (None, self.identity):
            return None
        if self._since is None:
            self._since = self._clock()
        if arena is not None and known is not None:
            if self._found is None or self._found[:2] != (arena.name, known):
                self._found = (arena.name, known, self._compare(arena))
            return self._found[2]
        if wanted is None or self._clock() - self._since < DOCUMENTS_SECONDS:
            return None
        return IdentityMismatch(
            f"the engine asks for the identity {self.identity}, {wanted.arena} has {identity}; which fields differ is "
            "in the arena's documents, and they are not here"
        )

    def refused(self, uid: str, wanted: WantedArena | None) -> str | None:
        """After a mismatch: why nothing else comes, None while something may."""
        if wanted is None:
            return "the operator names no other arena for this pod"
        if uid in wanted.refused:
            return (
                "no node holds an arena of this identity, and transfer.onMismatch of the ModelReplica is Fail (or this "
                "is not the replica's first rank, whose identity decides); let the pod's image, arguments and "
                "environment be those of the others, or set it to LoadFromCheckpoint"
            )
        if self._since is not None and self._clock() - self._since >= self._patience:
            return f"the operator named no other arena within {self._patience:.0f} s; does it run?"
        return None

    def _compare(self, arena: Arena) -> IdentityMismatch | None:
        try:
            require_equal(self._fields, documents.identity_of(arena.meta.layout), whose=f"arena {arena.name}")
        except IdentityMismatch as error:
            return error.with_traceback(None)  # its frames hold the arena, and the caller's among them would hold it
        except FlashBootError as error:
            return IdentityMismatch(f"{arena.name} is another's: {error}").with_traceback(None)
        return None
