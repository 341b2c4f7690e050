"""`flashboot-agent`: settings from the environment, the TCP transport, until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys

from flashboot_agent import logs
from flashboot_agent.node.agent import Agent
from flashboot_agent.node.settings import Settings
from flashboot_agent.transport.base import ArenaCatalog, Server
from flashboot_agent.transport.tcp import TcpTransport
from flashboot_agent.transport.tcp_server import TcpServer


def main() -> None:
    try:
        settings = Settings.from_env()
    except ValueError as error:
        sys.exit(f"flashboot-agent: {error}")
    logs.configure("INFO", part="agent", node=settings.node)
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    def serve(catalog: ArenaCatalog) -> Server:
        return TcpServer(catalog, settings.bind, settings.chunk_port, advertise=settings.pod_ip)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Agent(settings, [TcpTransport()], serve).run(stop)


if __name__ == "__main__":
    main()
