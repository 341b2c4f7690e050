"""`python -m native_checks --sysroot DIR [--only CHECK]…`, for `make native-checks`; by the Python that has CMake."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from native_checks import fuzz, variants
from native_checks.step import CheckFailed, step
from native_checks.variants import Variant
from setup_env.paths import BUILD, REPO
from setup_env.progress import stage

_SOURCES = REPO / "csrc"
_CHECKS = (*variants.HOST, "aarch64", "fuzz")
_USUAL = tuple(name for name in _CHECKS if name != "plain")
"""A plain build finds nothing that the others do not; it is for looking at what they found."""
_COMPILE_SECONDS = 2400
_TEST_SECONDS = 1800
"""Several times what they take: `make test` runs them at a low priority beside its other tests."""


def build(variant: Variant) -> Path:
    """Compile what changed; the folder. Raises CheckFailed."""
    folder = BUILD / "checks" / variant.name
    cmake: list[str | Path] = [sys.executable, "-m", "cmake"]
    with stage(f"csrc, {variant.name}: compiling"):
        configure = [*cmake, "-S", _SOURCES, "-B", folder, "-G", "Unix Makefiles", *variant.cmake]
        step(configure, folder / "configure.log", seconds=_COMPILE_SECONDS)
        compile_ = [*cmake, "--build", folder, "--parallel", str(variants.jobs())]
        step(compile_, folder / "compile.log", seconds=_COMPILE_SECONDS)
    return folder


def test(variant: Variant, folder: Path) -> None:
    """Run the test program in each of the variant's ways. Raises CheckFailed."""
    for how, launcher in variant.launchers.items():
        with stage(f"csrc, {variant.name}: testing" + (f", {how}" if how else "")):
            argv: list[str | Path] = [*launcher, folder / "tests" / "flashboot_tests", "--gtest_brief=1"]
            step(argv, folder / "tests.log", env=variant.env, seconds=_TEST_SECONDS)


def check(name: str, sysroot: Path, fuzz_seconds: float) -> None:
    """One of _CHECKS, from source to result. Raises CheckFailed."""
    if name == "fuzz":
        variant = variants.asan()
        folder = build(variant)
        with stage(f"csrc: fuzzing for {fuzz_seconds:.0f} s"):
            fuzz.run(folder, _SOURCES / "fuzz" / "corpus", fuzz_seconds, variant.env)
        return
    variant = variants.aarch64(sysroot) if name == "aarch64" else variants.HOST[name]()
    test(variant, build(variant))


def main() -> int:
    parser = argparse.ArgumentParser(prog="native_checks", description="Check csrc without Python.")
    parser.add_argument("--only", action="append", choices=_CHECKS, help="may be repeated; all but plain when left out")
    parser.add_argument("--sysroot", type=Path, required=True, help="arm64 libraries: setup_env path native-checks")
    parser.add_argument("--fuzz-seconds", type=float, default=20)
    arguments = parser.parse_args()
    try:
        for name in arguments.only or _USUAL:
            check(name, arguments.sysroot, arguments.fuzz_seconds)
    except CheckFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
