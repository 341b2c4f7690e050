"""One level-triggered round, which moves the node towards what should be; it recomputes everything and never waits.

Who is here (the door's files) → who is served → what is loaded → which arenas go → which clones run → which are updated
→ whom to probe.
"""

from __future__ import annotations

from flashboot_agent.node import rules
from flashboot_agent.node.background import Background
from flashboot_agent.node.clones import Clones
from flashboot_agent.node.drops import Drops
from flashboot_agent.node.loads import Loads
from flashboot_agent.node.pods import read_published
from flashboot_agent.node.sockets import PodSockets
from flashboot_agent.node.state import NodeState
from flashboot_agent.node.updates import Updates
from flashboot_agent.transport.choose import Connect


class Round:
    """Loop side."""

    def __init__(
        self,
        node: NodeState,
        *,
        sockets: PodSockets,
        loads: Loads,
        clones: Clones,
        updates: Updates,
        drops: Drops,
        background: Background,
        connect: Connect,
    ) -> None:
        self._node = node
        self._sockets = sockets
        self._loads = loads
        self._clones = clones
        self._updates = updates
        self._drops = drops
        self._background = background
        self._connect = connect

    def run(self, *, recovered: bool) -> None:
        """`recovered`: the store has what an earlier process left; before, no arena is judged."""
        node = self._node
        self._pods()
        if not recovered:
            return
        users = node.users()
        loading = self._loads.round(users, self._drops.under_way)
        self._arenas(users, loading)
        self._clones.round(users, loading)
        self._updates.round()
        probes = node.desired.current.probes if node.desired.current and node.desired.fresh else []
        node.probes.round(probes, self._connect, self._background.start)
        node.known = True

    def _pods(self) -> None:
        node = self._node
        known = {pod.uid: pod.meta for pod in node.pods}
        _, gone = node.pods.update(read_published(node.settings.meta, known))
        for pod in gone:
            self._sockets.end(pod)
        for pod in node.pods:
            self._sockets.serve(pod)

    def _arenas(self, users: dict[str, list[str]], loading: set[str]) -> None:
        """Which stay, and how fast each may be read."""
        node = self._node
        attached, halves = node.attached(), node.halves()
        for arena in node.store.all():
            name = arena.name
            held = rules.Held(
                arena.state, name in attached, name in users, arena.leases.read, name in loading, name in halves
            )
            arena.note_use(used=name in users or bool(arena.leases.children()))
            if not rules.keeps(name, held, node.desired.current, fresh=node.desired.fresh):
                self._drops.drop(name, held.state, "no published pod uses it and no fresh desired state lists it")
            wanted = rules.find(name, node.desired.current)
            arena.egress.rate = (wanted.egress_bytes_per_second if wanted else None) or 0
