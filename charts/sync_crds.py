"""Copy crds/ into the chart, so that `helm install` brings and upgrades them; `--check` only compares.

Helm reads no file outside its chart and never upgrades a chart's own crds/ folder, hence a copy under files/crds that
the template crds.yaml renders. crds/ is the source (itself generated from the pydantic models); never edit the copy.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crds"
COPY = ROOT / "charts" / "flashboot" / "files" / "crds"


def differences(source: Path = SOURCE, copy: Path = COPY) -> list[str]:
    """One line per file that is missing, left over or different in the copy."""
    wanted = {path.name: path.read_bytes() for path in sorted(source.glob("*.yaml"))}
    present = {path.name: path.read_bytes() for path in sorted(copy.glob("*.yaml"))}
    lines = [f"{name}: missing in the chart" for name in wanted.keys() - present.keys()]
    lines += [f"{name}: in the chart, no longer in crds/" for name in present.keys() - wanted.keys()]
    lines += [f"{name}: differs" for name in wanted.keys() & present.keys() if wanted[name] != present[name]]
    return sorted(lines)


def sync(source: Path = SOURCE, copy: Path = COPY) -> None:
    """Make the copy equal to the source."""
    copy.mkdir(parents=True, exist_ok=True)
    wanted = {path.name for path in source.glob("*.yaml")}
    for path in copy.glob("*.yaml"):
        if path.name not in wanted:
            path.unlink()
    for name in wanted:
        (copy / name).write_bytes((source / name).read_bytes())


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        lines = differences()
        for line in lines:
            print(line, file=sys.stderr)
        if lines:
            print("run: python charts/sync_crds.py", file=sys.stderr)
        return 1 if lines else 0
    if arguments:
        print("usage: sync_crds.py [--check]", file=sys.stderr)
        return 2
    sync()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
