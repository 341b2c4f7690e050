"""`ip:port` and `[ip6]:port`, as peers write them to each other."""

from __future__ import annotations


def split(address: str) -> tuple[str, int]:
    """Host and port. Raises ValueError that names the address."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no ip:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
