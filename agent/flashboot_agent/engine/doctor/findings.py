"""What a check found, and how that is told: a table for people, a document for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "wrong", "skipped"]
"""note: it works, and could be better. skipped: there was nothing to look at."""

WIDTH = 110


@dataclass(frozen=True)
class Finding:
    check: str
    state: State
    found: str
    advice: str = ""
    """What to do about it."""
    details: Mapping[str, str] = field(default_factory=dict)
    """For programs."""


@dataclass(frozen=True)
class Check:
    """`look` returns what it found when all is well, and raises when it is not. `advice`: if it has no better one."""

    name: str
    look: Callable[[], str | tuple[str, Mapping[str, str]]]
    advice: str


class Odd(Exception):
    """A check that found something else than it should."""

    def __init__(self, state: State, found: str, advice: str = "") -> None:
        super().__init__(found)
        self.state: State = state
        self.found = found
        self.advice = advice


def run(check: Check) -> Finding:
    try:
        found = check.look()
    except Odd as odd:
        advice = odd.advice or ("" if odd.state == "skipped" else check.advice)
        return Finding(check.name, odd.state, odd.found, advice)
    except (Exception, SystemExit) as error:  # noqa: BLE001 # others' imports raise anything: that is the finding
        return Finding(check.name, "wrong", f"{type(error).__name__}: {error}", check.advice)
    if isinstance(found, str):
        return Finding(check.name, "ok", found)
    return Finding(check.name, "ok", found[0], details=found[1])


def table(findings: Sequence[Finding]) -> str:
    """One line per check; below it, what to do."""
    wide = max(len(finding.check) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        lines += _wrapped(f"{finding.state:<7} {finding.check:<{wide}}  ", finding.found)
        if finding.advice:
            lines += _wrapped(" " * (8 + wide) + "→ ", finding.advice)
    return "\n".join(lines)


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """`ok` and `checks`, for JSON."""
    return {
        "ok": healthy(findings),
        "checks": [
            {"check": f.check, "state": f.state, "found": f.found, "advice": f.advice, "details": dict(f.details)}
            for f in findings
        ],
    }


def healthy(findings: Sequence[Finding]) -> bool:
    return all(finding.state != "wrong" for finding in findings)


def _wrapped(begin: str, text: str) -> list[str]:
    lines = [line for part in text.splitlines() or [""] for line in textwrap.wrap(part, WIDTH - len(begin)) or [""]]
    return [begin + lines[0], *(" " * len(begin) + line for line in lines[1:])]
