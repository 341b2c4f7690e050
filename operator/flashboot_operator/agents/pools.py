"""A pool of connections for each agent, under one TLS context.

One pool for all would be simpler, but httpx looks through all its connections whenever a call begins or ends: with two
connections to each of 18 agents that was half of the operator's work with agents, and grows with the square of nodes.
"""

from __future__ import annotations

import ssl
import time

import httpx

IDLE_S = 300.0
"""An agent that was not called for so long is gone; a long poll is a call."""


class Pools:
    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._used: dict[str, float] = {}

    async def of(self, ip: str) -> httpx.AsyncClient:
        now = time.monotonic()
        client = self._clients.get(ip)
        self._used[ip] = now
        if client is None:
            client = self._clients[ip] = self._new()
            idle = [each for each, at in self._used.items() if now - at > IDLE_S]
            old = [self._clients.pop(each) for each in idle]
            for each in idle:
                del self._used[each]
            for unused in old:  # the tables are in order by now: while these close, others come here
                await unused.aclose()
        return client

    async def aclose(self) -> None:
        clients = list(self._clients.values())
        self._clients.clear()
        self._used.clear()
        for client in clients:
            await client.aclose()

    def _new(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60)
        # trust_env off: a cluster's proxy settings are for the way out, not for the way to a pod.
        verify = self._context if self._context is not None else False
        return httpx.AsyncClient(verify=verify, limits=limits, trust_env=False)
