"""Progress that people can follow: the stage's name, how long it takes, what it waits for or where it came from.

On a terminal the line of the running stage is updated in place; elsewhere every change is a line of its own.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

TICK = 1.0
"""Seconds between updates of the elapsed time on a terminal."""


@dataclass
class Stage:
    """One step of the demo, while it runs and after."""

    name: str
    began: float
    note: str = ""
    """What it does or waits for at the moment; afterwards its outcome."""
    seconds: float | None = None

    def say(self, note: str) -> None:
        self.note = note


@dataclass
class Progress:
    """Prints stages and remembers them for the report."""

    out: TextIO = sys.stdout
    stages: list[Stage] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """A stage that lasts as long as the block."""
        stage = Stage(name, time.monotonic())
        self.stages.append(stage)
        over = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(stage, over), daemon=True)
        ticker.start()
        mark = "failed"
        try:
            yield stage
            mark = "ok"
        finally:
            over.set()
            ticker.join()
            stage.seconds = time.monotonic() - stage.began
            self._write(self._line(stage, mark), final=True)

    def record(self, name: str, seconds: float, note: str) -> None:
        """A stage that drew its own progress and is over."""
        stage = Stage(name, time.monotonic() - seconds, note, seconds)
        self.stages.append(stage)
        self._write(self._line(stage, "ok"), final=True)

    @property
    def current(self) -> Stage | None:
        return self.stages[-1] if self.stages else None

    def _tick(self, stage: Stage, over: threading.Event) -> None:
        said = None
        if not self.out.isatty():
            self._write(self._line(stage, "…"), final=True)
        while not over.wait(TICK):
            if self.out.isatty():
                self._write(self._line(stage, "…"), final=False)
            elif stage.note != said:
                said = stage.note
                self._write(self._line(stage, "…"), final=True)

    def _line(self, stage: Stage, mark: str) -> str:
        now = time.monotonic()
        took = f"{now - stage.began:6.1f} s"
        return f"[{now - self.began:6.1f} s] {stage.name:<32} {mark:<6} {took}  {stage.note}".rstrip()

    def _write(self, line: str, *, final: bool) -> None:
        if self.out.isatty():
            self.out.write("\r\x1b[K" + line[:200] + ("\n" if final else ""))
        else:
            self.out.write(line + "\n")
        self.out.flush()
