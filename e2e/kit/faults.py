"""Faults of the rack, each undone when its block ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kit.agents import SYSTEM, agents
from kit.apiserver import ApiServer
from kit.errors import CommandFailed
from kit.eventually import NotYet, eventually
from kit.flipper import BitFlipper, Fault
from kit.kubectl import run
from kit.world import AWAY_LABEL, World
from rack import network
from rack.node import pid_of
from rack.settings import DEFAULT_LINK_MBIT, HOST_IP

CHUNK_PORT = 9441
TABLE = "flashboot_e2e"


@contextmanager
def away(world: World, part: str, node: str) -> Iterator[None]:
    """No agent (or door) on a node, as if it crashed and could not come back; inside the block it is really gone."""
    kubectl = world.kubectl
    kubectl("label", "node", node, f"{AWAY_LABEL}={part}", "--overwrite")
    try:
        eventually(lambda: _gone(world.api, part, node), f"the {part} to leave {node}", 60)
        yield
    finally:
        kubectl("label", "node", node, f"{AWAY_LABEL}-")


def _gone(api: ApiServer, part: str, node: str) -> None:
    selector = f"app.kubernetes.io/name=flashboot-{part}"
    left = api.items("pods", SYSTEM, labels=selector, fields=f"spec.nodeName={node}")
    if left:
        raise NotYet(f"{left[0]['metadata']['name']} is still there")


@contextmanager
def slow_link(node: str, mbit: float) -> Iterator[None]:
    """A node behind a slow link."""
    network.set_rate(node, pid_of(node), mbit)
    try:
        yield
    finally:
        network.set_rate(node, pid_of(node), DEFAULT_LINK_MBIT)


@contextmanager
def bit_flipper(world: World, child: str, offset: int) -> Iterator[Fault]:
    """The way from any parent to the agent of `child` leads through a relay, which flips one bit of byte `offset` of
    a stream, once. One relay per possible parent, because the address that was meant is lost in the translation."""
    enter = ["nsenter", "-t", str(pid_of(child)), "-n"]
    rules = []
    fault = Fault(offset)
    with ExitStack() as stack:
        for node, address in _agent_addresses(world).items():
            if node == child:
                continue
            relay = BitFlipper(f"{address}:{CHUNK_PORT}", f"{HOST_IP}:0", fault)
            stack.callback(relay.close)
            rules.append(f"ip daddr {address} tcp dport {CHUNK_PORT} dnat ip to {relay.address}")
        lines = ["type nat hook prerouting priority -100", *rules]
        table = "\n".join([f"table ip {TABLE} {{", "chain c {", *lines, "}", "}", ""])
        run([*enter, "nft", "-f", "-"], stdin=table)
        stack.callback(_drop_table, enter)
        yield fault


def _drop_table(enter: list[str]) -> None:
    try:
        run([*enter, "nft", "delete", "table", "ip", TABLE])
    except CommandFailed as failed:
        if "No such file" not in failed.stderr:
            raise


def _agent_addresses(world: World) -> dict[str, str]:
    """Node → its agent's pod address."""
    found = {}
    for node, agent in agents(world.api).items():
        pod = world.api.get("pods", agent.pod, SYSTEM)
        found[node] = pod["status"]["podIP"]
    return found
