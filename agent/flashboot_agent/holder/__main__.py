"""`flashboot-holder`: serve (the default), or `healthcheck` for an exec probe."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys

from flashboot_agent import logs
from flashboot_agent.holder import budget, protocol
from flashboot_agent.holder.server import HolderServer
from flashboot_agent.holder.shelf import Shelf

log = logs.Log("flashboot_agent.holder")  # as a program, this module is called __main__

HEALTH_TIMEOUT = 5.0


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    path = os.path.join(options.run, protocol.SOCKET)
    if options.command == "healthcheck":
        sys.exit(_healthcheck(path))
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    budget_bytes = options.budget_bytes or budget.default_budget()
    server = HolderServer(path, Shelf(budget_bytes, budget.available))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    logs.configure("INFO", part="holder")
    log.info("serving", socket=path, budgetBytes=budget_bytes, instance=server.instance)
    server.serve()
    log.info("ended", arenas=len(server.shelf.slots))


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="flashboot-holder", description="Keeps the memory of the node's arenas.")
    parser.add_argument("command", nargs="?", choices=["serve", "healthcheck"], default="serve")
    parser.add_argument("--run", default=os.environ.get("FLASHBOOT_RUN", protocol.RUN), help="the node's folder")
    parser.add_argument(
        "--budget-bytes",
        type=int,
        default=int(os.environ.get("FLASHBOOT_BUDGET_BYTES", "0")),
        help="most bytes of all arenas; 0 means what the memory cgroup leaves, or 3/4 of the machine",
    )
    return parser.parse_args(argv)


def _healthcheck(path: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(HEALTH_TIMEOUT)
        try:
            client.connect(path)
            client.send(b'{"op": "stats"}')
            answer = client.recv(protocol.MAX_PACKET)
        except OSError as error:
            print(f"the holder does not answer at {path}: {error}", file=sys.stderr)
            return 1
    print(answer.decode())
    return 0


if __name__ == "__main__":
    main()
