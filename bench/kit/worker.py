"""A contestant in a process of its own, driven line by line: a JSON command in, a JSON answer out.

A process each keeps allocators, caches and threads of one contestant away from the others. What always holds: every
answer has a deadline; a worker ends with its owner (context manager), however that ends; what it says on stderr is
kept in a file that messages of failure name.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.kit.paired import RunFailed, Sample


class Worker:
    """Starts at once and waits for the worker's first line, `{"ready": …}`."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        logs: Path,
        env: Mapping[str, str] | None = None,
        seconds: float = 120.0,
        ready: float = 120.0,
    ) -> None:
        """`seconds`: deadline of an answer. `ready`: of the first one, with imports of torch on a busy machine."""
        self.name = name
        self.seconds = seconds
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name.replace('/', '-').replace(' ', '-')}.log"
        with open(self.log, "wb") as out:
            try:
                self._process = subprocess.Popen(
                    [str(word) for word in argv],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, env={**os.environ, **(env or {})},
                )  # fmt: skip
            except OSError as error:
                raise RunFailed(f"{name} can't be started: {error}") from error
        self._rest = b""
        try:
            self.facts = self._answer(ready)
        except RunFailed:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, op: str, seconds: float | None = None, **arguments: Any) -> Sample:
        """The answer to one command. Raises RunFailed: it refused, died, or did not answer in time (and is killed)."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RunFailed(f"{self.name} is gone ({error}); see {self.log}") from error
        return self._answer(self.seconds if seconds is None else seconds)

    def run(self) -> Sample:
        return self.call("run")

    def _answer(self, seconds: float) -> Sample:
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, end - time.monotonic())):
                    self._process.kill()
                    raise RunFailed(f"{self.name} did not answer within {seconds:.0f} s; see {self.log}")
                piece = _some(self._process.stdout)
                if not piece:
                    raise RunFailed(f"{self.name} ended with {self._process.wait(10)}; {self._last_words()}")
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            answer: Sample = json.loads(line)
        except ValueError as error:
            raise RunFailed(f"{self.name} said {line[:200]!r}; see {self.log}") from error
        if "error" in answer:
            raise RunFailed(f"{self.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (see {self.log})"

    def close(self) -> None:
        """It ends when its stdin does; one that does not is killed. Idempotent."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _close(pipe)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _some(pipe: Any) -> bytes:
    return os.read(pipe.fileno(), 65536)


def _close(pipe: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # bytes that a dead worker did not take
        pipe.close()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its ended threads so far, in seconds (to 10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
