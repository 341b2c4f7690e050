"""`flashboot doctor`: run in an engine's image or pod, says whether everything is in place there.

The checks are the plug-in's own (flashboot_agent.engine.doctor). They are a command of `flashboot` because one wheel
brings both: an engine image that has the plug-in has this program, and it imports nothing of the operator's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TextIO


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser(
        "doctor",
        help="say whether everything is in place in an engine's image or pod",
        description="Says whether everything is in place for FlashBoot where it runs: in an engine's image or pod.",
        usage="flashboot doctor [-h] [--image] [--socket PATH] [-o {table,json}] [-- ENGINE ARGUMENTS]",
    )
    p.add_argument("--image", action="store_true", help="look at the image alone: no mount, no agent, no node")
    p.add_argument("--socket", metavar="PATH", help="the pod's socket (default: as the engine's arguments say)")
    p.add_argument("-o", "--output", choices=["table", "json"], default="table")
    p.add_argument("arguments", nargs="*", metavar="ENGINE ARGUMENTS", help="as the engine is started, after --")
    p.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """0 when nothing is wrong, else 1."""
    from flashboot_agent.engine.doctor import examine, findings

    with contextlib.redirect_stdout(sys.stderr):  # what SGLang prints while it is looked at
        found = examine(arguments.arguments, socket=arguments.socket, in_pod=not arguments.image)
    if arguments.output == "json":
        json.dump(findings.document(found), out, indent=1)
        out.write("\n")
    else:
        out.write(findings.table(found) + "\n")
    return 0 if findings.healthy(found) else 1
