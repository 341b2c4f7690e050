"""What the commands of `flashboot delta` have in common: options, keys, errors."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flashboot_agent.core.errors import FlashBootError
from flashboot_operator.cli.errors import CannotDo

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Trust = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust", metavar="PEM", help="public key of a signer (repeat for more); without: only unsigned ones"
    ),
]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=1, max=256, help="default: one per core")]
CORES: Final = len(os.sched_getaffinity(0))


@contextmanager
def told() -> Iterator[None]:
    """Errors of the work as what the command line tells. Raises CannotDo."""
    try:
        with _many_files():
            yield
    except FlashBootError as error:
        raise CannotDo(str(error)) from error
    except OSError as error:
        raise CannotDo(f"{error.filename or 'a file'}: {error.strerror}") from error


@contextmanager
def _many_files() -> Iterator[None]:
    """All files of two checkpoints are open at once; the 1024 that shells give are for programs that select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def keys(trust: Sequence[Path] | None) -> list[Ed25519PublicKey] | None:
    """Raises BadRequest."""
    from flashboot_agent.delta import trailer

    return [trailer.read_public(each) for each in trust] if trust else None
