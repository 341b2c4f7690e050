"""Host names of a group's pods on the rack, which has no cluster DNS: the part of one that headless Services need.

A query for `POD.SERVICE.NAMESPACE.svc` is answered with the pod's address in the Service's EndpointSlices, as CoreDNS
does; any other name does not exist. Pods ask it when their spec has `pod_dns()`.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kit.apiserver import ApiServer
from kit.errors import KitError

HOST = "10.77.0.1"
"""The host's end of the rack's bridge."""
PORT = 53
TYPE_A = 1
NAME_ERROR = 3

Lookup = Callable[[str, str, str], str | None]


def pod_dns() -> dict[str, Any]:
    """Of a pod's spec."""
    return {"dnsPolicy": "None", "dnsConfig": {"nameservers": [HOST]}}


@contextmanager
def served(api: ApiServer) -> Iterator[None]:
    """Names are answered inside the block."""

    def address(pod: str, service: str, namespace: str) -> str | None:
        slices = api.items("endpointslices", namespace, labels=f"kubernetes.io/service-name={service}")
        for endpoint in (each for one in slices for each in one.get("endpoints") or ()):
            if endpoint.get("hostname") == pod:
                return str(endpoint["addresses"][0])
        return None

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((HOST, PORT))
        thread = threading.Thread(target=_serve, args=(server, address), name="names", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.sendto(b"", (HOST, PORT))  # the empty question ends it
            thread.join(10)


def _serve(server: socket.socket, lookup: Lookup) -> None:
    while True:
        try:
            query, asker = server.recvfrom(4096)
        except OSError:
            return
        if not query:
            return
        try:
            server.sendto(answer(query, lookup), asker)
        except (KitError, OSError, ValueError, struct.error, IndexError):
            continue  # the API server is away, or it was no query: who asks will ask again


def answer(query: bytes, lookup: Lookup) -> bytes:
    """The answer to one query. Raises ValueError, struct.error or IndexError for what is none."""
    number, flags, questions = struct.unpack_from("!HHH", query)
    if questions != 1 or flags & 0x8000:
        raise ValueError("not one question")
    name, end = _name(query, 12)
    kind, _ = struct.unpack_from("!HH", query, end)
    found = re.fullmatch(r"([a-z0-9-]+)\.([a-z0-9-]+)\.([a-z0-9-]+)\.svc(\.cluster\.local)?", name.lower())
    address = lookup(*found.group(1, 2, 3)) if found else None
    records = b""
    if address is not None and kind == TYPE_A:
        records = struct.pack("!HHHIH", 0xC00C, TYPE_A, 1, 1, 4) + socket.inet_aton(address)
    code = 0 if address is not None else NAME_ERROR
    head = struct.pack("!HHHHHH", number, 0x8580 | code, 1, 1 if records else 0, 0, 0)
    return head + query[12 : end + 4] + records


def _name(query: bytes, at: int) -> tuple[str, int]:
    """The name that begins there, and where it ends."""
    labels = []
    while length := query[at]:
        if length > 63:
            raise ValueError("a pointer in a question")
        labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1
