"""The pod: the door's mount, the agent behind its socket, and the memory that the node gives."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path
from typing import Final

from flashboot_agent.core.errors import TornFrame
from flashboot_agent.engine.channel import Channel
from flashboot_agent.engine.doctor.findings import Check, Odd
from flashboot_agent.engine.messages import Agent
from flashboot_agent.memory.probe import choose, probe
from flashboot_agent.version import own_version
from flashboot_agent.wire.attach import MOUNT_PATH, PROTOCOL, Ask
from flashboot_agent.wire.door import DRIVER_NAME

ANSWER_SECONDS: Final = 5.0

_VOLUME: Final = (
    f"give the pod the CSI volume of {DRIVER_NAME}, read-only, at {MOUNT_PATH}; "
    "a ModelReplica's template gets it by itself"
)
_AGENT: Final = (
    "look at this node's agent: kubectl -n flashboot-system get pods -o wide -l app.kubernetes.io/name=flashboot-agent"
)
_BOTH: Final = "install the same FlashBoot in the engine's image and on the nodes"


def checks(path: str) -> list[Check]:
    """For a pod whose socket is at `path`."""
    return [
        Check("mount", partial(mount, path), _VOLUME),
        Check("socket", partial(socket, path), _AGENT),
        Check("agent", partial(agent, path), _AGENT),
        Check("memory", memory, ""),
    ]


def mount(path: str, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise Odd("wrong", f"{folder} is not there")
    for line in mounts.read_text().splitlines():
        fields = line.split(" ")
        if fields[4] == folder:
            if "ro" not in fields[5].split(","):
                raise Odd("note", f"{folder} is mounted writable", "set readOnly in the volume and in its mount")
            return f"{folder}, read-only"
    raise Odd("note" if folder != MOUNT_PATH else "wrong", f"{folder} is a folder of this container, no mount")


def socket(path: str) -> str:
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise Odd("wrong", f"{path} is no socket")
    return path


def agent(path: str) -> str:
    """Ask who is there. That is no hello: the agent's idea of this pod stays as it is."""
    channel = Channel(path, ANSWER_SECONDS)
    try:
        channel.send(Ask().to_json())
        message, _ = channel.receive(ANSWER_SECONDS)
    except TornFrame as error:
        raise Odd("wrong", f"it speaks another protocol: {error}", _BOTH) from error
    finally:
        channel.close()
    if not isinstance(message, Agent):
        raise Odd("wrong", f"protocol {PROTOCOL} is not spoken: {message}", _BOTH)
    if message.version != own_version():
        raise Odd("note", f"version {message.version}, here {own_version()}", "the protocol is the same: that works")
    return f"node {message.node}, version {message.version}, protocol {PROTOCOL}"


def memory() -> str:
    chosen = choose(probe(), 1)
    if chosen.pages == "small":
        raise Odd(
            "note",
            chosen.why,
            "on the node, reserve huge pages or set shmem_enabled to advise: the first touch of weights gets faster",
        )
    return chosen.why
