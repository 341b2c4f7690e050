"""The command line. Exit codes: 0 done, 1 it cannot be done (the message says why), 2 the input is wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flashboot_operator.cli import doctor, plan
from flashboot_operator.core.fanout.scenario import Unfinished


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flashboot", description="FlashBoot's commands for people.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (plan, doctor):
        command.add(commands)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments, sys.stdout))
    except ValueError as error:
        sys.stderr.write(f"flashboot: {error}\n")
        return 2
    except Unfinished as error:
        sys.stderr.write(f"flashboot: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
