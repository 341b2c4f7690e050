"""docs/compatibility.md: the models that are carried, with what they leave in an arena, and what is refused.

Written from what the tests measured, and only with what is the same on every machine.
`FLASHBOOT_WRITE_DOCS=1` writes the file instead of comparing it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from flashboot_agent.core.errors import FlashBootError
from flashboot_agent.engine import support
from tests.engine import refused, runtime, tokens, trios
from tests.engine.rank_loads import CUTS
from tests.engine.runtime import CASES
from tests.engine.trios import Trio

FILE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"

NO_FORWARD: Final = ("DeepseekV3ForCausalLM", "DeepseekV4ForCausalLM")
"""SGLang itself has no forward pass for these on a CPU without its compiled kernels."""


@dataclass(frozen=True)
class Row:
    """What one model leaves in its arena, and where seed and attached model differ from plain SGLang."""

    cls: str
    tied: bool
    bindings: int
    shared: int
    derived: int
    runtime: int
    stamped: int
    deleted: int
    seed: str
    attach: str
    tokens: str


def row(trio: Trio, runner: Any) -> Row:
    """`runner`: of SGLang, for the tokens (tokens.py)."""
    layout = trio.layout
    kinds = [storage.kind for storage in layout.storages]
    return Row(
        cls=type(trio.plain).__name__,
        tied=trio.plain.config.tie_word_embeddings,
        bindings=len(layout.bindings),
        shared=kinds.count("shared"),
        derived=kinds.count("derived"),
        runtime=kinds.count("runtime"),
        stamped=sum(map(len, layout.scalars.values())),
        deleted=sum(map(len, layout.deleted.values())),
        seed=_verdict(trios.differences(trio.plain, trio.seeded, layout)),
        attach=_verdict(trios.differences(trio.plain, trio.attached, layout)),
        tokens=_tokens(trio, runner),
    )


def _tokens(trio: Trio, runner: Any) -> str:
    if type(trio.plain).__name__ in NO_FORWARD:
        return "no forward pass on a CPU"
    expected = tokens.greedy(runner, trio.plain)
    same = all(tokens.greedy(runner, model) == expected for model in (trio.seeded, trio.attached))
    return "equal" if same else "**differ**"


def _verdict(found: list[str]) -> str:
    return f"**differs**: {found[0]}" if found else "equal"


def document(rows: dict[str, Row], any_model: Path) -> str:
    lines = [HEAD]
    lines += ["| model | tied | places | shared | derived | runtime | stamped | removed | seed | attach | tokens |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|---|"]
    for name in CASES:
        each = rows[name]
        numbers = (each.bindings, each.shared, each.derived, each.runtime, each.stamped, each.deleted)
        cells = (each.cls, "yes" if each.tied else "no", *map(str, numbers), each.seed, each.attach, each.tokens)
        lines.append(f"| {' | '.join(cells)} |")
    cuts = [f"* {rows[name].cls}: {cut}" for name, every in CUTS.items() for cut in every]
    lines += ["", RANKS, *cuts, "", NOTES, REFUSED]
    lines += ["| what | reason | message |", "|---|---|---|"]
    lines += [f"| {what} | {error.reason} | {error} |" for what, error in _refusals(any_model)]
    return "\n".join(lines) + "\n"


def _refusals(any_model: Path) -> list[tuple[str, FlashBootError]]:
    from sglang.srt.runtime_context import get_context

    found = []
    for what, (config, _) in refused.MODELS.items():
        runtime.publish(any_model)
        found.append((what, _refusal(config)))
    for what, arguments in refused.FLAGS.items():
        config = runtime.publish(any_model)
        get_context().override("test", **arguments)
        found.append((f"`{what}`", _refusal(config)))
    with pytest.raises(FlashBootError) as caught:
        support.require_version("0.0.0")
    return [*found, ("another SGLang", caught.value)]


def _refusal(config: object) -> FlashBootError:
    with pytest.raises(FlashBootError) as caught:
        support.require_supported(config)
    return caught.value


def compare(text: str) -> None:
    """Raises AssertionError when the file says something else."""
    print(text)
    if os.environ.get("FLASHBOOT_WRITE_DOCS"):
        FILE.write_text(text, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == text, f"{FILE} is out of date: run with FLASHBOOT_WRITE_DOCS=1"


HEAD: Final = """# Compatibility

Written by `tests/engine/test_parity.py`, which fails when it says something else than this file. SGLang 0.5.23, host
memory, one rank of each model, tiny random checkpoints in the published layouts.

## What is carried

*seed* and *attach* are compared with plain SGLang: every tensor by place, shape, stride, type, class, bytes and
metadata, every tie, every scalar and object beside them; shared ones lie in the one arena, none is on the meta device.
*tokens*: greedy tokens by SGLang's own runner and forward pass, of the plain, the seeded and the attached model.

Of the storages, *shared* ones are one memory for all engines of a node, read-only; *derived* ones (made by the load, as
MLA's `w_kc`) and *runtime* ones (buffers) are private copies. *stamped* and *removed*: attributes that the load left or
took away, which an attaching engine gets from the layout, because it runs no load.
"""

RANKS: Final = """## Several ranks

Each rank of these models, as a seed and attached, has what plain SGLang loads into that rank, and bytes of its own
(`tests/engine/test_ranks.py`), cut in these ways; others were not compared in several ranks:
"""

NOTES: Final = """## What to know of these

* The published checkpoints of DeepSeek are quantised (block FP8, V4's experts MXFP4) and refused so far; what is
  proven here is their form in bfloat16.
* DeepSeek-V4 on a CPU needs `SGLANG_OPT_USE_TILELANG_MHC_PRE=0`, because SGLang ends its load with a GPU's kernels
  else. Layers with a window only (compression ratio 0, as V4-Flash begins) can't be built by SGLang on a CPU; the
  tiny checkpoint has layers of the ratios 4 and 128.
* Block FP8 with float scales and with `scale_fmt: ue8m0` is proven at the loader's level
  (`tests/engine/test_block_fp8.py`): SGLang's branch for GPUs, run over host memory, is bit-equal as a seed and
  attached, MLA's requantised copies included. Not proven: what DeepGEMM makes of the scales (packed ue8m0, another
  stride), MXFP8, and AMX packing; the first two need a GPU, the third a compiled `sgl_kernel` and a CPU with AMX.
"""

REFUSED: Final = """## What is refused

Before a byte moves, with these words, in the engine's log and in the pod's status.
"""
