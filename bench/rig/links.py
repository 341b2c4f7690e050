"""One network namespace per node on a bridge, each link held to a rate in both directions. Needs root.

What always holds: all names begin with `fbb`; whatever of these names is left from a run that was killed goes before a
new one is made, and at the end, however that comes. A lock keeps two runs apart.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from bench.kit.paired import RunFailed
from rack.errors import RackError
from rack.shell import run, script

BRIDGE = "fbb-bridge"
HOST_IP = "10.78.0.254"
GOODPUT = 0.957
"""Payload of TCP over what a link carries, with Ethernet frames of 1500 bytes."""
_LOCK = "/run/lock/flashboot-bench-links"
_BURST = 256 << 10
"""Bytes of a bucket, which is filled once per timer tick."""


class Network(Protocol):
    """Where the nodes of a rack are; they are numbered from 0."""

    @property
    def count(self) -> int: ...

    def ip(self, number: int) -> str: ...

    def prefix(self, number: int) -> list[str]:
        """Words that run a command on the node."""
        ...

    def env(self) -> dict[str, str]:
        """What a node's agent should know of its link."""
        ...


@dataclass(frozen=True)
class Loopback:
    """All on this machine's loopback device, an address each."""

    count: int

    def ip(self, number: int) -> str:
        return f"127.78.0.{number + 1}"

    def prefix(self, number: int) -> list[str]:
        return []

    def env(self) -> dict[str, str]:
        return {}


class Links:
    """Network namespaces. A context manager."""

    def __init__(self, count: int, mbit: float) -> None:
        self.count = count
        self.mbit = mbit

    def __enter__(self) -> Links:
        if os.geteuid():
            raise RunFailed("network namespaces need root")
        self._lock = os.open(_LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise RunFailed("another benchmark uses the network namespaces; wait for its end") from None
        try:
            remove_all()
            script(f"ip link add {BRIDGE} type bridge; ip addr add {HOST_IP}/24 dev {BRIDGE}; ip link set {BRIDGE} up")
            for number in range(self.count):
                self._wire(number)
        except RackError as error:
            self.close()
            raise RunFailed(f"no network namespaces: {error}") from error
        except BaseException:  # an interrupt, too, must leave nothing
            self.close()
            raise
        return self

    def _wire(self, number: int) -> None:
        name, outer = _namespace(number), _outer(number)
        script(
            f"""
            ip netns add {name}
            ip link add {outer} type veth peer name eth0 netns {name}
            ip link set {outer} master {BRIDGE} up
            ip -n {name} addr add {self.ip(number)}/24 dev eth0
            ip -n {name} link set eth0 up
            ip -n {name} link set lo up
            """
        )
        self.set_rate(number, self.mbit)

    def ip(self, number: int) -> str:
        return f"10.78.0.{number + 1}"

    def prefix(self, number: int) -> list[str]:
        return ["ip", "netns", "exec", _namespace(number)]

    def env(self) -> dict[str, str]:
        """As the device of a real link says; of a veth nobody knows."""
        return {"FLASHBOOT_LINK_MBIT": f"{self.mbit:.0f}"}

    def set_rate(self, number: int, mbit: float) -> None:
        """Both directions of the node's link."""
        limit = ["root", "tbf", "rate", f"{mbit:g}mbit", "burst", str(_BURST), "latency", "50ms"]
        run("tc", "-n", _namespace(number), "qdisc", "replace", "dev", "eth0", *limit)
        run("tc", "qdisc", "replace", "dev", _outer(number), *limit)

    def sent(self, number: int) -> int:
        """Bytes that left the node so far, headers and all, as the other end of its link counted them."""
        return int(Path(f"/sys/class/net/{_outer(number)}/statistics/rx_bytes").read_text())

    def close(self) -> None:
        remove_all()
        os.close(self._lock)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def remove_all() -> None:
    """Remove every namespace and device of ours; what is not there is fine. Their processes must have ended."""
    for found in json.loads(run("ip", "-j", "netns", "list") or "[]"):
        if found["name"].startswith("fbb-"):
            run("ip", "netns", "del", found["name"], check=False)
    for device in os.listdir("/sys/class/net"):
        if device.startswith("fbb-"):
            run("ip", "link", "del", device, check=False)  # a veth may vanish by itself with its namespace


def _namespace(number: int) -> str:
    return f"fbb-{number}"


def _outer(number: int) -> str:
    return f"fbb-v{number}"
