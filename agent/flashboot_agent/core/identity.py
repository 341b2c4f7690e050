"""Identities: what must be equal before one rank's bytes may become another's.

The *expected* identity is what the operator can know before an engine runs; the *full* identity is what the engine
plug-in computes. Both are hashes over sorted field → value pairs, so that the same facts give the same digest in any
process, and a difference can be told field by field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from flashboot_agent.core.errors import IdentityMismatch
from flashboot_agent.wire.place import Place


def digest_of(fields: Mapping[str, object]) -> str:
    """`sha256:…` over the canonical JSON (sorted keys, no spaces, UTF-8) of the fields."""
    canonical = json.dumps(dict(fields), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def document_digest(document: bytes) -> str:
    """`sha256:` and hex, of a document that is carried whole, such as a layout."""
    return "sha256:" + hashlib.sha256(document).hexdigest()


def arena_id(model_replica_uid: str, expected_identity: str, place: Place, version: int = 0) -> str:
    """The name of an arena, equal on all nodes: one per ModelReplica object, expected identity, rank and version.

    The UID is in it, so that an object that was deleted and made again never meets its predecessor's bytes, and so that
    sharing stays inside the object.
    """
    text = f"{model_replica_uid}|{expected_identity}|{place}|{version}"
    return "arena-" + hashlib.sha256(text.encode()).hexdigest()[:32]


def require_equal(mine: Mapping[str, str], theirs: Mapping[str, str], *, whose: str) -> None:
    """Do nothing when both identities are equal.

    Raises:
        IdentityMismatch: names the first differing fields with both values. A field that one of them has not is at
            SGLang's default there, or its variable is not set.
    """
    differing = [key for key in sorted(mine.keys() | theirs.keys()) if mine.get(key) != theirs.get(key)]
    if not differing:
        return
    shown = "; ".join(
        f"{key}: {_said('engine', mine.get(key))}, {_said(whose, theirs.get(key))}" for key in differing[:5]
    )
    more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
    raise IdentityMismatch(f"identity differs in {shown}{more}")


def _said(whose: str, value: str | None) -> str:
    return f"{whose} has none" if value is None else f"{whose} {value!r}"
