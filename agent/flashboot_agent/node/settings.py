"""All settings of the agent, in one place; environment beats default. Each has its unit and its reason."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flashboot_agent.wire import door


@dataclass(frozen=True)
class Settings:
    """Built by `from_env`; tests build it by hand."""

    node: str
    """FLASHBOOT_NODE_NAME: the Kubernetes node's name; desired state of another node is refused."""

    pod_ip: str
    """FLASHBOOT_POD_IP: where peers and the operator reach this agent."""

    run: Path = Path(door.RUN)
    """FLASHBOOT_RUN: the node's folder, shared with the holder and the door."""

    bind: str = "0.0.0.0"  # the pod's network namespace is the boundary
    """FLASHBOOT_BIND: address to listen on. All, so that probes and port-forwards work too."""

    http_port: int = 9440
    """FLASHBOOT_HTTP_PORT."""

    chunk_port: int = 9441
    """FLASHBOOT_CHUNK_PORT."""

    tls: Literal["mutual", "off"] = "mutual"
    """FLASHBOOT_TLS. off: plain HTTP and plain streams, anybody may command this agent; for tests and benchmarks."""

    ca_file: Path = Path("/etc/flashboot/ca/ca.crt")
    """FLASHBOOT_CA_FILE: the CA certificates that count, PEM; read again when it changes."""

    token_file: Path = Path("/var/run/secrets/flashboot/token")
    """FLASHBOOT_TOKEN_FILE: the projected service account token; kubelet replaces it, so it is read at each use."""

    hello_seconds: float = 10.0
    """A plug-in that connects says hello within this, or is cut off."""

    coming_seconds: float = 0.5
    """Between two `coming` messages: often enough that a person sees life in the engine's log."""

    send_seconds: float = 30.0
    """A plug-in that does not take a message within this (a stopped process) is cut off."""

    layout_seconds: float = 30.0
    """Reading a layout document out of the plug-in's descriptor."""

    commit_seconds: float = 60.0
    """FLASHBOOT_COMMIT_SECONDS: from giving a seed its memory to its commit, beside the time for the bytes at 100
    MiB/s; then it is cut off and its half arena dropped, so that another pod may seed."""

    mismatch_seconds: float = 30.0
    """FLASHBOOT_MISMATCH_SECONDS: an engine of another identity than its arena's waits so long for the operator to name
    another one."""

    connect_seconds: float = 3.0
    """Connecting to a parent and reading the arena's metadata."""

    stall_seconds: float = 10.0
    """A clone that received no byte for this long tries the next parent (the parent may be without guilt)."""

    backoff_seconds: float = 0.25
    """First pause after every parent failed; doubles up to backoff_most_seconds. A new desired state ends it."""

    backoff_most_seconds: float = 5.0

    look_seconds: float = 0.25
    """A lane looks so often whether it is still wanted, and whether its parent still is the right one."""

    in_flight: int = 2
    """Requests on their way in each lane; more than two gain nothing once one covers a round trip."""

    overdue_floor_seconds: float = 1.0
    """FLASHBOOT_OVERDUE_FLOOR_MS, in milliseconds: a parent that has bytes gets at least so long to send a request of
    them. A lost packet alone costs 200 ms, a node without a free core as much: less accuses the innocent, and a repair
    for nothing costs the source. A parent that died is noticed at once all the same: its connection ends."""

    nice: int = 10
    """FLASHBOOT_NICE: of the threads that carry bytes, so that engines and health checks come first."""

    nixl: bool = False
    """FLASHBOOT_NIXL=1: clone and serve over NIXL where both ends can (transport/nixl.py says what that asks of the
    network)."""

    lane_threads: int = 128
    """Of all clones together. A clone that finds no room begins when another one has ended."""

    link_bytes_per_second: int | None = None
    """FLASHBOOT_LINK_MBIT, in 10^6 bits a second: how fast this node's link is, where its device does not say."""

    egress_bytes_per_second: int = 0
    """FLASHBOOT_EGRESS_MBIT, in 10^6 bits a second: most that this node sends to children, all arenas together; 0
    means no cap."""

    attempts_per_chunk: int = 3
    """How often one chunk is asked of one parent before that parent is accused of its digest."""

    images: Path = Path("/var/lib/flashboot/images")
    """FLASHBOOT_IMAGES: folder of arena images, on a disk of this node; of this agent alone."""

    images_budget_bytes: int = 0
    """FLASHBOOT_IMAGES_BUDGET_BYTES: most that the images take; 0: none are written and none are read."""

    images_bytes_per_second: int = 200_000_000
    """FLASHBOOT_IMAGES_BYTES_PER_SECOND: pace of writing an image, so that engines keep their disk; 0: no limit."""

    updates: Path | None = None
    """FLASHBOOT_UPDATES: folder for deltas that are fetched and the journals of updates; of this agent alone. It needs
    room for some two hundredths of the arenas that are updated. None: in the agent's own folder, which is in memory."""

    verify_seconds: float = 3600.0
    """FLASHBOOT_VERIFY_SECONDS: how often the bytes of an updatable arena are compared with its digests; an immutable
    one can't change. It costs a second of one core per 10 GB or so."""

    drain_seconds: float = 30.0
    """FLASHBOOT_DRAIN_SECONDS: an update of an arena waits so long for those who read it, while nobody new may; then it
    lets them in again, and tries once more later."""

    revoke_seconds: float = 1.0
    """How long a dropped arena waits for children to let go of it."""

    tick_seconds: float = 1.0
    """Period of the level-triggered round: listings, holder, time to live. Changes start one at once."""

    @property
    def holder_socket(self) -> str:
        return str(self.run / door.HOLDER_SOCKET)

    @property
    def state(self) -> Path:
        """The agent's own folder: the last desired state, so that a restarted agent keeps fencing."""
        return self.run / "agent"

    @property
    def updates_folder(self) -> Path:
        return self.updates or self.state / "updates"

    @property
    def pods(self) -> Path:
        return self.run / door.PODS

    @property
    def meta(self) -> Path:
        return self.run / door.META

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Settings:
        """Raises ValueError that names the variable which is missing or malformed."""
        missing = [name for name in ("FLASHBOOT_NODE_NAME", "FLASHBOOT_POD_IP") if not env.get(name)]
        if missing:
            raise ValueError(f"set {' and '.join(missing)} (the chart does, from the pod's own fields)")
        return cls(
            node=env["FLASHBOOT_NODE_NAME"],
            pod_ip=env["FLASHBOOT_POD_IP"],
            run=Path(env.get("FLASHBOOT_RUN", door.RUN)),
            bind=env.get("FLASHBOOT_BIND", cls.bind),
            http_port=_number(env, "FLASHBOOT_HTTP_PORT", cls.http_port),
            chunk_port=_number(env, "FLASHBOOT_CHUNK_PORT", cls.chunk_port),
            commit_seconds=_number(env, "FLASHBOOT_COMMIT_SECONDS", 60, least=1),
            overdue_floor_seconds=_number(env, "FLASHBOOT_OVERDUE_FLOOR_MS", 1000, least=1) / 1000,
            mismatch_seconds=_number(env, "FLASHBOOT_MISMATCH_SECONDS", 30, least=1),
            nice=_number(env, "FLASHBOOT_NICE", cls.nice, most=19),
            nixl=_number(env, "FLASHBOOT_NIXL", 0, most=1) == 1,
            link_bytes_per_second=_mbit(env, "FLASHBOOT_LINK_MBIT") or None,
            egress_bytes_per_second=_mbit(env, "FLASHBOOT_EGRESS_MBIT"),
            images=Path(env.get("FLASHBOOT_IMAGES", cls.images)),
            images_budget_bytes=_number(env, "FLASHBOOT_IMAGES_BUDGET_BYTES", 0, most=1 << 60),
            images_bytes_per_second=_number(
                env, "FLASHBOOT_IMAGES_BYTES_PER_SECOND", cls.images_bytes_per_second, most=1 << 60
            ),
            verify_seconds=_number(env, "FLASHBOOT_VERIFY_SECONDS", 3600, least=1),
            drain_seconds=_number(env, "FLASHBOOT_DRAIN_SECONDS", 30, least=1),
            updates=Path(env["FLASHBOOT_UPDATES"]) if env.get("FLASHBOOT_UPDATES") else None,
            tls=_tls(env),
            ca_file=Path(env.get("FLASHBOOT_CA_FILE", cls.ca_file)),
            token_file=Path(env.get("FLASHBOOT_TOKEN_FILE", cls.token_file)),
        )


def _number(env: Mapping[str, str], name: str, default: int, *, least: int = 0, most: int = 65535) -> int:
    text = env.get(name, str(default))
    if not text.isdigit() or not least <= int(text) <= most:
        raise ValueError(f"{name} is {text!r}; a whole number from {least} to {most} is needed")
    return int(text)


def _mbit(env: Mapping[str, str], name: str) -> int:
    """Bytes a second; 0 when it is not set."""
    return _number(env, name, 0, most=10_000_000) * 125_000


def _tls(env: Mapping[str, str]) -> Literal["mutual", "off"]:
    text = env.get("FLASHBOOT_TLS", "mutual")
    if text == "mutual":
        return "mutual"
    if text == "off":
        return "off"
    raise ValueError(f"FLASHBOOT_TLS is neither mutual nor off: {text!r}")
