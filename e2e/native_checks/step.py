"""One program of a check: quiet when it succeeds, everything that it said when it does not."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_SHOWN = 400
"""Lines of a failed step's log: a sanitizer's report begins far above its end."""


class CheckFailed(Exception):
    """A check found something; the message has its log and the command that shows it again."""


def step(argv: Sequence[str | Path], log: Path, *, env: Mapping[str, str] | None = None, seconds: float) -> None:
    """Run argv with both outputs in `log` (a new file). Raises CheckFailed when it fails or takes longer."""
    words = [str(word) for word in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as sink:
        # A session of its own, so that compilers below make end with it.
        process = subprocess.Popen(
            words,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise CheckFailed(_report(words, env, log, f"took longer than {seconds:.0f} s")) from None
        finally:
            if process.poll() is None:  # out of time, or we were interrupted
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if status:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
        raise CheckFailed(_report(words, env, log, how))


def _report(words: list[str], env: Mapping[str, str] | None, log: Path, how: str) -> str:
    lines = log.read_text(errors="replace").splitlines()
    left_out = [f"({len(lines) - _SHOWN} lines more at the beginning of {log})"] if len(lines) > _SHOWN else []
    shown = "\n".join(left_out + lines[-_SHOWN:])
    again = " ".join([*(f"{name}={value}" for name, value in (env or {}).items()), *words])
    return f"{shown}\nThis {how}: {again}"
