"""A synthetic checkpoint of a mixture-of-experts model: 19,945 tensors in four files with an index, always the same.

Written byte by byte here, in the order the safetensors library uses (widest type first, then by name), so that no peer
is needed to make it. Kept in the cache of e2e/setup_env: gigabytes, made once.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from setup_env.cache import Cache

_FILES = 4
_LAYERS = 26
_EXPERTS = 253
_HIDDEN = 512
_RECIPE = "1"
"""Count up when the bytes change."""
_BYTES = {"F32": 4, "I32": 4, "BF16": 2, "F8_E4M3": 1}


@dataclass(frozen=True)
class Spec:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return _BYTES[self.dtype] * math.prod(self.shape)


def specs(total_bytes: int) -> list[Spec]:
    """The tensors, in the model's order: their sizes add up to a little less than `total_bytes`."""
    vocabulary = int(total_bytes * 0.08) // (_HIDDEN * 2)
    columns = int(total_bytes * 0.10) // (_LAYERS * 4) // (_HIDDEN * 2)
    others = 2 * vocabulary * _HIDDEN * 2 + _LAYERS * 4 * columns * _HIDDEN * 2 + _LAYERS * _EXPERTS * (_HIDDEN + 1) * 4
    expert = (total_bytes - others) // (_LAYERS * _EXPERTS * 3)
    result = [Spec("model.embed_tokens.weight", "BF16", (vocabulary, _HIDDEN))]
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}."
        result += [Spec(f"{at}self_attn.{n}_proj.weight", "BF16", (columns, _HIDDEN)) for n in "qkvo"]
        result.append(Spec(f"{at}input_layernorm.weight", "BF16", (_HIDDEN,)))
        result.append(Spec(f"{at}post_attention_layernorm.weight", "F32", (_HIDDEN,)))
        result.append(Spec(f"{at}mlp.gate.weight", "F32", (_EXPERTS, _HIDDEN)))
        result.append(Spec(f"{at}mlp.gate.expert_map", "I32", (_EXPERTS,)))
        dtype = "F8_E4M3" if layer % 4 == 3 else "BF16"
        shape = (expert // 256 // _BYTES[dtype], 256)
        result += [
            Spec(f"{at}mlp.experts.{e}.{n}_proj.weight", dtype, shape)
            for e in range(_EXPERTS)
            for n in ("gate", "up", "down")
        ]
    result.append(Spec("model.norm.weight", "BF16", (_HIDDEN,)))
    result.append(Spec("lm_head.weight", "BF16", (vocabulary, _HIDDEN)))
    return result


def ensure(total_bytes: int) -> Path:
    """The folder of the checkpoint."""
    return Cache().entry("bench-checkpoint", [str(total_bytes), _RECIPE], lambda into: write(into, specs(total_bytes)))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def write(into: Path, tensors: list[Spec]) -> None:
    """Four files and the index. The same tensors give the same bytes."""
    total = sum(spec.nbytes for spec in tensors)
    shards: list[list[Spec]] = [[] for _ in range(_FILES)]
    done = 0
    for spec in tensors:
        shards[min(done * _FILES // total, _FILES - 1)].append(spec)
        done += spec.nbytes
    where: dict[str, str] = {}
    random = np.random.Generator(np.random.PCG64(7))
    for number, shard in enumerate(shards):
        name = f"model-{number + 1:05d}-of-{_FILES:05d}.safetensors"
        where |= dict.fromkeys((spec.name for spec in shard), name)
        _write_file(into / name, sorted(shard, key=lambda s: (-_BYTES[s.dtype], s.name)), random)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (into / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_file(path: Path, shard: list[Spec], random: np.random.Generator) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in shard:
        header[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [end, end + spec.nbytes]}
        end += spec.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, 64 << 20):
            file.write(random.bytes(min(64 << 20, end - start)))
