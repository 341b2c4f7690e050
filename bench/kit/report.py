"""What a benchmark leaves: a table for the eye, JSON for programs, Markdown for the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.kit.rows import Row

HEADINGS = ("what", "figure", "goal", "verdict", "lowest-highest", "note")


def cells(row: Row) -> tuple[str, ...]:
    figure = "-" if row.figure is None else f"{_number(row.figure)} {row.unit}"
    spread = "" if row.spread is None else f"{_number(row.spread[0])}-{_number(row.spread[1])}"
    return (row.what, figure, str(row.goal or ""), row.verdict, spread, row.note)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def text(title: str, rows: Sequence[Row]) -> str:
    """Aligned columns."""
    lines = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    body = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    return f"{title}\n{body}"


def markdown(title: str, machine: dict[str, Any], rows: Sequence[Row]) -> str:
    facts = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    head = f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}"
    body = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |" for row in rows)
    return f"# Benchmark: {title}\n\n{facts}\n\n{head}\n{body}\n"


def write_json(path: Path, title: str, machine: dict[str, Any], rows: Sequence[Row], details: dict[str, Any]) -> None:
    """Replaced in one step; `details` are the raw samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "benchmark": title,
        "machine": machine,
        "rows": [{**asdict(row), "goal": str(row.goal or ""), "verdict": row.verdict} for row in rows],
        "details": details,
    }
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(document, indent=1) + "\n")
    fresh.rename(path)
