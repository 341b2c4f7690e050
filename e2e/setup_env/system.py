"""What the machine itself must have: Debian packages, Go, Python 3.11.

Installed where that is possible (root on Debian or Ubuntu), otherwise named in one message.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from setup_env.errors import SetupError
from setup_env.progress import stage
from setup_env.shell import run

GO_MIN = (1, 26)


@dataclass(frozen=True)
class Need:
    """A program or file, and the Debian package that brings it."""

    package: str
    program: str = ""
    file: str = ""

    def present(self) -> bool:
        if self.file:
            return Path(self.file).exists()
        return _which(self.program) is not None


BUILD_NEEDS = (
    Need("ccache", program="ccache"),
    Need("g++", program="g++"),
    Need("libssl-dev", file="/usr/include/openssl/ssl.h"),
    Need("libxxhash-dev", file="/usr/include/xxhash.h"),
    Need("make", program="make"),
)
# What `make native-checks` compiles and runs with: sanitizers come with g++, the fuzzer with clang.
CHECK_NEEDS = (
    *BUILD_NEEDS,
    Need("libgtest-dev", file="/usr/include/gtest/gtest.h"),
    Need("clang-14", program="clang++-14"),
    Need("libclang-rt-14-dev", file="/usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.fuzzer-x86_64.a"),
    Need("g++-aarch64-linux-gnu", program="aarch64-linux-gnu-g++"),
    Need("qemu-user", program="qemu-aarch64"),
)
RACK_NEEDS = (
    Need("containerd", program="containerd"),
    Need("runc", program="runc"),
    Need("containernetworking-plugins", file="/usr/lib/cni/bridge"),
    Need("iptables", program="iptables"),
    Need("nftables", program="nft"),
    Need("conntrack", program="conntrack"),
    Need("debootstrap", program="debootstrap"),
    Need("buildah", program="buildah"),
    Need("iproute2", program="tc"),
    Need("kmod", program="modprobe"),
    Need("mount", program="mount"),
    Need("util-linux", program="nsenter"),
    Need("procps", program="sysctl"),
    Need("openssl", program="openssl"),
    Need("ca-certificates", file="/etc/ssl/certs/ca-certificates.crt"),
)


def _which(program: str) -> str | None:
    # Daemons live in sbin, which is not in everybody's PATH.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def missing_packages(needs: tuple[Need, ...]) -> list[str]:
    """The Debian packages of what is not there."""
    return sorted({n.package for n in needs if not n.present()})


def ensure_packages(needs: tuple[Need, ...]) -> None:
    """Install the Debian packages of what is missing, or name them in one message."""
    missing = missing_packages(needs)
    if not missing:
        return
    names = " ".join(missing)
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise SetupError(
            f"this machine lacks: {names}\n"
            f"Install them (on Debian or Ubuntu: sudo apt-get install {names}) and try again."
        )
    with stage(f"installing {names}"):
        # Nothing may start by itself: the rack runs its own containerd.
        env = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        install = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
        try:
            run(install, env=env, timeout_s=1200)
        except SetupError:  # the package lists may be old, or absent as in a fresh container
            run(["apt-get", "update"], env=env, timeout_s=600)
            run(install, env=env, timeout_s=1200)
    if still := missing_packages(needs):
        raise SetupError(f"installed, yet not found: {' '.join(still)}")


def require_go() -> str:
    """The path of a Go of at least GO_MIN."""
    wanted = ".".join(map(str, GO_MIN))
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate is None or not Path(candidate).exists():
            continue
        found = re.search(r"go(\d+)\.(\d+)", run([candidate, "env", "GOVERSION"]))
        if found and (int(found[1]), int(found[2])) >= GO_MIN:
            return candidate
    raise SetupError(f"Go {wanted} or newer is needed to build the control plane: see https://go.dev/dl/")


def python311() -> str:
    """A CPython 3.11: the engine and the wheels are pinned for it."""
    for candidate in (sys.executable, shutil.which("python3.11"), "/usr/bin/python3.11"):
        if not candidate:
            continue
        probe = [candidate, "-c", "import sys, venv, ensurepip; print(sys.version_info[:2] == (3, 11), sys.executable)"]
        done = subprocess.run(probe, text=True, capture_output=True, check=False)
        if done.returncode == 0 and done.stdout.startswith("True "):
            # A venv or a shim may be gone tomorrow; the interpreter below it stays.
            return os.path.realpath(done.stdout.split(maxsplit=1)[1].strip())
    raise SetupError("Python 3.11 with venv is needed (on Debian 12: sudo apt-get install python3 python3-venv)")
