"""`flashboot-agent`: settings from the environment, the transports, until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys

from flashboot_agent import logs
from flashboot_agent.node.agent import Agent
from flashboot_agent.node.identity import NodeIdentity
from flashboot_agent.node.settings import Settings
from flashboot_agent.transport.base import ArenaCatalog, Server, Transport
from flashboot_agent.transport.conversation import ServerSettings
from flashboot_agent.transport.map import MapTransport
from flashboot_agent.transport.nixl import NixlTransport
from flashboot_agent.transport.tcp import PullSettings, TcpTransport
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
    credentials = identity.credentials if identity is not None else None

    def serve(catalog: ArenaCatalog) -> Server:
        return TcpServer(
            catalog,
            settings.bind,
            settings.chunk_port,
            advertise=settings.pod_ip,
            settings=ServerSettings(nice=settings.nice, nixl=settings.nixl),
            credentials=credentials,
        )

    def reach(catalog: ArenaCatalog) -> list[Transport]:
        pull = PullSettings(
            in_flight=settings.in_flight, overdue_floor=settings.overdue_floor_seconds, nice=settings.nice
        )
        tcp = TcpTransport(pull, credentials)
        nixl = [NixlTransport(tcp, pull)] if settings.nixl else []
        return [MapTransport(settings.node, catalog, nice=settings.nice), *nixl, tcp]

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Agent(settings, reach, serve, identity).run(stop)


if __name__ == "__main__":
    main()
