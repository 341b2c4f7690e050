"""An arena, on the wire: whose it is, how it came, and in which state it is."""

from __future__ import annotations

from typing import Any, Final, Literal

from flashboot_agent.wire.base import Address, ArenaId, Digest, Name, Uid, WireModel
from flashboot_agent.wire.place import Place

Way = Literal["seed", "clone", "load"]
"""How an arena came to be; load: FlashLoad from an arena image on this node."""

ArenaState = Literal["allocated", "seeding", "filling", "sealed", "updating"]
"""allocated: memory is there, no byte yet; with `bytes` 0 a clone that has not learned its size from a parent yet.
seeding: an engine writes it. filling: a clone or a load runs. sealed: resident. updating: it goes from one version to
the next, and nobody gets it until it is one of the two."""

MAX_LANES: Final = 16


class ArenaOwner(WireModel):
    """Which arena, and whose: the same in orders, observations, records and images."""

    arena: ArenaId
    namespace: Name
    model_replica: Name
    model_replica_uid: Uid
    expected_identity: Digest
    place: Place = Place()

    def owner(self) -> dict[str, Any]:
        """These fields, for another model that has them."""
        return {name: getattr(self, name) for name in ArenaOwner.model_fields}


class Peer(WireModel):
    """A node that holds (part of) an arena and serves it."""

    node: Name
    address: Address
