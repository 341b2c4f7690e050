"""`flashboot-agent`: settings from the environment, the TCP transport, until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys

from flashboot_agent import logs
from flashboot_agent.node.agent import Agent
from flashboot_agent.node.identity import NodeIdentity
from flashboot_agent.node.settings import Settings
from flashboot_agent.transport.base import ArenaCatalog, Server
from flashboot_agent.transport.tcp import TcpTransport
from flashboot_agent.transport.tcp_server import TcpServer
from flashboot_agent.trust.credentials import CredentialStore


def main() -> None:
    try:
        settings = Settings.from_env()
    except ValueError as error:
        sys.exit(f"flashboot-agent: {error}")
    logs.configure("INFO", part="agent", node=settings.node)
    asyncio.run(_run(settings))


def _identity(settings: Settings) -> NodeIdentity | None:
    if settings.tls == "off":
        return None
    store = CredentialStore(settings.node, settings.state)
    return NodeIdentity(store, ca_file=settings.ca_file, token_file=settings.token_file)


async def _run(settings: Settings) -> None:
    identity = _identity(settings)

    def serve(catalog: ArenaCatalog) -> Server:
        return TcpServer(catalog, settings.bind, settings.chunk_port, advertise=settings.pod_ip)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Agent(settings, [TcpTransport()], serve, identity).run(stop)


if __name__ == "__main__":
    main()
