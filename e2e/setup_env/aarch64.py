"""Headers and libraries for programs that are cross-built for arm64: Debian's own packages, unpacked into a folder.

The machine itself is not changed (no foreign architecture, nothing installed): apt works here with a state folder of
its own that knows only arm64, so it needs no root either. Which libraries: those that csrc links, as static libraries
from the development packages, so that no loader has to find them under qemu.
"""

import shutil
from pathlib import Path

from setup_env.cache import LOG, Cache
from setup_env.errors import SetupError
from setup_env.shell import run

_PACKAGES = ("libgtest-dev", "libssl-dev", "libxxhash-dev")
_OS_RELEASE = Path("/etc/os-release")  # other releases of Debian have other versions
_NEEDED = ("include/gtest/gtest.h", "include/xxhash.h", "lib/aarch64-linux-gnu/libcrypto.a")


def ensure_sysroot(cache: Cache) -> Path:
    """The folder that holds `usr/include` and `usr/lib/aarch64-linux-gnu`. Raises SetupError when apt can't get it."""

    def build(into: Path) -> None:
        log = into / LOG
        apt = into / "apt"
        for folder in ("state/lists/partial", "cache/archives/partial", "debs"):
            (apt / folder).mkdir(parents=True)
        env = {"APT_CONFIG": str(_configuration(apt))}
        run(["apt-get", "update"], env=env, log=log, timeout_s=600)
        run(["apt-get", "download", *_PACKAGES], env=env, cwd=apt / "debs", log=log, timeout_s=600)
        for package in sorted((apt / "debs").iterdir()):
            run(["dpkg", "-x", package, into], log=log)
        shutil.rmtree(apt)
        if absent := [file for file in _NEEDED if not (into / "usr" / file).exists()]:
            raise SetupError(f"Debian's arm64 packages of {' '.join(_PACKAGES)} lack {' '.join(absent)}")

    return cache.entry("aarch64-sysroot", [_OS_RELEASE, *_PACKAGES], build, keep=2)


def _configuration(apt: Path) -> Path:
    """Of an apt that knows arm64 alone and no installed package; its sources and keys are the machine's."""
    (apt / "status").touch()
    file = apt / "apt.conf"
    file.write_text(
        'APT::Architecture "arm64";\n'
        'APT::Architectures { "arm64"; };\n'
        'APT::Sandbox::User "";\n'  # the folder belongs to whoever builds
        f'Dir::State "{apt}/state";\n'
        f'Dir::State::status "{apt}/status";\n'
        f'Dir::Cache "{apt}/cache";\n'
    )
    return file
