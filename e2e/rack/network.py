"""The rack's network: a bridge on the host, a rate-limited veth pair per node, routes; no packet leaves the machine.

A node's network namespace belongs to the node's processes alone (no name in /run/netns), so the kernel removes it and
its veth pair when the node dies, and every boot wires a fresh one.
"""

import json
import os

from rack.settings import (
    BRIDGE,
    HOST_IP,
    NFT_TABLE,
    NODE_RANGE,
    POD_RANGE,
    SERVICE_RANGE,
    VETH_PREFIX,
    node_ip,
    node_number,
    pod_range,
)
from rack.shell import run, script

_HZ_MIN = 100  # tbf releases its bucket once per timer tick at worst, so a bucket must hold a tick's worth


def create_bridge() -> None:
    """The host's side: first the rules that keep the rack's packets on this machine, then the bridge."""
    run(
        "nft",
        "-f",
        "-",
        stdin=f"table inet {NFT_TABLE} {{\n  chain forward {{\n    type filter hook forward priority 0;\n"
        f'    iifname "{BRIDGE}" oifname != "{BRIDGE}" drop\n  }}\n}}\n',
    )
    script(
        f"""
        ip route replace blackhole {SERVICE_RANGE}
        ip route replace blackhole {POD_RANGE}
        ip link add {BRIDGE} type bridge
        ip addr add {HOST_IP}/24 dev {BRIDGE}
        ip link set {BRIDGE} up
        """
    )


def wire(node: str, pid: int, all_nodes: list[str], link_mbit: float) -> None:
    """Connect the network namespace of process `pid` as this node, with a link of the given rate."""
    number = node_number(node)
    veth = VETH_PREFIX + str(number)
    inside = f"nsenter -t {pid} -n"
    others = [node_number(n) for n in all_nodes if n != node]
    routes = "\n".join(f"route replace {pod_range(o)} via {node_ip(o)}" for o in others)
    script(
        f"""
        ip link add {veth} type veth peer name eth0 netns {pid}
        ip link set {veth} master {BRIDGE} up
        ip route replace {pod_range(number)} via {node_ip(number)}
        {inside} ip -batch - <<'EOF'
addr add {node_ip(number)}/24 dev eth0
link set eth0 up
link set lo up
route add default via {HOST_IP}
{routes}
EOF
        {inside} sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
        """
    )
    set_rate(node, pid, link_mbit)


def set_rate(node: str, pid: int, link_mbit: float) -> None:
    """Both directions of the node's link carry at most this many Mbit/s; 0 lifts the limit."""
    veth = VETH_PREFIX + str(node_number(node))
    ends: list[tuple[list[str], str]] = [([], veth), (["nsenter", "-t", str(pid), "-n"], "eth0")]
    for prefix, device in ends:
        run(*prefix, "tc", "qdisc", "del", "dev", device, "root", check=False)
        if link_mbit:
            burst = max(256 * 1024, int(link_mbit * 1e6 / 8 / _HZ_MIN))
            limit = ["rate", f"{link_mbit}mbit", "burst", str(burst), "latency", "20ms"]
            run(*prefix, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limit)


def set_link(node: str, *, up: bool) -> None:
    """Pull or plug the node's cable."""
    run("ip", "link", "set", VETH_PREFIX + str(node_number(node)), "up" if up else "down")


def remove_all() -> None:
    """Remove links, routes and rules of a rack; what is not there is fine."""
    for device in _devices():
        run("ip", "link", "del", device, check=False)  # a veth may vanish by itself with its namespace
    for net in (SERVICE_RANGE, POD_RANGE):
        run("ip", "route", "del", "blackhole", net, check=False)
    run("nft", "delete", "table", "inet", NFT_TABLE, check=False)


def left() -> list[str]:
    """What is there of a rack's network, for leak checks."""
    found = [f"link {d}" for d in _devices()]
    for route in json.loads(run("ip", "-j", "route", "show") or "[]"):
        if route.get("dst") in (SERVICE_RANGE, POD_RANGE, NODE_RANGE) or route.get("dev") == BRIDGE:
            found.append(f"route {route.get('dst')}")
    if f"inet {NFT_TABLE}\n" in run("nft", "list", "tables"):
        found.append(f"nft table {NFT_TABLE}")
    return found


def _devices() -> list[str]:
    return sorted(d for d in os.listdir("/sys/class/net") if d == BRIDGE or d.startswith(VETH_PREFIX))
