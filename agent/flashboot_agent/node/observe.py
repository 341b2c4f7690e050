"""What this node observes, as one message for the operator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from flashboot_agent._native import BYTES_IN, BYTES_OUT, REFETCHED
from flashboot_agent.memory.probe import HostFacts, probe, report
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.clone import Clone
from flashboot_agent.node.images import ImageStore
from flashboot_agent.node.load import Load
from flashboot_agent.node.state import NodeState
from flashboot_agent.node.update import ArenaUpdate
from flashboot_agent.version import own_version
from flashboot_agent.wire.observed import HostMemory, Observed
from flashboot_agent.wire.observed_arena import ObservedArena, ObservedImage, ObservedLane

FACTS_SECONDS: Final = 1.0


class Recent:
    """The host's facts, at most FACTS_SECONDS old: reading them costs as much as the rest of what the operator is told
    four times a second while bytes flow."""

    def __init__(self, read: Callable[[], HostFacts], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._last: tuple[float, HostFacts] | None = None

    def __call__(self) -> HostFacts:
        now = self._clock()
        if self._last is None or now - self._last[0] >= FACTS_SECONDS:
            self._last = now, self._read()
        return self._last[1]


_recent = Recent(probe)


def observed(node: NodeState, facts: Callable[[], HostFacts] = _recent) -> Observed:
    return Observed(
        node=node.settings.node,
        instance=node.instance,
        version=own_version(),
        counter=node.board.counter,
        epoch=node.desired.epoch,
        revision=node.desired.revision,
        chunk_address=node.chunk_address,
        memory=memory(node, facts),
        link_bytes_per_second=node.link_bytes_per_second,
        certificate_expires_at=node.identity.credentials.expires_at if node.identity is not None else None,
        pods=[pod.observed({place: each.arena for place, each in node.wanted_by(pod).items()}) for pod in node.pods],
        arenas=observed_arenas(node),
        images=[
            ObservedImage(arena=each.arena, identity=each.identity, digest=each.digest, bytes=each.bytes)
            for each in node.images.all()
        ],
        probes=node.probes.observed(),
        evicted=list(node.evicted),
    )


def observed_arenas(node: NodeState) -> list[ObservedArena]:
    """Those that are here, and those that a clone or a load is after; by name."""
    users = node.users()
    held = node.store.all()
    arenas = [
        observed_arena(
            arena,
            node.clones.get(arena.name) or node.loads.get(arena.name),
            users,
            node.images,
            node.updates.get(arena.name),
        )
        for arena in held
    ]
    names = {arena.name for arena in held}
    fillers: list[Clone | Load] = [*node.clones.values(), *node.loads.values()]
    arenas += [waiting(filler, users) for filler in fillers if filler.wanted.arena not in names]
    return sorted(arenas, key=lambda arena: arena.arena)


def observed_arena(
    arena: Arena,
    filler: Clone | Load | None,
    users: dict[str, list[str]],
    images: ImageStore,
    update: ArenaUpdate | None = None,
) -> ObservedArena:
    """`filler`: what fills it, if something does. While it comes to be, a word about its damaged image stays."""
    record, marks, first = arena.record, arena.marks, arena.feeds[0]
    return ObservedArena(
        **record.owner(),
        state=record.state,
        way=record.way,
        bytes=record.bytes,
        watermark=arena.watermark,
        version=record.version,
        updatable=record.updatable,
        update=update.observed() if update is not None and update.order.version != record.version else None,
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
        layout_digest=record.layout_digest,
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
        accusations=(filler.accusations if filler else arena.accusations)[-16:],
        problem=(filler.problem if filler else None)
        or (images.problem(arena.name) if record.state != "sealed" else None),
    )


def waiting(filler: Clone | Load, users: dict[str, list[str]]) -> ObservedArena:
    """A clone that knows no size yet, or a load without memory: bytes are 0."""
    wanted = filler.wanted
    return ObservedArena(
        **wanted.owner(),
        state="allocated",
        way="load" if isinstance(filler, Load) else "clone",
        bytes=0,
        watermark=0,
        created_at=filler.created_at,
        pods=users.get(wanted.arena, [])[:256],
        accusations=filler.accusations,
        problem=filler.problem,
    )


def memory(node: NodeState, facts: Callable[[], HostFacts]) -> HostMemory:
    stats = node.stats
    return report(facts(), stats.budget_bytes if stats else 0, stats.used_bytes if stats else 0)
