"""kopf watches ModelReplicas for us and only marks them dirty.

Only raw event handlers are used, so that kopf writes nothing to an object: no finalizer, no annotation. What kopf may
lose (a deletion during a gap of the watch, an error in a handler) the periodic resync of reconcile/ makes up for.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import kopf

from flashboot_operator.api.base import GROUP, PLURAL, VERSION
from flashboot_operator.core.facts import Key

OWN_PREFIX = f"operator.{GROUP}"


class KopfWatch:
    """`on_object(key, object or None)` for each event; None means deleted."""

    def __init__(self, on_object: Callable[[Key, dict[str, Any] | None], None], *, kubeconfig: str | None) -> None:
        self._on_object = on_object
        self._kubeconfig = kubeconfig
        self.started = asyncio.Event()
        self._registry = kopf.OperatorRegistry()
        kopf.on.login(registry=self._registry)(self._login)
        kopf.on.event(GROUP, VERSION, PLURAL, registry=self._registry)(self._event)

    async def _login(self, **kwargs: Any) -> kopf.ConnectionInfo | None:
        if self._kubeconfig:
            return kopf.login_with_kubeconfig(**kwargs)
        info = kopf.login_with_service_account(**kwargs)
        # By address, as every client library does: kopf's own choice needs a cluster DNS that works.
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if info is None or not host:
            return info
        return dataclasses.replace(info, server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")

    async def _event(self, event: Any, **_: Any) -> None:
        obj = dict(event["object"])
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        self._on_object(key, None if event["type"] == "DELETED" else obj)

    def settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.peering.standalone = True
        settings.scanning.disabled = True
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 5
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 310
        settings.watching.inactivity_timeout = 70
        settings.watching.reconnect_backoff = 1.0  # of 0.1 s a server that ends each watch at once makes a hot loop
        settings.queueing.worker_limit = None
        settings.execution.default_backoff = 5
        settings.persistence.finalizer = f"{OWN_PREFIX}/unused"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=OWN_PREFIX)
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=OWN_PREFIX)
        return settings

    async def run(self) -> None:
        """Ends by an error, by cancellation, or when the process is told to end: kopf takes over SIGTERM, SIGINT."""
        stop, ready = asyncio.Event(), self.started
        await kopf.operator(
            registry=self._registry,
            settings=self.settings(),
            standalone=True,
            clusterwide=True,
            stop_flag=stop,
            ready_flag=ready,
        )
