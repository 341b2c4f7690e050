"""Arena images for tests."""

from __future__ import annotations

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.identity import digest_of, document_digest
from flashboot_agent.load.image import DOCUMENTS, Manifest, data_offset, head
from flashboot_agent.wire.base import now


def manifest_for(
    nbytes: int, digest: str, arena: str = "arena-" + "a" * 32, layout: bytes = b'{"layout": 1}'
) -> Manifest:
    return Manifest(
        arena=arena,
        namespace="serving",
        model_replica="tiny",
        model_replica_uid="11111111-2222",
        expected_identity=digest_of({"template": "t1"}),
        identity=digest_of({"model": "tiny"}),
        digest=digest,
        layout_digest=document_digest(layout),
        bytes=nbytes,
        written_at=now(),
    )


def image_bytes(data: bytes, layout: bytes = b'{"layout": 1}', arena: str = "arena-" + "a" * 32) -> bytes:
    """A whole image, put together by the format's description and not by the writer."""
    digests = chunk_digests(data)
    header, documents = head(manifest_for(len(data), root_digest(digests), arena, layout), layout, digests)
    front = header.ljust(DOCUMENTS, b"\0") + documents
    return front.ljust(data_offset(len(documents)), b"\0") + data
