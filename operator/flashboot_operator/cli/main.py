"""The command line. Exit codes: 0 done, 1 it cannot be done (the message says why), 2 the input is wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from flashboot_operator.cli import delta, doctor, plan, status, tree
from flashboot_operator.cli.errors import CannotDo
from flashboot_operator.core.fanout.scenario import Unfinished

app = typer.Typer(
    help="FlashBoot's commands for people.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("status")(status.command)
app.command("tree")(tree.command)
app.command("plan")(plan.command)
app.command("doctor")(doctor.command)
app.add_typer(delta.app, name="delta")


def main(argv: Sequence[str] | None = None) -> int:
    return _run("flashboot", argv)


def plugin() -> int:
    """`kubectl flashboot`: kubectl finds the program `kubectl-flashboot` and hands its arguments on."""
    return _run("kubectl flashboot", None)


def _run(program: str, argv: Sequence[str] | None) -> int:
    try:
        code = app(args=list(argv) if argv is not None else None, prog_name=program, standalone_mode=False)
    except typer.TyperException as error:  # what is wrong with the words on the command line
        return _say(program, error.format_message(), error.exit_code)
    except ValueError as error:
        return _say(program, str(error), 2)
    except (CannotDo, Unfinished) as error:
        return _say(program, str(error), 1)
    except typer.Abort:
        return 130
    return int(code or 0)


def _say(program: str, message: str, code: int) -> int:
    sys.stderr.write(f"{program}: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
