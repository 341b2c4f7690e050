"""Write the door's protobuf modules, or with --check only say whether they are what the .proto files give.

Needs grpcio-tools as pinned in requirements/dev.txt: the generated files name the compiler's version.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "agent/flashboot_agent/door/proto"


def generate(into: Path) -> list[Path]:
    """Compile all .proto files of FOLDER; returns the files written, sorted."""
    sources = sorted(path.name for path in FOLDER.glob("*.proto"))
    # In a process of its own: once the compiler's module is loaded, loading NIXL's aborts the process.
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}", f"--python_out={into}", f"--pyi_out={into}"]
    if subprocess.run([*command, *sources], check=False).returncode != 0:
        raise SystemExit("protoc failed; its message is above")
    return sorted(into.glob("*_pb2.py*"))


def stale() -> list[str]:
    """Names of files that are not what the .proto files give, with what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = {path.name: path.read_bytes() for path in generate(Path(folder))}
    there = {path.name: path.read_bytes() for path in FOLDER.glob("*_pb2.py*")}
    return [
        f"{name}: {'missing' if name not in there else 'left over' if name not in wanted else 'differs'}"
        for name in sorted(wanted.keys() | there.keys())
        if wanted.get(name) != there.get(name)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is stale")
    if not parser.parse_args().check:
        for path in generate(FOLDER):
            print(path.name)
    elif problems := stale():
        print("run tools/generate_protos.py:", *problems, sep="\n  ", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
