"""What goes into one checkpoint: config.json and all tensors of an architecture, tied or not, plain or in block FP8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from demo.architectures import SHAPES, Arch, Shape, Size, Tensor, config, tensors
from demo.deepseek import V3_TINY, V4_TINY, DeepseekArch, DeepseekShape, deepseek_config, v3_tensors, v4_tensors

ALL_SHAPES: Final[dict[tuple[Arch, Size], Shape]] = {
    **SHAPES,
    ("deepseek_v3", "tiny"): V3_TINY,
    ("deepseek_v4", "tiny"): V4_TINY,
}

Fp8 = Literal["float", "ue8m0"]
"""Block FP8 with scales of any value, or with powers of two."""

BLOCK: Final = 128


@dataclass(frozen=True)
class Recipe:
    config: dict[str, Any]
    tensors: list[Tensor]
    vocab: int


def recipe(arch: Arch, size: Size, *, tied: bool | None = None, fp8: Fp8 | None = None) -> Recipe:
    """Raises ValueError when there is no such checkpoint."""
    shape = ALL_SHAPES.get((arch, size))
    if shape is None:
        raise ValueError(f"no {size} checkpoint of {arch}: choose one of {sorted(ALL_SHAPES)}")
    if fp8 is not None:
        shape = _in_blocks(shape)
    if tied is not None:
        shape = replace(shape, tied=tied)
    if isinstance(shape, DeepseekShape):
        if shape.tied:
            raise ValueError(f"{arch} is never tied")
        which: DeepseekArch = "deepseek_v3" if arch == "deepseek_v3" else "deepseek_v4"
        made = deepseek_config(which, shape)
        wanted = list(v3_tensors(shape) if which == "deepseek_v3" else v4_tensors(shape))
    else:
        made = config(arch, shape)
        wanted = list(tensors(arch, shape))
    if fp8 is not None:
        made["quantization_config"] = _quantization(fp8)
        wanted = list(_quantised(wanted, fp8))
    return Recipe(made, wanted, shape.vocab)


def _in_blocks(shape: Shape) -> Shape:
    """Wide enough for whole blocks: SGLang takes fused projections apart at block borders only."""
    wide = replace(shape, hidden=256, intermediate=256, moe_intermediate=128 if shape.experts else 0)
    if isinstance(wide, DeepseekShape):
        return replace(wide, query_rank=128, key_rank=128, nope=128, value=128, rope=128)
    return replace(wide, head_dim=64)


def _quantization(fp8: Fp8) -> dict[str, Any]:
    found: dict[str, Any] = {
        **{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"},
        "weight_block_size": [BLOCK, BLOCK],
    }
    return found | ({"scale_fmt": "ue8m0"} if fp8 == "ue8m0" else {})


def _quantised(wanted: list[Tensor], fp8: Fp8) -> Iterator[Tensor]:
    """Projections become 8-bit weights with a 32-bit scale per block; embeddings, norms, gates and outputs stay."""
    for tensor in wanted:
        if not tensor.name.endswith(("_proj.weight", "_proj_with_mqa.weight")):
            yield tensor
            continue
        blocks = (-(-tensor.shape[0] // BLOCK), -(-tensor.shape[1] // BLOCK))
        yield replace(tensor, dtype="F8_E4M3")
        draw: Literal["powers", "positive"] = "powers" if fp8 == "ue8m0" else "positive"
        yield Tensor(f"{tensor.name}_scale_inv", blocks, tensor.scale, "F32", draw)
