"""Who answers the operator's HTTP API: the present plans, agents and objects, looked up when somebody asks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from flashboot_operator.agents.fleet import Fleet
from flashboot_operator.api.live import Listing, Nodes, ReplicaView, Trees
from flashboot_operator.core.trees import trees_of
from flashboot_operator.kube.client import Object
from flashboot_operator.kube.lease import Lease
from flashboot_operator.reconcile.controller import Controller
from flashboot_operator.reconcile.objects import Objects
from flashboot_operator.reconcile.view import listing, nodes_view, view


class LiveViews:
    """http.Live."""

    def __init__(self, controller: Controller, objects: Objects, fleet: Fleet, lease: Lease) -> None:
        self._controller = controller
        self._objects = objects
        self._fleet = fleet
        self._lease = lease

    def listing(self, *, namespace: str | None, after: str | None, limit: int) -> Listing:
        known = {key: (decision.owner, self._status(key)) for key, decision in self._controller.decisions.items()}
        return listing(known, namespace=namespace, after=after, limit=limit)

    def replica(self, namespace: str, name: str) -> ReplicaView | None:
        key = (namespace, name)
        decision = self._controller.decisions.get(key)
        if decision is None:
            return None
        agents, silent = self._fleet.agents(), self._fleet.last_seen()
        return view(decision, agents=agents, silent=silent, status=self._status(key), epoch=self._lease.epoch)

    def trees(self, namespace: str, name: str, rank: str | None) -> Trees | None:
        decision = self._controller.decisions.get((namespace, name))
        if decision is None:
            return None
        present = replace(decision.world, agents=self._fleet.agents(), now=datetime.now(UTC))
        return trees_of(decision.owner, present, decision.plans, epoch=self._lease.epoch, rank=rank)

    def nodes(self, node: str | None) -> Nodes:
        return nodes_view(self._fleet.agents(), self._fleet.last_seen(), node)

    def _status(self, key: tuple[str, str]) -> Object:
        found: Object = (self._objects.peek(key) or {}).get("status") or {}
        return found
