"""Short commands (ip, nft, tc, openssl): run, wait with a deadline, and fail with what they said."""

import subprocess
from pathlib import Path

from rack.errors import RackError


def run(*argv: str | Path, stdin: str | None = None, timeout_s: float = 30, check: bool = True) -> str:
    """The standard output of a command; RackError with its standard error when it fails and `check` is on."""
    words = [str(a) for a in argv]
    try:
        done = subprocess.run(words, input=stdin, text=True, capture_output=True, timeout=timeout_s, check=False)
    except FileNotFoundError as e:
        raise RackError(f"program not found: {words[0]}") from e
    except subprocess.TimeoutExpired as e:
        raise RackError(f"no end after {timeout_s:.0f} s: {' '.join(words)}") from e
    if check and done.returncode:
        raise RackError(f"failed ({done.returncode}): {' '.join(words)}\n{(done.stderr or done.stdout).strip()}")
    return done.stdout


def script(lines: str, *, timeout_s: float = 30) -> None:
    """Several commands, one a line, stopping at the first that fails."""
    run("sh", "-euc", lines, timeout_s=timeout_s)
