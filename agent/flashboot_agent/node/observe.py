"""What this node observes, as one message for the operator."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from flashboot_agent.memory.probe import HostFacts, probe, report
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.clone import Clone
from flashboot_agent.node.link import link_speed
from flashboot_agent.node.record import BYTES_IN, BYTES_OUT, REFETCHED
from flashboot_agent.node.state import NodeState
from flashboot_agent.wire.control import HostMemory, Observed, ObservedArena, ObservedLane


def own_version() -> str:
    try:
        return version("flashboot")
    except PackageNotFoundError:
        return "0+source"


def observed(node: NodeState, facts: Callable[[], HostFacts] = probe) -> Observed:
    return Observed(
        node=node.settings.node,
        instance=node.instance,
        version=own_version(),
        counter=node.board.counter,
        epoch=node.desired.epoch,
        revision=node.desired.revision,
        chunk_address=node.chunk_address,
        memory=memory(node, facts),
        link_bytes_per_second=node.settings.link_bytes_per_second or link_speed(),
        certificate_expires_at=node.identity.credentials.expires_at if node.identity is not None else None,
        pods=[pod.observed(wanted.arena if (wanted := node.wanted_by(pod)) else None) for pod in node.pods],
        arenas=observed_arenas(node),
    )


def observed_arenas(node: NodeState) -> list[ObservedArena]:
    """Those that are here, and those that a clone is after; by name."""
    users = node.users()
    held = node.store.all()
    arenas = [observed_arena(arena, node.clones.get(arena.name), users) for arena in held]
    names = {arena.name for arena in held}
    arenas += [waiting(clone, users) for name, clone in node.clones.items() if name not in names]
    return sorted(arenas, key=lambda arena: arena.arena)


def observed_arena(arena: Arena, clone: Clone | None, users: dict[str, list[str]]) -> ObservedArena:
    """`clone`: the one that fills it, if one does."""
    record, marks, first = arena.record, arena.marks, arena.feeds[0]
    return ObservedArena(
        arena=record.arena,
        namespace=record.namespace,
        model_replica=record.model_replica,
        model_replica_uid=record.model_replica_uid,
        expected_identity=record.expected_identity,
        place=record.place,
        state=record.state,
        way=record.way,
        bytes=record.bytes,
        watermark=arena.watermark,
        lanes=[
            ObservedLane(
                watermark=marks.verified(lane) - start,
                parent=arena.feeds[lane].parent,
                starved=arena.feeds[lane].starved and record.state == "filling",
            )
            for lane, (start, _) in enumerate(arena.bounds)
        ],
        identity=record.identity,
        digest=record.digest,
        parent=first.parent,
        transport=first.transport,
        transport_reason=first.reason,
        created_at=record.created_at,
        started_at=record.started_at,
        sealed_at=record.sealed_at,
        bytes_in=marks.counter(BYTES_IN),
        bytes_out=marks.counter(BYTES_OUT),
        paths=arena.feeds.paths(),
        refetched_chunks=marks.counter(REFETCHED),
        children=arena.leases.children(),
        pods=users.get(arena.name, [])[:256],
        accusations=(clone.accusations if clone else arena.accusations)[-16:],
        problem=clone.problem if clone else arena.problem,
    )


def waiting(clone: Clone, users: dict[str, list[str]]) -> ObservedArena:
    """A clone that knows no size yet: bytes are 0."""
    wanted = clone.wanted
    return ObservedArena(
        arena=wanted.arena,
        namespace=wanted.namespace,
        model_replica=wanted.model_replica,
        model_replica_uid=wanted.model_replica_uid,
        expected_identity=wanted.expected_identity,
        place=wanted.place,
        state="allocated",
        way="clone",
        bytes=0,
        watermark=0,
        created_at=clone.created_at,
        pods=users.get(wanted.arena, [])[:256],
        accusations=clone.accusations,
        problem=clone.problem,
    )


def memory(node: NodeState, facts: Callable[[], HostFacts]) -> HostMemory:
    stats = node.stats
    return report(facts(), stats.budget_bytes if stats else 0, stats.used_bytes if stats else 0)
