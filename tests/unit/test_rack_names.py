"""The rack's names of pods: what a resolver gets."""

from __future__ import annotations

import struct

import pytest

from kit.names import answer


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def lookup(pod: str, service: str, namespace: str) -> str | None:
    return "10.244.1.9" if (pod, service, namespace) == ("m-0-0", "m-0", "ns") else None


@pytest.mark.parametrize(
    ("name", "kind", "code", "records"),
    [
        ("m-0-0.m-0.ns.svc", 1, 0, 1),
        ("M-0-0.m-0.ns.svc.cluster.local", 1, 0, 1),
        ("m-0-0.m-0.ns.svc", 28, 0, 0),
        ("m-0-1.m-0.ns.svc", 1, 3, 0),
        ("example.org", 1, 3, 0),
    ],
)
def test_names_of_a_services_pods_have_addresses(name: str, kind: int, code: int, records: int) -> None:
    said = answer(query(name, kind), lookup)
    number, flags, questions, answers, *_ = struct.unpack_from("!HHHHHH", said)
    assert (number, flags & 0xF, questions, answers) == (7, code, 1, records)
    assert said.endswith(b"\x0a\xf4\x01\x09") == bool(records)


def test_what_is_no_query_is_refused() -> None:
    for bad in (b"", b"\0" * 12, query("a")[:14]):
        with pytest.raises((ValueError, struct.error, IndexError)):
            answer(bad, lookup)
