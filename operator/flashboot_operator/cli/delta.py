"""`flashboot delta make|apply|inspect|verify`: deltas between arena images, or between safetensors checkpoints.

The work is flashboot_agent.delta's, on files alone: no cluster, no engine, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashboot_operator.cli import delta_engine, delta_pull
from flashboot_operator.cli.delta_parts import CORES, Threads, Trust, keys, told
from flashboot_operator.cli.errors import CannotDo
from flashboot_operator.cli.output import Output, OutputOption, emit, table
from flashboot_operator.cli.units import show_size

if TYPE_CHECKING:
    from flashboot_agent.delta.file import Delta

app = typer.Typer(help="Lossless sparse deltas between two versions of a model's weights.", no_args_is_help=True)

Base = Annotated[Path, typer.Argument(metavar="BASE", help="arena image, checkpoint folder or .safetensors file")]
DeltaFile = Annotated[Path, typer.Argument(metavar="DELTA", help="the file that `make` wrote")]


@app.command("make")
def make(
    base: Base,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="the next version of the same")],
    delta: Annotated[Path, typer.Argument(metavar="DELTA", help="the file to write; must not be there")],
    *,
    base_version: Annotated[
        int | None, typer.Option("--base-version", metavar="N", min=0, help="default: what an image says; else 0")
    ] = None,
    new_version: Annotated[
        int | None,
        typer.Option("--new-version", metavar="N", help="default: what an image says, if later; else the one after"),
    ] = None,
    classes: Annotated[
        int, typer.Option("--classes", min=1, max=16, help="of exponents: 16 is smallest, 1 quickest to apply")
    ] = 16,
    sign: Annotated[Path | None, typer.Option("--sign", metavar="PEM", help="Ed25519 private key")] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="carried along")] = "",
    threads: Threads = CORES,
    output: OutputOption = Output.TABLE,
) -> int:
    """Write what makes NEW of BASE.

    Example: flashboot delta make step-100 step-101 step-101.delta --base-version 100 --sign key.pem
    """
    from flashboot_agent.delta import trailer
    from flashboot_agent.delta.file import open_delta
    from flashboot_agent.delta.make import Versions, make
    from flashboot_agent.delta.source import open_source

    with told():
        if delta.exists() or delta.is_symlink():
            raise CannotDo(f"{delta} is there already; name a new one")
        key = trailer.read_private(sign) if sign else None
        with open_source(base) as before, open_source(new) as after:
            first = before.version if base_version is None else base_version
            then = max(first + 1, after.version) if new_version is None else new_version
            versions = Versions(first, then)
            make(before, after, delta, versions, classes=classes, threads=threads, key=key, note=note)
        with open_delta(delta, [key.public_key()] if key else None) as made:
            _show(made, output)
    return 0


@app.command("apply")
def apply(
    delta: DeltaFile,
    base: Base,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="what to write; must not be there")],
    *,
    trust: Trust = None,
    threads: Threads = CORES,
) -> int:
    """Write the next version of BASE to NEW. On any error nothing is left there, and BASE is never written to.

    Of a checkpoint, NEW gets the weight files and their index; config.json and other files are no part of a delta.

    Example: flashboot delta apply step-101.delta step-100 step-101 --trust key.pub
    """
    from flashboot_agent.delta.source import ImageSource, open_source
    from flashboot_agent.delta.target import apply_checkpoint, apply_image

    with told(), _opened(delta, trust) as opened, open_source(base) as before:
        if isinstance(before, ImageSource):
            apply_image(opened, before, new, threads=threads)
        else:
            apply_checkpoint(opened, before, new, threads=threads)
        metadata = opened.contents.metadata
        typer.echo(f"{new} is version {metadata.new_version} of {base}: {metadata.result_digest}, {opened.signer}")
    return 0


@app.command("inspect")
def inspect(delta: DeltaFile, *, trust: Trust = None, output: OutputOption = Output.TABLE) -> int:
    """Say what a delta is between and how large its parts are. Compares all of it with its digests.

    Example: flashboot delta inspect step-101.delta --trust key.pub
    """
    with told(), _opened(delta, trust) as opened:
        opened.require_whole()
        _show(opened, output)
    return 0


@app.command("verify")
def verify(delta: DeltaFile, base: Base, *, trust: Trust = None, threads: Threads = CORES) -> int:
    """Say whether DELTA applies to BASE: trailer, digests of base and result. Nothing is written.

    Example: flashboot delta verify step-101.delta step-100 --trust key.pub
    """
    from flashboot_agent.delta.apply import verify
    from flashboot_agent.delta.source import open_source

    with told(), _opened(delta, trust) as opened, open_source(base) as before:
        verify(opened, before, threads=threads)
        metadata = opened.contents.metadata
        typer.echo(f"{delta} makes version {metadata.new_version} of {base}: {metadata.result_digest}, {opened.signer}")
    return 0


@contextmanager
def _opened(path: Path, trust: Sequence[Path] | None) -> Iterator[Delta]:
    from flashboot_agent.delta.file import open_delta

    with open_delta(path, keys(trust)) as opened:
        yield opened


def _show(delta: Delta, output: Output) -> None:
    metadata, header, modes = delta.contents.metadata, delta.header, delta.contents.table.modes
    size = delta.path.stat().st_size
    document: dict[str, Any] = {
        **metadata.model_dump(mode="json", by_alias=True),
        "signer": delta.signer,
        "imageBytes": header.nbytes,
        "fileBytes": size,
        "bodyBytes": header.body_bytes,
        "timesSmaller": round(header.nbytes / size, 1),
        "chunks": {name: modes.count(mode) for mode, name in enumerate(("same", "sparse", "raw"))},
    }
    chunks = ", ".join(f"{count} {name}" for name, count in document["chunks"].items() if count)
    rows = [
        ("versions", metadata.versions()),
        ("of", f"{metadata.subject} {metadata.content}, {show_size(header.nbytes)}"),
        ("base", metadata.base_digest),
        ("result", metadata.result_digest),
        ("changed", f"{metadata.changed} elements"),
        ("file", f"{show_size(size)}, {document['timesSmaller']} times smaller"),
        ("chunks", chunks),
        ("signer", delta.signer),
        ("note", metadata.note),
    ]
    emit(output, document, table(("WHAT", "VALUE"), [row for row in rows if row[1]]))


app.command("pull")(delta_pull.command)
app.command("trace")(delta_engine.trace)
app.command("convert")(delta_engine.convert)
