"""Bring an arena image or a checkpoint on disk to another version of a chain: what `flashboot delta pull` does.

    what version is it? → the way → all deltas but the last are fetched, which comes while it is applied → one pass over
    the base with all of them → the new version is whole beside it → it takes the name

Holds always: whoever opens the name finds one whole version, the old or the new one, whenever this process dies. What
it was receiving is in its folder then, and the next run goes on with it; one run at a time has the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import BadRequest, DeltaBaseMismatch
from flashboot_agent.delta.source import CheckpointSource, ImageSource, Source, open_source
from flashboot_agent.delta.target import apply_checkpoint, apply_image
from flashboot_agent.delta.window import windows
from flashboot_agent.files import exchange, sync_folder
from flashboot_agent.sync.chain import Chain, Step, few
from flashboot_agent.sync.merge import Result
from flashboot_agent.sync.receive import Receiver

_NEW: Final = "new"
"""In the folder: the version that is being written; after it took the name, the old one."""


@dataclass(frozen=True)
class Pulled:
    base: int
    version: int
    digest: str
    steps: list[Step]


@dataclass(frozen=True)
class _OnDisk:
    """Versioned (receive.py)."""

    path: Path
    subject: Literal["arena", "checkpoint"]
    content: str
    nbytes: int
    version: int
    digest: str

    def __str__(self) -> str:
        return str(self.path)


def folder_of(path: Path) -> Path:
    """Beside it, where names can be exchanged; hidden."""
    return path.with_name(f".{path.name}.deltas")


def pull(
    receive: Callable[[Path], Receiver],
    path: Path,
    *,
    to: Path | None = None,
    wanted: int | None = None,
    version: int | None = None,
    threads: int = 1,
) -> Pulled:
    """Make what is at `path` the wanted version (default: the newest), or write that to `to` and leave `path` as it is.

    `receive`: makes a receiver with this spool folder. `version`: that of a checkpoint, which is read for it otherwise.
    Raises what Receiver and applying raise; BadRequest when `to` is taken, or another run has the folder."""
    path = path if path.name not in ("", "..") else path.resolve()  # as for ".", beside which there is something, too
    place = to or path
    if to and (to.exists() or to.is_symlink()):
        raise BadRequest(f"{to} is there already; name a new one")
    with _folder(folder_of(place)) as folder, open_source(path) as source:
        if not to and path.is_dir():
            _require_exchange(folder, path)
        receiver = receive(folder)
        chain = receiver.chain()
        wanted = chain.version if wanted is None else wanted
        base = _on_disk(source, path, chain, version, wanted)
        steps = receiver.way(chain, base, wanted)
        if steps:
            with ExitStack() as stack:
                for step in steps[:-1]:
                    with receiver.opened(chain, step, keep=True) as delta:
                        delta.require_whole()
                deltas = [stack.enter_context(receiver.opened(chain, step)) for step in steps]
                after: Source = Result(source, deltas[:-1], threads=threads) if deltas[1:] else source
                if isinstance(source, ImageSource):
                    apply_image(deltas[-1], source, folder / _NEW, threads=threads, after=after)
                else:
                    apply_checkpoint(deltas[-1], source, folder / _NEW, threads=threads, after=after)
                _take_name(source, folder / _NEW, path, to)  # what was received goes after that
    return Pulled(base.version, wanted, steps[-1].result_digest if steps else base.digest, steps)


def _on_disk(
    source: ImageSource | CheckpointSource, path: Path, chain: Chain, version: int | None, wanted: int
) -> _OnDisk:
    """What version it is. Raises DeltaBaseMismatch, what reading raises."""
    digests = chain.digests()
    if version is None:
        digest = source.image.manifest.digest if isinstance(source, ImageSource) else _digest(source)
        found = [number for number, its in digests.items() if its == digest]
        if not found:
            raise DeltaBaseMismatch(
                f"{path} ({digest}) is no version that the chain knows; it has deltas of {few(digests)}: fetch the "
                "weights of one of these first"
            )
        version = max((number for number in found if number <= wanted), default=min(found))
    elif version in digests:
        digest = digests[version]  # each chunk is compared when the delta is applied
    else:
        raise DeltaBaseMismatch(f"the chain does not know version {version}; it has deltas of {few(digests)}")
    return _OnDisk(path, source.subject, source.content, source.nbytes, version, digest)


def _digest(source: Source) -> str:
    return root_digest(
        b"".join(chunk_digests(source.view(each.offset, each.end - each.offset)) for each in windows(source.nbytes))
    )


def _require_exchange(folder: Path, path: Path) -> None:
    """Told before anything is fetched or written. Raises BadRequest."""
    ends = [folder / f"{_NEW}.{end}" for end in ("this", "that")]
    try:
        for end in ends:
            end.mkdir()
        exchange(*ends)
        why = "" if path.stat().st_dev == folder.stat().st_dev else "it is a file system of its own"
    except OSError as error:
        why = str(error.strerror)
    if why:
        raise BadRequest(f"{path} can't be exchanged with its new version here ({why}); give a new name to write to")


def _take_name(source: ImageSource | CheckpointSource, new: Path, path: Path, to: Path | None) -> None:
    if isinstance(source, CheckpointSource) and path.is_dir():
        _copy_others(path, new)
    shutil.copymode(path, new)
    if to:
        new.rename(to)
    elif new.is_dir():
        exchange(new, path)
    else:
        os.replace(new, path)
    sync_folder((to or path).parent)


def _copy_others(path: Path, new: Path) -> None:
    """What is no weights: the configuration, the tokenizer. Links become what they lead to, as seen from here."""
    for entry in path.iterdir():
        copy = new / entry.name
        if copy.exists():
            continue
        if entry.is_dir():
            shutil.copytree(entry, copy, ignore_dangling_symlinks=True)
        elif entry.is_file():
            shutil.copy2(entry, copy)
    for below, _, files in os.walk(new):
        for name in files:
            with open(Path(below, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(below))


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    """This run's own; of an earlier one that was killed, what it received is left in it. Raises BadRequest."""
    lock = _taken(folder)
    try:
        _remove_versions(folder)
        try:
            yield folder
        finally:
            _remove_versions(folder)
            if not any(folder.iterdir()):
                folder.rmdir()
    finally:
        os.close(lock)


def _taken(folder: Path) -> int:
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), folder.stat()):
                return lock
        except BlockingIOError:
            os.close(lock)
            raise BadRequest(f"{folder}: another process pulls there; wait for it") from None
        except FileNotFoundError:
            pass
        os.close(lock)  # another run came to its end, and removed this folder, between our looks


def _remove_versions(folder: Path) -> None:
    for left in folder.glob(f"{_NEW}*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
