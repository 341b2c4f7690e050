"""The content-keyed cache: directories that are complete or absent, whoever is killed when.

An entry lives at <root>/<name>/<key>. It is built in a sibling `<key>.tmp-<random>`, flushed, and renamed: a name
without `.tmp-` therefore always holds a finished build. `<key>.lock` is locked exclusively while building, so that two
clones do not build the same thing twice, and shared by who must not have the entry taken away (`hold`). The kernel
drops both locks when their owner dies, so nothing has to be repaired by hand: the next build removes what was left.
"""

import ctypes
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from setup_env.errors import SetupError
from setup_env.progress import say, stage

LOG = "build.log"  # where a build writes what its programs say, in the entry itself
_TMP = ".tmp-"
_KEY_CHARS = 16

Material = str | bytes | Path


def cache_root() -> Path:
    """Where everything lives: ${XDG_CACHE_HOME:-$HOME/.cache}/flashboot."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "flashboot"


def key_of(material: Iterable[Material]) -> str:
    """A key over strings, bytes and paths; a path counts with its content (a folder: names, modes, contents).

    Each part is hashed with its length, so that moving a byte from one part to the next changes the key.
    """
    total = hashlib.sha256()

    def feed(data: bytes) -> None:
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)

    for part in material:
        if isinstance(part, Path):
            for file in _files(part):
                feed(os.fsencode(file.relative_to(part)) if file != part else b"")
                feed(b"x" if os.access(file, os.X_OK) else b"-")
                feed(file.read_bytes())
        else:
            feed(part.encode() if isinstance(part, str) else part)
    return total.hexdigest()[:_KEY_CHARS]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    if not path.exists():
        raise SetupError(f"missing from the checkout: {path}")
    return [path]


class Cache:
    """One cache folder; every method may be called from several processes at once."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_root()

    def path(self, name: str, material: Iterable[Material]) -> Path:
        """Where the entry is or would be."""
        return self.root / name / key_of(material)

    def entry(
        self, name: str, material: Iterable[Material], build: Callable[[Path], None], *, keep: int | None = None
    ) -> Path:
        """The directory of this entry, built by `build(directory)` when it is not there yet.

        `build` gets an empty directory whose final path is not known to it. With `keep`, only that many
        entries of this name survive a build: the ones used last, and those that somebody holds.
        """
        final = self.path(name, material)
        if final.is_dir():
            os.utime(final)
            say(f"{name}: cached")
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(_lock_path(final), exclusive=True, waiting_for=name):
            if final.is_dir():  # the one we waited for has built it
                say(f"{name}: cached")
                return final
            _remove_leftovers(final)
            work = Path(tempfile.mkdtemp(prefix=final.name + _TMP, dir=final.parent))
            try:
                work.chmod(0o755)
                with stage(name):
                    build(work)
                    _flush(work)
                    work.rename(final)
                    _fsync_dir(final.parent)
            except BaseException:  # whatever it was: half an entry must never be found
                self._keep_log(work, name)
                shutil.rmtree(work, ignore_errors=True)
                raise
        if keep is not None:
            self._evict(final, keep)
        return final

    def hold(self, entry: Path) -> int:
        """Keep `entry` from eviction while the returned file descriptor, or a copy of it, is open anywhere."""
        fd = os.open(_lock_path(entry), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def _keep_log(self, work: Path, name: str) -> None:
        """The whole log of a failed build, for who wants more than the tail in the error."""
        if (work / LOG).exists():
            kept = self.root / f"failed-{name}.log"
            shutil.copyfile(work / LOG, kept)
            say(f"{name}: the whole log is in {kept}")

    def _evict(self, newest: Path, keep: int) -> None:
        others = [p for p in newest.parent.iterdir() if p.is_dir() and _TMP not in p.name and p != newest]
        others.sort(key=lambda p: p.stat().st_mtime, reverse=True)
        for old in others[keep - 1 :]:
            with _try_lock(_lock_path(old)) as free:
                if free:
                    doomed = old.with_name(old.name + _TMP + "evicted")
                    old.rename(doomed)  # first out of sight: a half-removed entry must not look whole
                    shutil.rmtree(doomed, ignore_errors=True)


def _lock_path(entry: Path) -> Path:
    return entry.with_name(entry.name + ".lock")


def _remove_leftovers(final: Path) -> None:
    """Remove what killed builds left: ours (we hold the lock), and others' whose builder is gone."""
    for left in final.parent.glob("*" + _TMP + "*"):
        key = left.name.split(_TMP)[0]
        if key == final.name:
            shutil.rmtree(left, ignore_errors=True)
            continue
        with _try_lock(left.with_name(key + ".lock")) as free:
            if free:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(path: Path, *, exclusive: bool, waiting_for: str) -> Iterator[None]:
    # Never unlinked: removing a lock file lets two processes lock two different files of one name.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{waiting_for}: another process is building it, waiting")
            fcntl.flock(fd, mode)
        yield
    finally:
        os.close(fd)


@contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _flush(directory: Path) -> None:
    """Everything of this file system onto the disk: one call, where fsync of each of 40 000 files takes minutes."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), f"syncfs of {directory}")
    finally:
        os.close(fd)


def _fsync_dir(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
