"""The base of all images on the rack: a Debian with Python 3.11, standing in for `python:3.11-slim-bookworm`.

A rack has no registry, so debootstrap makes what the Dockerfiles' FROM names. The interpreter is Debian's, under
/usr/bin; links in /usr/local/bin give the paths of the image that it stands in for.
"""

import os
import re
import shutil
from pathlib import Path

from setup_env.cache import LOG, Cache
from setup_env.errors import SetupError
from setup_env.shell import run
from setup_env.system import RACK_NEEDS, ensure_packages

BASE_NAME = "docker.io/library/python:3.11-slim-bookworm"
_SUITE = "bookworm"
_INCLUDE = "ca-certificates,python3,python3-venv,python3-pip,libpython3.11-dev"  # headers, as the original has
_APT_CONF = 'APT::Install-Recommends "false";\n'
_LINKS = {
    "python": "python3",
    "python3": "/usr/bin/python3",
    "python3.11": "/usr/bin/python3.11",
    "pip": "/usr/bin/pip3",
}
_USELESS = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log")
_RECIPE = "2"  # count up when build() changes


def ensure(cache: Cache) -> Path:
    """A tar of the root file system."""

    def build(into: Path) -> None:
        ensure_packages(RACK_NEEDS)
        root = into / "root"
        log = into / LOG
        run(["debootstrap", "--variant=minbase", f"--include={_INCLUDE}", _SUITE, root, *mirror()], log=log)
        _trim(root)
        # Names, order, owners and times are fixed, so that the same packages give the same layer.
        fixed = ["--sort=name", "--mtime=@0", "--numeric-owner", "--exclude=./dev/*", "--exclude=./proc/*"]
        run(["tar", *fixed, "-C", root, "-cf", into / "rootfs.tar", "."], log=log)
        shutil.rmtree(root)

    return cache.entry("base-image", [_SUITE, _INCLUDE, _APT_CONF, repr(_LINKS), _RECIPE], build) / "rootfs.tar"


def _trim(root: Path) -> None:
    for path in _USELESS:
        shutil.rmtree(root / path, ignore_errors=True)
        (root / path).mkdir(parents=True)
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    (root / "var/lib/apt/lists/partial").mkdir(parents=True)
    (root / "etc/apt/apt.conf.d/99-no-recommends").write_text(_APT_CONF)
    for name, target in _LINKS.items():
        link = root / "usr/local/bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    for file in ("etc/resolv.conf", "etc/hostname"):
        (root / file).unlink(missing_ok=True)
        (root / file).touch()


def mirror() -> list[str]:
    """The Debian mirror that this machine uses itself; nothing leaves the choice to debootstrap."""
    if url := os.environ.get("DEBIAN_MIRROR"):
        return [url]
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for file in files:
        if not file.is_file():
            continue
        for line in file.read_text(errors="replace").splitlines():
            found = re.match(r"(?:URIs:|deb(?:\s+\[.*?\])?)\s+(\S+/debian/?)(?=\s|$)", line.strip())
            if found and not found[1].startswith("cdrom:"):
                return [found[1]]
    if shutil.which("debootstrap") is None:
        raise SetupError("debootstrap is missing")
    return []
