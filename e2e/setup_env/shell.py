"""Running programs: output goes to a log, and a failure shows the log's tail and where the rest is."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from setup_env.errors import SetupError

_TAIL_LINES = 25


def run(
    argv: Sequence[str | Path],
    *,
    log: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 3600,
) -> str:
    """Run argv and return its standard output; with `log`, both outputs are appended there instead.

    Raises SetupError with the last lines of the output when it fails or takes longer than timeout_s.
    """
    words = [str(a) for a in argv]
    full_env = {**os.environ, **(env or {})}
    try:
        with log.open("a") if log else nullcontext(subprocess.PIPE) as sink:
            done = subprocess.run(
                words,
                cwd=cwd,
                env=full_env,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                timeout=timeout_s,
                check=False,
            )
    except FileNotFoundError as e:
        raise SetupError(f"program not found: {e.filename} (needed for: {' '.join(words[:4])})") from e
    except subprocess.TimeoutExpired as e:
        raise SetupError(f"took longer than {timeout_s:.0f} s: {' '.join(words)}") from e
    if done.returncode:
        said = log.read_text(errors="replace") if log else done.stderr or done.stdout
        tail = "\n".join(said.splitlines()[-_TAIL_LINES:])
        raise SetupError(f"failed ({done.returncode}): {' '.join(words)}\n{tail}")
    return done.stdout or ""
