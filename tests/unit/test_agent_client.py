"""The operator's client against agents that never come to an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import pytest

from flashboot_operator.agents import client as agents
from flashboot_operator.agents.client import AgentClient, AgentError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"


@asynccontextmanager
async def agent(piece: bytes, pause: float) -> AsyncIterator[int]:
    """Answers every request with pieces of a body, a pause between two; the port."""

    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD)
            while True:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)  # the agent's own slowness
        ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
        await ended.wait()
    finally:
        server.close()


async def test_an_answer_that_trickles_ends_at_the_deadline() -> None:
    async with agent(b" ", 0.05) as port, asyncio.timeout(20):
        client = AgentClient(port=port, connect_s=1.0, answer_s=0.3)
        with pytest.raises(AgentError, match="no whole answer within"):
            await client.observed("n1", "127.0.0.1", after=-1, wait_s=0)
        await client.close()


async def test_an_answer_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "MOST_ANSWER", 100_000)
    async with agent(b" " * 50_000, 0.0) as port, asyncio.timeout(20):
        client = AgentClient(port=port, connect_s=30)
        with pytest.raises(AgentError, match="more than 100000 bytes"):
            await client.observed("n1", "127.0.0.1", after=-1, wait_s=0)
        await client.close()
