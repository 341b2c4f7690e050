"""`flashboot-door`: serve (the default), or `healthcheck` for an exec probe.

On SIGTERM the calls in flight end, new ones are refused, and the process leaves without touching the sockets' paths.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

import grpc

from flashboot_agent.door.folders import PodFolders
from flashboot_agent.door.log import log
from flashboot_agent.door.proto import csi_pb2 as csi
from flashboot_agent.door.service import DoorService
from flashboot_agent.door.volume import Volumes
from flashboot_agent.wire.door import DRIVER_NAME, RUN

HEALTH_SECONDS: Final = 5.0
FINISH_SECONDS: Final = 4.0
"""Below the pod's grace period; a call takes milliseconds."""


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    csi_socket = options.kubelet / "plugins" / DRIVER_NAME / "csi.sock"
    if options.command == "healthcheck":
        sys.exit(_healthcheck(csi_socket))
    if not options.node:
        sys.exit("set FLASHBOOT_NODE_NAME (the chart does, from the pod's own fields)")
    term = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: term.set())
    try:
        folders = PodFolders(options.run, options.agent_uid)
        folders.prepare()
        service = DoorService(options.node, Volumes(options.kubelet, folders), csi_socket)
        servers = service.serve(options.kubelet / "plugins_registry" / f"{DRIVER_NAME}-reg.sock")
    except OSError as error:
        log("error", "could not start", error=str(error))
        sys.exit(1)
    log("info", "serving", socket=str(csi_socket), run=str(options.run), servers=len(servers))
    term.wait()
    finished = service.finish(FINISH_SECONDS)
    log("info" if finished else "warning", "leaving", allCallsEnded=finished)
    # Past Python's and gRPC's tidying up, which would unlink the sockets by path: they may be the next door's by now.
    os._exit(0)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="flashboot-door", description="CSI driver of the inline volume that gives a pod its socket to the agent."
    )
    parser.add_argument("command", nargs="?", choices=["serve", "healthcheck"], default="serve")
    env = os.environ
    parser.add_argument("--node", default=env.get("FLASHBOOT_NODE_NAME"), help="the Kubernetes node's name")
    parser.add_argument("--run", type=Path, default=env.get("FLASHBOOT_RUN", RUN), help="the node's folder")
    parser.add_argument(
        "--kubelet", type=Path, default=env.get("FLASHBOOT_KUBELET", "/var/lib/kubelet"), help="kubelet's root folder"
    )
    parser.add_argument(
        "--agent-uid", type=int, default=int(env.get("FLASHBOOT_AGENT_UID", "65532")), help="owner of pods' folders"
    )
    return parser.parse_args(argv)


def _healthcheck(csi_socket: Path) -> int:
    """Ask our own Probe over the socket that kubelet uses."""
    with grpc.insecure_channel(f"unix://{csi_socket}") as channel:
        probe = channel.unary_unary(
            "/csi.v1.Identity/Probe",
            request_serializer=csi.ProbeRequest.SerializeToString,
            response_deserializer=csi.ProbeResponse.FromString,
        )
        try:
            probe(csi.ProbeRequest(), timeout=HEALTH_SECONDS)
        except grpc.RpcError as error:
            print(f"the door does not answer at {csi_socket}: {error.details()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    main()
