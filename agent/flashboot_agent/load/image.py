"""Arena images: a sealed arena as a file, so that one bulk read fills an arena again.

    0        header: magic, version, sizes, digest of the documents, checksum of the header itself
    4 KiB    the documents: manifest (JSON), layout, table of chunk digests
    64 KiB…  the arena's bytes, from a multiple of 64 KiB on (the largest page of any machine) to the end of the file

Holds always: the header is written last and the name given after that, so that a file whose writer was killed is never
believed; every byte that is read from an image is compared with a digest before anybody may use it; what is wrong with
an image is an ImageDamaged that names file and offset.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict, ValidationError

from flashboot_agent.core.checkpoint import open_file
from flashboot_agent.core.chunks import chunk_count
from flashboot_agent.core.digest import root_digest
from flashboot_agent.core.errors import FlashBootError, ImageDamaged
from flashboot_agent.core.identity import document_digest
from flashboot_agent.memory.memfd import round_up
from flashboot_agent.wire.arena import ArenaOwner
from flashboot_agent.wire.base import Digest, Time
from flashboot_agent.wire.layout import MAX_LAYOUT

MAGIC: Final = b"FBIMAGE1"
DOCUMENTS: Final = 4096
ALIGNMENT: Final = 65536
HEAD: Final = struct.Struct("<8sQQQQQ32s")
"""Magic, bytes of manifest, layout and digests, offset of the data, bytes of the data, SHA-256 of the documents."""
CHECK_BYTES: Final = 16
MAX_MANIFEST: Final = 1 << 20


class Manifest(ArenaOwner):
    """What the arena is. Fields of a later version are ignored."""

    model_config = ConfigDict(extra="ignore")

    schema_version: Literal[1] = 1
    identity: Digest
    digest: Digest
    """Root over the table of chunk digests."""
    layout_digest: Digest
    bytes: int
    version: int = 0
    """Of the weights."""
    written_at: Time


@dataclass(frozen=True)
class Image:
    """The documents of an image, checked, and its open file."""

    path: Path
    fd: int
    manifest: Manifest
    layout: bytes
    digests: bytes
    data_offset: int


def head(manifest: Manifest, layout: bytes, digests: bytes) -> tuple[bytes, bytes]:
    """The header and the documents of an image."""
    text = manifest.to_json()
    documents = text + layout + digests
    start = data_offset(len(documents))
    fields = HEAD.pack(
        MAGIC, len(text), len(layout), len(digests), start, manifest.bytes, hashlib.sha256(documents).digest()
    )
    return fields + _check(fields), documents


def data_offset(documents: int) -> int:
    """Where the arena's bytes begin behind so many bytes of documents."""
    return round_up(DOCUMENTS + documents, ALIGNMENT)


def image_size(manifest: Manifest, layout: bytes, digests: bytes) -> int:
    """Bytes of the whole file."""
    return data_offset(len(manifest.to_json()) + len(layout) + len(digests)) + manifest.bytes


NOT_THE_IMAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of this process or node."""


@contextmanager
def open_image(path: Path) -> Iterator[Image]:
    """Open an image and check its header and documents; the file is closed at the end.

    Raises ImageDamaged, with what is wrong and where; FileNotFoundError when there is none; OSError (one of
    NOT_THE_IMAGE) when this process may open no more files, which says nothing about the image."""
    try:
        file = open_file(path)
    except FlashBootError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in NOT_THE_IMAGE:
            raise error.__cause__ from None
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
        raise ImageDamaged(str(error)) from error
    with file:
        try:
            image = _read(path, file.fileno())
        except OSError as error:
            raise ImageDamaged(f"{path} can't be read: {error.strerror}") from error
        yield image


def _read(path: Path, fd: int) -> Image:
    def damaged(offset: int, why: str) -> ImageDamaged:
        return ImageDamaged(f"{path}: at byte {offset}: {why}")

    size = os.fstat(fd).st_size
    start = os.pread(fd, HEAD.size + CHECK_BYTES, 0)
    if len(start) < HEAD.size + CHECK_BYTES:
        raise damaged(len(start), "the file ends inside its header")
    fields, check = start[: HEAD.size], start[HEAD.size :]
    magic, text_bytes, layout_bytes, digests_bytes, offset, nbytes, sha256 = HEAD.unpack(fields)
    if magic != MAGIC:
        raise damaged(0, "no arena image of this version (its writer may have been killed)")
    if check != _check(fields):
        raise damaged(0, "the header differs from its checksum")
    # From here on the sizes are those that a writer of ours computed; they are compared all the same.
    total = text_bytes + layout_bytes + digests_bytes
    if text_bytes > MAX_MANIFEST or layout_bytes > MAX_LAYOUT or digests_bytes != 8 * chunk_count(nbytes):
        raise damaged(
            0, f"documents of {text_bytes}, {layout_bytes} and {digests_bytes} bytes for an arena of {nbytes}"
        )
    if offset != data_offset(total) or size != offset + nbytes:
        raise damaged(size, f"the file has {size} bytes, its header speaks of {offset} and {nbytes}")
    documents = os.pread(fd, total, DOCUMENTS)
    if hashlib.sha256(documents).digest() != sha256:
        raise damaged(DOCUMENTS, "the documents differ from their digest")
    text, layout, digests = documents[:text_bytes], documents[text_bytes:-digests_bytes], documents[-digests_bytes:]
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise damaged(DOCUMENTS, f"the manifest is malformed: {error}"[:1000]) from error
    if manifest.bytes != nbytes or manifest.digest != root_digest(digests):
        raise damaged(DOCUMENTS, "the manifest speaks of other bytes than the header")
    if manifest.layout_digest != document_digest(layout):
        raise damaged(DOCUMENTS + text_bytes, "the manifest speaks of another layout")
    return Image(path, fd, manifest, layout, digests, offset)


def _check(fields: bytes) -> bytes:
    return hashlib.blake2b(fields, digest_size=CHECK_BYTES).digest()
