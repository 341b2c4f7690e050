"""`flashboot delta trace|convert`: what needs SGLang's own loader, in an engine's image or environment."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from flashboot_operator.cli.delta_parts import told
from flashboot_operator.cli.errors import CannotDo
from flashboot_operator.cli.output import Output, OutputOption, emit, table
from flashboot_operator.cli.units import show_size

Image = Annotated[Path, typer.Argument(metavar="IMAGE", help="arena image of any version, with this identity")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="-- ENGINE ARGUMENTS", help="as the engine is started, after --")
]


def trace(
    image: Image,
    path: Annotated[Path, typer.Argument(metavar="MAP", help="the file to write; must not be there")],
    arguments: Arguments = None,
    *,
    output: OutputOption = Output.TABLE,
) -> int:
    """Write the permutation map of an arena: which of its bytes are copies of which bytes of a checkpoint's tensors.

    Example: flashboot delta trace arena.image policy.map -- --model-path /models/policy --device cpu
    --model-loader-extra-config '{"flashboot": {"model": "org/policy", "revision": "1"}}'
    """
    with _engine("trace", path):
        from flashboot_agent.engine.offline import trace_map

        traced = trace_map(image, path, arguments or [])
    document = {
        "path": str(path),
        "layoutDigest": traced.layout_digest,
        "arenaBytes": traced.arena_bytes,
        "tensors": len(traced.tensors),
        "runs": len(traced.runs),
    }
    rows = [
        ("map", str(path)),
        ("of", f"layout {traced.layout_digest}, {show_size(traced.arena_bytes)}"),
        ("tensors", str(len(traced.tensors))),
        ("runs", str(len(traced.runs))),
    ]
    emit(output, document, table(("WHAT", "VALUE"), rows))
    return 0


def convert(
    image: Image,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="the image to write; must not be there")],
    arguments: Arguments = None,
    *,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", min=0, help="of the new image; default: the next one")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Write the arena image of a checkpoint, by the engine's own loading, layer by layer.

    Example: flashboot delta convert arena.image next.image -- --model-path /models/policy-101 --device cpu
    --model-loader-extra-config '{"flashboot": {"model": "org/policy", "revision": "1"}}'
    """
    with _engine("convert", new):
        from flashboot_agent.engine.offline import convert_image

        digest = convert_image(image, new, arguments or [], version)
    emit(
        output,
        {"path": str(new), "digest": digest},
        table(("WHAT", "VALUE"), [("image", str(new)), ("digest", digest)]),
    )
    return 0


@contextlib.contextmanager
def _engine(word: str, new: Path) -> Iterator[None]:
    """Raises CannotDo where there is no engine."""
    if new.exists() or new.is_symlink():
        raise CannotDo(f"{new} is there already; name a new one")
    if missing := [name for name in ("sglang", "torch", "safetensors") if find_spec(name) is None]:
        raise CannotDo(
            f"flashboot delta {word} loads a model as SGLang does, and finds no {', '.join(missing)} here: "
            "run it in the engine's image (docs/engine.md)"
        )
    with told(), contextlib.redirect_stdout(sys.stderr):  # what SGLang prints
        yield
