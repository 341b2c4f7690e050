"""The folder in which several processes of a node write one version: its files, documents and locks.

    image-0, image-1   the publisher's two images, in memory that the processes share
    begun              which version goes to which image now; absent: none
    shards-RANK        what that process has written of it: it is done

Holds always: nobody writes to an image but between the beginning and the commit of its version. A writer holds the
image's shared lock while it may write, the publisher the exclusive one at all other times; locks go with their process.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Final, TypeVar

from pydantic import Field, ValidationError

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.wire.base import Digest, WireModel

BEGUN: Final = "begun"
LOOK_SECONDS: Final = 0.002
"""Between two looks at the folder, by those who wait."""


class Begun(WireModel):
    token: str
    """Of this beginning: after an error or a crash a version may begin once more."""
    version: int = Field(ge=0)
    image: int = Field(ge=0, le=1)
    content: Digest
    nbytes: int


class Share(WireModel):
    token: str
    boxes: list[tuple[str, tuple[int, ...], tuple[int, ...]]]
    """Name, offsets and shape of each shard."""


def image_name(number: int) -> str:
    return f"image-{number}"


def share_name(rank: int | str) -> str:
    return f"shards-{rank}"


def lock(descriptor: int, kind: int) -> bool:
    """Whether it could be had at once."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


Document = TypeVar("Document", bound=WireModel)


def read(path: Path, kind: type[Document]) -> Document | None:
    """None: it is not there. Raises BadRequest, OSError."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise BadRequest(f"{path}: {error}") from error
