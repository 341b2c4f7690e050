"""TLS contexts of Python's ssl module from certificates in memory: TLS 1.3, no session tickets.

No tickets, because a resumed session is not verified again: a CA that no longer counts would live on in it.
"""

from __future__ import annotations

import os
import ssl


def server_context(certificate: bytes, key: bytes, ca: bytes) -> ssl.SSLContext:
    """Clients may show a certificate; one that `ca` (PEM, may be empty) has not signed ends the handshake."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key)
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_OPTIONAL
    if ca:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    return context


def client_context(certificate: bytes, key: bytes, ca: bytes | None) -> ssl.SSLContext:
    """Verifies CA and host name; with `ca` None it verifies nothing."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key)
    if ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    return context


def _context(protocol: int, certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The module reads keys from files only; this one is in no file system and gone with its descriptor.
    fd = os.memfd_create("flashboot-key", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(key + certificate)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context
