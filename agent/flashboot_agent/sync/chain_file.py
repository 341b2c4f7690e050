"""The chain as a file, `chain`: a line of JSON, and a line with the trailer of delta files in hexadecimal digits.

    head -n 1 chain | jq

Signed as the deltas are, under another text, so that neither passes for the other. It is what readers believe: a delta
that it does not name does not exist, and no download is longer than it says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from flashboot_agent.core.errors import DeltaDamaged
from flashboot_agent.delta import trailer
from flashboot_agent.delta.document import wrong
from flashboot_agent.sync.chain import Chain

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

NAME: Final = "chain"
MAX_BYTES: Final = 32 << 20
"""MAX_STEPS steps fit."""
_DOMAIN: Final = b"flashboot chain v1\0"


def to_bytes(chain: Chain, key: Ed25519PrivateKey | None) -> bytes:
    text = chain.to_json() + b"\n"
    return text + trailer.make(hashlib.sha256(text), key, _DOMAIN).hex().encode() + b"\n"


def from_bytes(data: bytes, trusted: Sequence[Ed25519PublicKey] | None, name: str) -> Chain:
    """`trusted`: see trailer.check. Raises DeltaDamaged, DeltaUntrusted; both say `name`."""
    text, newline, line = data.partition(b"\n")
    try:
        end = bytes.fromhex(line.decode("ascii"))
    except ValueError:
        end = b""
    if line != end.hex().encode() + b"\n" or len(end) != trailer.TRAILER.size:
        raise DeltaDamaged(f"{name} does not end as a chain document: it is another file, or cut off")
    trailer.check(end, hashlib.sha256(text + newline), trusted, name, _DOMAIN)
    try:
        return Chain.model_validate_json(text)
    except ValidationError as error:
        raise DeltaDamaged(f"{name}: {wrong(error)}") from error
