"""How commands give their answer: a table for people, or the whole document as JSON or YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from flashboot_operator.cli.errors import CannotDo


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table for people, json or yaml for programs")]


def emit(output: Output, document: Any, lines: Iterable[str]) -> None:
    """`document`: plain JSON values. `lines`: what the table says."""
    if output is Output.TABLE:
        text = "\n".join(lines)
    elif output is Output.JSON:
        text = json.dumps(document, indent=1)
    else:
        try:
            import yaml
        except ImportError as missing:
            raise CannotDo("-o yaml needs PyYAML: pip install 'flashboot[cli]', or take -o json") from missing
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True).rstrip("\n")
    sys.stdout.write(text + "\n")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as kubectl prints them; one that is empty in every row is left out."""
    body = [[cell or "-" for cell in row] for row in rows]
    shown = [i for i in range(len(heads)) if not body or any(row[i] != "-" for row in body)]
    lines = [[line[i] for i in shown] for line in [list(heads), *body]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(shown))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
