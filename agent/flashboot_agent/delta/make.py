"""Making a delta: both versions are read window by window, so that memory is bounded whatever their size."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from flashboot_agent import _native
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.digest import root_digest
from flashboot_agent.core.errors import BadRequest, DeltaBaseMismatch
from flashboot_agent.delta import words
from flashboot_agent.delta.disk import room_in
from flashboot_agent.delta.document import Contents, Metadata, wrong
from flashboot_agent.delta.file import DeltaWriter, bodies_of
from flashboot_agent.delta.source import Source

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

WINDOW_CHUNKS: Final = 16
"""Per window at most; a thread's chunk and its base stay in the caches."""
CLASSES: Final = 16


@dataclass(frozen=True)
class Versions:
    base: int
    new: int


def make(
    base: Source,
    new: Source,
    path: Path,
    versions: Versions,
    *,
    classes: int = CLASSES,
    threads: int = 1,
    key: Ed25519PrivateKey | None = None,
    note: str = "",
    progress: Callable[[int], None] = lambda done: None,
) -> Contents:
    """Write what makes `new` of `base`. `classes` 1 is quicker for receivers, 16 smaller (docs/design/0022).

    Raises DeltaBaseMismatch when the two are not versions of the same thing, BadRequest, DiskFull, OSError, what
    sources raise."""
    told = _metadata(base, versions, note, path)
    if (base.subject, base.nbytes, base.content) != (new.subject, new.nbytes, new.content):
        raise DeltaBaseMismatch(f"{base} and {new} are not two versions of the same {base.subject}: {base.unlike(new)}")
    if not base.nbytes:
        raise BadRequest(f"{base} has no bytes: nothing of it could have versions")
    runs = words.table(base.runs)
    out = memoryview(bytearray(min(WINDOW_CHUNKS * DIGEST_CHUNK_BYTES, base.nbytes + DIGEST_CHUNK_BYTES)))
    what = f"{path} ({told.versions()})"
    with room_in(path.parent, what), DeltaWriter(path, base.nbytes, base.runs) as writer:
        for offset in range(0, base.nbytes, WINDOW_CHUNKS * DIGEST_CHUNK_BYTES):
            size = min(WINDOW_CHUNKS * DIGEST_CHUNK_BYTES, base.nbytes - offset)
            after = new.view(offset, size)
            rows = _native.delta_encode(base.view(offset, size), after, offset, runs, classes, out, threads=threads)
            table = memoryview(rows).cast("Q")
            for source, column in ((base, 2), (new, 3)):
                source.require(offset, array("Q", table.tolist()[column::5]).tobytes())
            writer.add(table, bodies_of(table, out, after, DIGEST_CHUNK_BYTES))
            progress(offset + size)
        digests = {
            "base_digest": root_digest(writer.table.base),
            "result_digest": root_digest(writer.table.result),
            "changed": writer.changed,
        }
        return writer.finish(told.model_copy(update=digests), key)


def _metadata(base: Source, versions: Versions, note: str, path: Path) -> Metadata:
    """Without what only encoding tells. Raises BadRequest."""
    if versions.base == versions.new:
        raise BadRequest(f"{path}: a delta from version {versions.base} to itself; name the new version another way")
    try:
        return Metadata(
            subject=base.subject,
            content=base.content,
            base_version=versions.base,
            new_version=versions.new,
            base_digest=root_digest(b""),
            result_digest=root_digest(b""),
            changed=0,
            note=note,
        )
    except ValidationError as error:
        raise BadRequest(f"{path}: {wrong(error)}") from None
