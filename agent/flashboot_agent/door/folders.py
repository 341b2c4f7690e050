"""The door's word to the agent: a folder and a meta file per pod, under /run/flashboot (wire/door.py).

What always holds: a meta file under its final name is complete, and its folder is there; a folder under its final name
belongs to the agent; what is on disk is the whole state, so that a door which dies anywhere leaves nothing that the
next call does not put right.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from flashboot_agent.wire.door import META, PODS, PublishedPod

_MAKING: Final = ".tmp"
_REMOVING: Final = ".gone"
_ATTEMPTS: Final = 10


class PodFolders:
    """
    Args:
        run: /run/flashboot, or a stand-in.
        owner: user and group that get a pod's folder; None keeps it ours (for tests that are not root).
    """

    def __init__(self, run: Path, owner: int | None) -> None:
        self._pods = run / PODS
        self._meta = run / META
        self._owner = owner

    def prepare(self) -> None:
        """Make what is missing and sweep what a door left half done. The agent may read here and write nothing."""
        for folder in (self._pods.parent, self._pods, self._meta):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            folder.chmod(0o755)  # whatever the umask was
        for left in [*self._pods.glob(f"*{_MAKING}"), *self._pods.glob(f"*{_REMOVING}")]:
            shutil.rmtree(left, ignore_errors=True)
        for unfinished in self._meta.glob(".*"):
            unfinished.unlink(missing_ok=True)

    def folder(self, uid: str) -> Path:
        return self._pods / uid

    def put(self, pod: PublishedPod) -> bool:
        """Make folder and meta file of a pod. Returns whether it is new; the first publish's stamp stays."""
        folder = self.folder(pod.uid)
        if not folder.is_dir():
            making = folder.with_name(folder.name + _MAKING)
            making.mkdir(mode=0o755, exist_ok=True)
            making.chmod(0o755)
            if self._owner is not None:
                os.chown(making, self._owner, self._owner)
            making.rename(folder)
        if self._same(pod):
            return False
        final = self._meta / f"{pod.uid}.json"
        unfinished = self._meta / f".{pod.uid}.tmp"  # no .json: whoever lists those must not see it
        unfinished.write_bytes(pod.to_json())
        unfinished.chmod(0o644)
        unfinished.rename(final)
        return True

    def _same(self, pod: PublishedPod) -> bool:
        """Whether the meta file is there and says the same, but for the time."""
        try:
            there = PublishedPod.model_validate_json((self._meta / f"{pod.uid}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return False
        return there == pod.model_copy(update={"published_at": there.published_at})

    def remove(self, uid: str) -> None:
        """Meta first, so that the agent never sees a pod without a folder. Idempotent.

        Raises OSError when the folder can't be emptied, for instance because the agent goes on binding in it."""
        (self._meta / f"{uid}.json").unlink(missing_ok=True)
        folder, removing = self.folder(uid), self._pods / f"{uid}{_REMOVING}"
        for attempt in range(_ATTEMPTS):
            try:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(removing)  # never follows links, whatever its owner put there
                folder.rename(removing)  # from here on nobody finds a path into it
            except FileNotFoundError:
                return
            except OSError:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise OSError(f"{folder} comes back as often as it is removed")
