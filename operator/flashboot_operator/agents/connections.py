"""Connections to all agents that stay open between calls, under one TLS context.

A connection serves calls to one node at one address, and no others: which node the agent's certificate has to name is a
part of what the pool finds it by.
"""

from __future__ import annotations

import ssl

import aiohttp

IDLE_S = 60.0
"""A connection that had no call for so long is closed; a long poll is a call."""


class Connections:
    def __init__(self, context: ssl.SSLContext | None) -> None:
        """Without a context, calls go in plain text."""
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """Made at the first use, which has to be inside the event loop."""
        if self._session is None:
            connector = aiohttp.TCPConnector(
                ssl=self._context if self._context is not None else True, limit=0, keepalive_timeout=IDLE_S
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                # Whoever could make us unpack could fill our memory before anybody counts.
                auto_decompress=False,
                headers={"Accept-Encoding": "identity"},
                # A cluster's proxy settings are for the way out, not for the way to a pod.
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
