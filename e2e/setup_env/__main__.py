"""`python3 -m setup_env ensure WHAT…` and `python3 -m setup_env path WHAT`, for the Makefile and for people."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from setup_env import aarch64, controlplane, images, python_envs
from setup_env.cache import Cache
from setup_env.errors import SetupError
from setup_env.paths import BUILD
from setup_env.system import BUILD_NEEDS, CHECK_NEEDS, RACK_NEEDS, ensure_packages


def _system(cache: Cache) -> Path:
    ensure_packages(BUILD_NEEDS + RACK_NEEDS)
    return cache.root


def _dev(cache: Cache) -> Path:
    ensure_packages(BUILD_NEEDS)
    return python_envs.ensure_dev(cache)


def _controlplane(cache: Cache) -> Path:
    """One folder with links to all programs, so that a PATH or a variable can name them at once."""
    folder = BUILD / "controlplane"
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in controlplane.ensure(cache).programs.items():
        fresh = folder / f".{name}.{os.getpid()}"  # replaced in one step: another process may be using the link
        fresh.symlink_to(program)
        fresh.replace(folder / name)
    return folder


def _checks(cache: Cache) -> Path:
    """What the checks of the C++ code need; the path is that of the arm64 sysroot."""
    ensure_packages(CHECK_NEEDS)
    return aarch64.ensure_sysroot(cache)


_PARTS: dict[str, Callable[[Cache], Path]] = {
    "system": _system,
    "dev": _dev,
    "native-checks": _checks,
    "engine": python_envs.ensure_engine,
    "example-model": python_envs.ensure_example_model,
    "bench": python_envs.ensure_bench,
    "controlplane": _controlplane,
    "images": images.ensure_store,
}


def main() -> int:
    """`ensure` makes what is missing; `path` does too and prints where it is (for the environments: the Python)."""
    parser = argparse.ArgumentParser(prog="setup_env", description="Make what the repository does not hold, once.")
    commands = parser.add_subparsers(dest="command", required=True)
    ensure = commands.add_parser("ensure", help="make what is missing")
    ensure.add_argument("parts", nargs="+", choices=[*_PARTS, "all"])
    path = commands.add_parser("path", help="make it if missing, and print where it is")
    path.add_argument("part", choices=list(_PARTS))
    arguments = parser.parse_args()
    cache = Cache()
    try:
        if arguments.command == "path":
            print(_PARTS[arguments.part](cache))
            return 0
        # "all" is what `make test` and `make demo` need; benchmarks make their own environment.
        wanted = [part for part in _PARTS if part != "bench"] if "all" in arguments.parts else arguments.parts
        for part in wanted:
            _PARTS[part](cache)
    except SetupError as e:
        print(f"setup: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
