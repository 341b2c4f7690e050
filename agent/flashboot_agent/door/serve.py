"""The door's life: make the folders, listen, and on SIGTERM end the calls in flight and leave.

It leaves without touching the sockets' paths: after a rolling update those are the next door's.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from flashboot_agent import logs
from flashboot_agent.door import health
from flashboot_agent.door.folders import PodFolders
from flashboot_agent.door.service import DoorService
from flashboot_agent.door.volume import Volumes
from flashboot_agent.logs import Log
from flashboot_agent.wire.door import DRIVER_NAME

log = Log(__name__)

FINISH_SECONDS: Final = 4.0
"""Below the pod's grace period; a call takes milliseconds."""


def serve(node: str, kubelet: Path, run: Path, agent_uid: int) -> None:
    """Returns never: the process ends on SIGTERM or SIGINT, or at once when it can't start.

    Args:
        kubelet: kubelet's root folder, whose mounts propagate both ways.
        run: the node's folder, shared with the agent.
        agent_uid: who gets the pods' folders.
    """
    logs.configure("INFO", part="door", node=node)
    term = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: term.set())
    csi_socket = kubelet / "plugins" / DRIVER_NAME / "csi.sock"
    try:
        folders = PodFolders(run, agent_uid)
        folders.prepare()
        service = DoorService(node, Volumes(kubelet, folders), csi_socket)
        service.serve(kubelet / "plugins_registry" / f"{DRIVER_NAME}-reg.sock")
        health.HealthSocket(csi_socket.with_name(health.SOCKET), service.ask_itself)
    except OSError as error:
        log.error("could not start", error=str(error))
        sys.exit(1)
    log.info("serving", socket=str(csi_socket), run=str(run))
    term.wait()
    finished = service.finish(FINISH_SECONDS)
    (log.info if finished else log.warning)("leaving", allCallsEnded=finished)
    # Past Python's and gRPC's tidying up, which would unlink the sockets by path.
    os._exit(0)
