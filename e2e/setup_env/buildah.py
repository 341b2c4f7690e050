"""Building the users' Dockerfiles without Docker and without a registry.

Image layers are kept in one storage of ours, so a changed source rebuilds only what depends on it. It is a mere
accelerator: when it is damaged or grows too big it is thrown away. Every call runs in a mount namespace of its own, so
a killed build leaves no mounts.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setup_env.errors import SetupError
from setup_env.progress import say, stage
from setup_env.shell import run

_MAX_STORAGE_BYTES = 8 << 30
_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")


class Builder:
    """Builds images into one storage and writes them out as archives."""

    def __init__(self, storage: Path, log: Path) -> None:
        self._storage = storage
        self._log = log
        self._volumes: list[str] = []
        self._runroot = ""

    @contextmanager
    def session(self) -> Iterator[None]:
        """Prepare the storage, and the machine's own way to package indexes (certificates, pip's settings)."""
        if self._storage.is_dir() and _size(self._storage) > _MAX_STORAGE_BYTES:
            say("image layers: too many, starting afresh")
            shutil.rmtree(self._storage)
        self._storage.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fb-buildah-") as scratch:
            self._runroot = f"{scratch}/run"
            pip = Path(scratch, "pip.conf")
            pip.write_text(_pip_settings())
            self._volumes = [f"--volume={pip}:/etc/pip.conf:ro"]
            if Path(_CA_BUNDLE).exists():
                self._volumes.append(f"--volume={_CA_BUNDLE}:{_CA_BUNDLE}:ro")
            yield

    def exists(self, tag: str) -> bool:
        """Is an image of this name in the storage?"""
        try:
            self._buildah("inspect", "--type", "image", tag)
        except SetupError:
            return False
        return True

    def build(self, dockerfile: Path, context: Path, tag: str, *, target: str = "") -> None:
        """`docker build -f dockerfile --target target -t tag context`; images come from the storage alone."""
        with stage(f"image {tag}"):
            goal = [f"--target={target}"] if target else []
            arguments = ["--pull-never", "--isolation=chroot", "--layers", *self._volumes, *goal]
            self._buildah("bud", *arguments, "-f", str(dockerfile), "-t", tag, str(context))

    def export(self, dockerfile: Path, context: Path, target: str, into: Path) -> None:
        """`docker build --target target --output into context`: the files of a stage."""
        with stage(f"stage {target}"):
            arguments = ["--pull-never", "--isolation=chroot", "--layers", *self._volumes, f"--target={target}"]
            self._buildah("bud", *arguments, "-f", str(dockerfile), f"--output=type=local,dest={into}", str(context))

    def tag(self, image: str, name: str) -> None:
        """`docker tag`."""
        self._buildah("tag", image, name)

    def save(self, tag: str, archive: Path) -> None:
        """`docker save -o archive tag`."""
        self._buildah("push", "-q", tag, f"docker-archive:{archive}:{tag}")

    def _buildah(self, command: str, *arguments: str) -> None:
        own_mounts = ["unshare", "--mount", "--propagation", "private", "--"]
        where = ["--root", str(self._storage), "--runroot", self._runroot, "--storage-driver", "overlay"]
        run([*own_mounts, "buildah", *where, command, *arguments], log=self._log, timeout_s=1800)


def _pip_settings() -> str:
    """How this machine's pip reaches its index, as a pip.conf for the build; certificates are mounted beside it."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], text=True, capture_output=True, check=False
    ).stdout
    lines = ["[global]", "disable-pip-version-check = true"]
    if Path(_CA_BUNDLE).exists():
        lines.append(f"cert = {_CA_BUNDLE}")
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in _PIP_KEYS:
            lines.append(f"{key} = {value.strip(chr(39))}")
    return "\n".join(lines) + "\n"


def _size(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(directory, name)).st_blocks * 512
        for directory, _, names in os.walk(folder)
        for name in names
        if os.path.lexists(os.path.join(directory, name))
    )
