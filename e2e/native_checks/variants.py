"""The ways in which csrc's tests are compiled and run, as data."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_TESTS = ("-DFLASHBOOT_PYTHON=OFF", "-DFLASHBOOT_TESTS=ON")
# Debug adds -g and leaves the optimisation to us: without any, sanitized hot loops take minutes.
_CHECKED = "-O1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS"
_ARM_PREFIX = "/usr/aarch64-linux-gnu"  # Debian's C and C++ libraries of the cross-compiler
_PAGED = "Marks*:BulkRead*:*Copier*:*CloneTest*Plain"
"""Tests of what maps, reads or copies by pages; all of them twice would take qemu minutes more."""
_RANDOM_BITS = Path("/proc/sys/vm/mmap_rnd_bits")
_TSAN_BITS = 28
"""The thread sanitizer of g++ 12 has fixed places for its shadow; with more random bits it aborts now and then."""


@dataclass(frozen=True)
class Variant:
    """One way of compiling the tests, and every way of running what came out."""

    name: str
    cmake: tuple[str, ...]
    launchers: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"": ()})
    """What is printed about a run → the words before the test program."""
    env: Mapping[str, str] = field(default_factory=dict)


def plain() -> Variant:
    """As the wheel is compiled."""
    return Variant("plain", (*_TESTS, "-DCMAKE_BUILD_TYPE=Release"))


def asan() -> Variant:
    """Memory errors, leaks and undefined behaviour; the first one ends the run. The fuzz targets come with it.

    By clang: g++ has no coverage feedback for libFuzzer, and takes twice as long over these sanitizers."""
    flags = f"{_CHECKED} -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all"
    compiler = ("-DCMAKE_CXX_COMPILER=clang++-14", f"-DCMAKE_CXX_FLAGS={flags}")
    env = {"ASAN_OPTIONS": "detect_stack_use_after_return=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return Variant("asan", (*_TESTS, "-DFLASHBOOT_FUZZ=ON", "-DCMAKE_BUILD_TYPE=Debug", *compiler), env=env)


def tsan() -> Variant:
    """Data races and lock order inversions, with no suppressions."""
    fixed = int(_RANDOM_BITS.read_text()) > _TSAN_BITS if _RANDOM_BITS.exists() else False
    launcher = ("setarch", platform.machine(), "--addr-no-randomize") if fixed else ()
    flags = f"{_CHECKED} -fsanitize=thread"
    env = {"TSAN_OPTIONS": "second_deadlock_stack=1"}
    cmake = (*_TESTS, "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS={flags}")
    return Variant("tsan", cmake, {"": launcher}, env)


HOST: Final[Mapping[str, Callable[[], Variant]]] = {"plain": plain, "asan": asan, "tsan": tsan}
"""Those that this machine runs itself, by name."""


def aarch64(sysroot: Path) -> Variant:
    """Cross-built for arm64, and run under qemu with both page sizes that arm64 kernels have."""
    include = sysroot / "usr/include/aarch64-linux-gnu"  # openssl/configuration.h is there
    cmake = (
        *_TESTS,
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
        f"-DCMAKE_CXX_FLAGS=-isystem {include}",
        f"-DCMAKE_FIND_ROOT_PATH={sysroot}",
        *(f"-DCMAKE_FIND_ROOT_PATH_MODE_{kind}=ONLY" for kind in ("INCLUDE", "LIBRARY", "PACKAGE")),
        "-DOPENSSL_USE_STATIC_LIBS=ON",
    )
    qemu = ("qemu-aarch64", "-L", _ARM_PREFIX, "-p")
    launchers = {
        "pages of 4 KiB": (*qemu, "4096"),
        "pages of 64 KiB": ("env", f"GTEST_FILTER={_PAGED}", *qemu, "65536"),
    }
    return Variant("aarch64", cmake, launchers)


def jobs() -> int:
    """How many compilers, or fuzz targets, run at once."""
    return len(os.sched_getaffinity(0))
