"""A publisher's folder behind a real HTTP server with ranges (aiohttp's), and what such a server does on a bad day."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from aiohttp import web

from flashboot_agent.sync import chain_file

Answer = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    folder: Path
    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """File and range of each request for a delta."""
    bad: list[Answer] = field(default_factory=list)
    """Instead of good answers to requests for deltas; used up one by one."""
    bad_chain: list[Answer] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, bad = self.folder / request.match_info["name"], self.bad_chain
        if path.name != chain_file.NAME:
            self.asked.append((path.name, request.headers.get("range")))
            bad = self.bad
        if not path.exists():
            raise web.HTTPNotFound
        return await bad.pop(0)(request, path.read_bytes()) if bad else web.FileResponse(path)


@contextmanager
def serving(folder: Path, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(folder)
    loop = server.loop
    app = web.Application()
    app.router.add_get("/weights/{name}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        port: int = runner.addresses[0][1]
        return port

    port = loop.run_until_complete(start())
    server.url = f"https://localhost:{port}/weights" if tls else f"http://127.0.0.1:{port}/weights"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.run_until_complete(_ended(asyncio.all_tasks(loop)))
        loop.close()


async def _ended(left: set[asyncio.Task[object]]) -> None:
    """Answers that wait for ever."""
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def breaks_after(nbytes: int) -> Answer:
    """The right file, but the connection breaks so far into it."""

    async def answer(request: web.Request, data: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": str(len(data))})
        await response.prepare(request)
        await response.write(data[:nbytes])
        assert request.transport
        request.transport.close()
        return response

    return answer


def stops_after(nbytes: int) -> Answer:
    """Nothing comes any more, and the connection stays."""

    async def answer(request: web.Request, data: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": str(len(data))})
        await response.prepare(request)
        await response.write(data[:nbytes])
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    return answer


def endless(pause: float = 0.0, piece: int = 1 << 16, first: bytes = b"") -> Answer:
    """Without a length, and without an end."""

    async def answer(request: web.Request, data: bytes) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(first)
        for _ in count():
            await response.write(bytes(piece))
            await asyncio.sleep(pause)
        return response

    return answer


def holds_at(nbytes: int, go: asyncio.Event) -> Answer:
    """The file from where it was asked for; what is behind so many bytes comes when `go` is set."""

    async def answer(request: web.Request, data: bytes) -> web.StreamResponse:
        begin = request.http_range.start or 0
        headers = {"content-length": str(len(data) - begin)}
        if begin:
            headers["content-range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        response = web.StreamResponse(status=206 if begin else 200, headers=headers)
        await response.prepare(request)
        await response.write(data[begin:nbytes])
        await go.wait()
        await response.write(data[max(begin, nbytes) :])
        return response

    return answer


def says(status: int, **headers: str) -> Answer:
    """Whole, with this status and these headers (_ is -)."""

    async def answer(request: web.Request, data: bytes) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=data, headers=named)

    return answer


def drips_headers(pause: float = 0.01) -> Answer:
    """A byte of them at a time, and never the last one."""

    async def answer(request: web.Request, data: bytes) -> web.StreamResponse:
        assert request.transport
        request.transport.write(b"HTTP/1.1 200 OK\r\nlong: ")
        while not request.transport.is_closing():
            request.transport.write(b"x")
            await asyncio.sleep(pause)
        raise ConnectionResetError

    return answer
