"""`flashboot doctor`: run in an engine's image or pod, says whether everything is in place there.

The checks are the plug-in's own (flashboot_agent.engine.doctor). They are a command of `flashboot` because one wheel
brings both: an engine image that has the plug-in has this program, and it imports nothing of the operator's.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from flashboot_operator.cli.output import Output, OutputOption, emit


def command(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ENGINE ARGUMENTS", help="as the engine is started, after --")
    ] = None,
    *,
    image: Annotated[
        bool, typer.Option("--image", help="look at the image alone: no mount, no agent, no node")
    ] = False,
    socket: Annotated[
        str | None,
        typer.Option("--socket", metavar="PATH", help="the pod's socket (default: as the engine's arguments say)"),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Say whether everything is in place for FlashBoot where it runs: in an engine's image or pod."""
    from flashboot_agent.engine.doctor import examine, findings

    with contextlib.redirect_stdout(sys.stderr):  # what SGLang prints while it is looked at
        found = examine(arguments or [], socket=socket, in_pod=not image)
    emit(output, findings.document(found), [findings.table(found)])
    return 0 if findings.healthy(found) else 1
