"""The last bytes of a delta: a SHA-256 of its front, and a signature, so that only whom the receiver trusts makes one.

    scheme (1 byte: 0 not signed, 1 Ed25519)   7 zeros   key id (16)   SHA-256 (32)   signature (64)   "FBDELTAE"

The SHA-256 goes over all that is before the bodies, which has digests of these (spans.py), and over scheme, zeros and
key id; the signature over a fixed text and the SHA-256. Ed25519 and not a shared key: receivers are many, and none of
them shall be able to make a delta.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flashboot_agent.core.errors import BadRequest, DeltaDamaged, DeltaUntrusted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

TRAILER: Final = struct.Struct("<B7s16s32s64s8s")
END: Final = b"FBDELTAE"
DOMAIN: Final = b"flashboot delta v2\0"
"""Before what is signed, so that a signature means this and nothing else."""
UNSIGNED: Final = 0
ED25519: Final = 1
_HEAD: Final = 24


def make(so_far: hashlib._Hash, key: Ed25519PrivateKey | None, domain: bytes = DOMAIN) -> bytes:
    """`so_far`: SHA-256 of what it vouches for."""
    head = struct.pack("<B7s16s", ED25519 if key else UNSIGNED, b"", key_id(key.public_key()) if key else b"")
    so_far.update(head)
    digest = so_far.digest()
    return head + digest + (key.sign(domain + digest) if key else bytes(64)) + END


def check(
    trailer: bytes,
    so_far: hashlib._Hash,
    trusted: Sequence[Ed25519PublicKey] | None,
    path: Path | str,
    domain: bytes = DOMAIN,
) -> str:
    """What is known of the signer, for people. `trusted`: keys of which one must have signed; None takes deltas that
    are not signed, and only those.

    Raises DeltaDamaged, DeltaUntrusted."""
    if len(trailer) != TRAILER.size:
        raise DeltaDamaged(f"{path} ends inside its trailer")
    scheme, zeros, signer, digest, signature, end = TRAILER.unpack(trailer)
    so_far.update(trailer[:_HEAD])
    if end != END or any(zeros) or digest != so_far.digest():
        raise DeltaDamaged(f"{path} differs from the digest in its trailer: fetch it again")
    if scheme == UNSIGNED:
        if any(signer) or any(signature):
            raise DeltaDamaged(f"{path}: a trailer without a signature has one")
        if trusted is not None:
            raise DeltaUntrusted(f"{path} is not signed; only deltas signed by a trusted key are taken here")
        return "not signed"
    if scheme != ED25519:
        raise DeltaDamaged(f"{path} is signed in an unknown way ({scheme})")
    if trusted is None:
        raise DeltaUntrusted(f"{path} is signed by key {signer.hex()}; give its public key to check that")
    return _signed_by(trusted, signer, domain + digest, signature, path)


def _signed_by(
    trusted: Sequence[Ed25519PublicKey], signer: bytes, signed: bytes, signature: bytes, path: Path | str
) -> str:
    from cryptography.exceptions import InvalidSignature

    for key in trusted:
        if key_id(key) == signer:
            try:
                key.verify(signature, signed)
            except InvalidSignature:
                raise DeltaUntrusted(f"{path}: the signature is not one of key {signer.hex()}") from None
            return f"signed by key {signer.hex()}"
    raise DeltaUntrusted(f"{path} is signed by key {signer.hex()}, which is not trusted here")


def key_id(key: Ed25519PublicKey) -> bytes:
    """16 bytes that name a key; the signature is what proves it."""
    return hashlib.sha256(key.public_bytes_raw()).digest()[:16]


def read_private(path: Path) -> Ed25519PrivateKey:
    """A PEM file (`openssl genpkey -algorithm ed25519`). Raises BadRequest."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:  # TypeError: it has a password
        raise BadRequest(f"{path} can't be read as a private key: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadRequest(f"{path} is no Ed25519 key: make one by openssl genpkey -algorithm ed25519")
    return key


def read_public(path: Path) -> Ed25519PublicKey:
    """A PEM file (`openssl pkey -pubout`). Raises BadRequest."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path} can't be read as a public key: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadRequest(f"{path} is no Ed25519 key")
    return key
