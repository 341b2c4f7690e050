"""The next version as a file: an arena image, or a checkpoint with the base's files; whole, or nothing is left."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from flashboot_agent.core.checkpoint import INDEX
from flashboot_agent.core.errors import BadRequest
from flashboot_agent.delta.apply import apply_to
from flashboot_agent.delta.disk import room_in
from flashboot_agent.delta.file import TEMPORARY, Delta
from flashboot_agent.delta.source import CheckpointSource, ImageSource, Source
from flashboot_agent.files import sync_folder
from flashboot_agent.load.image_write import new_image
from flashboot_agent.memory.memfd import write_all
from flashboot_agent.wire.base import now


def apply_image(delta: Delta, base: ImageSource, path: Path, *, threads: int = 1, after: Source | None = None) -> None:
    """Write the result as an image: the base's manifest and layout, new digests. `after`: the bytes that the delta is
    for, where these are not the base's own but what earlier deltas make of it.

    Raises what apply_to raises, BadRequest when the path is taken, DiskFull, OSError."""
    _require_free(path)
    manifest = base.image.manifest.model_copy(
        update={
            "digest": delta.contents.metadata.result_digest,
            "version": delta.contents.metadata.new_version,
            "written_at": now(),
        }
    )
    table = delta.contents.table.result
    with _room_for(path, delta), new_image(path, manifest, base.image.layout, table, base.nbytes) as (fd, start):
        apply_to(delta, after or base, lambda offset, view: write_all(fd, view, start + offset), threads=threads)


def apply_checkpoint(
    delta: Delta, base: CheckpointSource, path: Path, *, threads: int = 1, after: Source | None = None
) -> None:
    """Write the result as a folder (or a file, as the base is): the base's files, headers and index, new tensors.
    `after`: see apply_image.

    Raises what apply_to raises, BadRequest when the path is taken, DiskFull, OSError."""
    _require_free(path)
    temporary = path.with_name(path.name + TEMPORARY)
    _claim(temporary, folder=base.path.is_dir())
    try:
        with _room_for(path, delta):
            _write(delta, base, temporary, threads, after or base)
        temporary.rename(path)
    except BaseException:  # whatever it was: half a checkpoint is of no use
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _require_free(path: Path) -> None:
    """Raises BadRequest."""
    if path.exists() or path.is_symlink():
        raise BadRequest(f"{path} is there already; name a new one")


def _room_for(path: Path, delta: Delta) -> AbstractContextManager[None]:
    return room_in(path.parent, f"{path}, made by {delta.path} ({delta.contents.metadata.versions()})")


def _claim(temporary: Path, *, folder: bool) -> None:
    """Raises BadRequest when it is somebody else's: nothing of theirs is removed. OSError."""
    try:
        if folder:
            temporary.mkdir()
        else:
            temporary.touch(exist_ok=False)
    except FileExistsError:
        raise BadRequest(
            f"{temporary} is there: somebody else is applying there now, or was killed; remove it in that case"
        ) from None


def _write(delta: Delta, base: CheckpointSource, temporary: Path, threads: int, source: Source) -> None:
    if not base.path.is_dir():
        _fill(delta, base, lambda name: temporary, threads, source)
        return
    _fill(delta, base, lambda name: temporary / name.relative_to(base.path), threads, source)
    if (base.path / INDEX).exists():
        shutil.copyfile(base.path / INDEX, temporary / INDEX)
    sync_folder(temporary)


def _fill(delta: Delta, base: CheckpointSource, place: Callable[[Path], Path], threads: int, source: Source) -> None:
    with ExitStack() as stack:
        targets: list[int] = []
        for name, fd in zip(base.plan.files, base.files, strict=True):
            path = place(Path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "wb"))
            os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(fd).st_mode))  # who may not read the base reads no other
            _copy_header(fd, file.fileno(), base, len(targets))
            targets.append(file.fileno())

        def write(offset: int, view: memoryview) -> None:
            for file, at, begin, end in base.pieces(offset, view.nbytes):
                write_all(targets[file], view[begin:end], at)

        apply_to(delta, source, write, threads=threads)
        for target in targets:
            os.fsync(target)


def _copy_header(source: int, target: int, base: CheckpointSource, number: int) -> None:
    """Everything before the first tensor; the rest of the file is tensors, one behind the other."""
    size = os.fstat(source).st_size
    begin = min((t.file_offset for t in base.placed if t.file == number), default=size)
    os.posix_fallocate(target, 0, max(size, 1))
    write_all(target, os.pread(source, begin, 0), 0)
