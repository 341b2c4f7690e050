"""`flashboot delta pull`: follow a chain with a checkpoint or an arena image on disk.

The work is flashboot_agent.sync's: no cluster, no engine, no torch.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashboot_operator.cli.delta_parts import CORES, Threads, Trust, keys, told
from flashboot_operator.cli.errors import CannotDo
from flashboot_operator.cli.output import Output, OutputOption, emit, table
from flashboot_operator.cli.units import show_size

if TYPE_CHECKING:
    from flashboot_agent.sync.chain import Step
    from flashboot_agent.sync.origin import Origin

_BETWEEN = 0.5
"""Seconds between two lines of progress."""


def command(
    origin: Annotated[str, typer.Argument(metavar="ORIGIN", help="http(s):// address or folder where it is published")],
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="arena image, checkpoint folder or .safetensors file to bring forward"),
    ],
    *,
    new: Annotated[
        Path | None, typer.Option("--as", metavar="NEW", help="write the version here, and leave TARGET as it is")
    ] = None,
    to: Annotated[int | None, typer.Option("--to", metavar="VERSION", help="default: the newest", min=0)] = None,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="N", min=0, help="TARGET's; default: a checkpoint is read to find out"),
    ] = None,
    trust: Trust = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", metavar="PEM", help="authority of the server; default: the system's")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=1, help="for each delta, at most; what came is kept")
    ] = 3600.0,
    threads: Threads = CORES,
    output: OutputOption = Output.TABLE,
) -> int:
    """Bring TARGET to the newest version of a chain of deltas; run again, it goes on where it was.

    Example: flashboot delta pull https://trainer.example/published /models/policy --trust trainer.pub
    """
    from flashboot_agent.sync.pull import pull
    from flashboot_agent.sync.receive import Receiver

    with told(), ExitStack() as stack:
        source, trusted = _origin(origin, ca, seconds, stack), keys(trust)
        progress = _Progress()
        done = pull(
            lambda spool: Receiver(source, spool, trusted, progress.told),
            target,
            to=new,
            wanted=to,
            version=version,
            threads=threads,
        )
    received = sum(step.nbytes for step in done.steps)
    document = {
        "path": str(new or target),
        "baseVersion": done.base,
        "version": done.version,
        "digest": done.digest,
        "deltas": [step.file for step in done.steps],
        "deltaBytes": received,
    }
    rows = [
        ("path", str(new or target)),
        ("versions", f"{done.base} → {done.version}" if done.steps else f"{done.version}, as it was"),
        ("digest", done.digest),
        ("deltas", f"{len(done.steps)}, {show_size(received)}" if done.steps else ""),
    ]
    emit(output, document, table(("WHAT", "VALUE"), [row for row in rows if row[1]]))
    return 0


def _origin(name: str, ca: Path | None, seconds: float, stack: ExitStack) -> Origin:
    if "://" not in name:
        from flashboot_agent.sync.origin import DirectoryOrigin

        return DirectoryOrigin(Path(name))
    import ssl

    try:
        from flashboot_agent.sync.http import HttpOrigin
    except ImportError as missing:
        raise CannotDo("deltas over HTTP need httpx: pip install 'flashboot[cli,sync]'") from missing
    try:
        tls = ssl.create_default_context(cafile=str(ca)) if ca else None
    except ssl.SSLError as error:
        raise CannotDo(f"{ca} can't be read as a certificate: {error}") from error
    return stack.enter_context(HttpOrigin(name, tls=tls, seconds=seconds))


class _Progress:
    """A line on a terminal that is written over; elsewhere a line when a delta is here."""

    def __init__(self) -> None:
        self._next = 0.0
        self._whole: set[str] = set()
        self._terminal = sys.stderr.isatty()

    def told(self, step: Step, nbytes: int) -> None:
        if step.file in self._whole:
            return  # it was fetched before it is applied
        whole, now = nbytes == step.nbytes, time.monotonic()
        if whole:
            self._whole.add(step.file)
        if whole or (self._terminal and now >= self._next):
            self._next = now + _BETWEEN
            start, end = ("\r\033[K", "\n" if whole else "") if self._terminal else ("", "\n")
            sys.stderr.write(f"{start}{step.file}: {show_size(nbytes)} of {show_size(step.nbytes)}{end}")
            sys.stderr.flush()
