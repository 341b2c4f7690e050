"""Make a real checkpoint in the Hugging Face layout: config, tokenizer, sharded safetensors with an index.

    python -m demo.checkpoint OUT --size demo|tiny --arch qwen3_moe|llama|qwen2

The same seed gives the same bytes on every machine: weights come from the raw bits of PCG64 (whose stream numpy
guarantees) and integer arithmetic, never from a library's normal distribution. The folder appears under its final
name only when it is complete.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from demo.architectures import SHAPES, Arch, Size, Tensor, config, tensors
from demo.tokenizer import write_tokenizer

INDEX: Final = "model.safetensors.index.json"
SHARDS: Final[dict[Size, int]] = {"demo": 4, "tiny": 2}


def bf16_bytes(tensor: Tensor, seed: int) -> bytes:
    """The tensor's bytes, bfloat16 little-endian: uniform in ±scale, from a stream of its own (seed and name)."""
    count = math.prod(tensor.shape)
    if tensor.scale == 0.0:
        return np.full(count, 0x3F80, dtype="<u2").tobytes()  # 1.0
    bits = np.random.PCG64([seed, zlib.crc32(tensor.name.encode())]).random_raw(-(-count // 4))
    values = np.ascontiguousarray(bits.astype("<u8")).view("<i2")[:count].astype(np.float32)
    values *= np.float32(tensor.scale / 32768.0)
    return (values.view("<u4") >> np.uint32(16)).astype("<u2").tobytes()


def split(wanted: list[Tensor], shards: int) -> list[list[Tensor]]:
    """Consecutive runs of about equal bytes, none empty."""
    total = sum(math.prod(tensor.shape) for tensor in wanted)
    runs: list[list[Tensor]] = [[]]
    done = 0
    for tensor in wanted:
        if len(runs) < shards and runs[-1] and done >= total * len(runs) / shards:
            runs.append([])
        runs[-1].append(tensor)
        done += math.prod(tensor.shape)
    return runs


def write_safetensors(path: Path, run: list[Tensor], seed: int) -> int:
    """One shard in the published safetensors format (length, JSON header padded to 8, bytes); returns its data bytes.

    Written by hand so that the file's bytes depend on nothing but this module.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in run:
        begin, end = end, end + 2 * math.prod(tensor.shape)
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in run:
            file.write(bf16_bytes(tensor, seed))
    return end


def write_weights(folder: Path, wanted: list[Tensor], shards: int, seed: int) -> int:
    """Shards and index; returns the bytes of all tensors."""
    runs = split(wanted, shards)
    weight_map: dict[str, str] = {}
    total = 0
    for number, run in enumerate(runs, start=1):
        name = f"model-{number:05d}-of-{len(runs):05d}.safetensors"
        total += write_safetensors(folder / name, run, seed)
        weight_map |= dict.fromkeys((tensor.name for tensor in run), name)
    _write_json(
        folder / INDEX,
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )
    return total


def make_checkpoint(out: Path, *, arch: Arch = "qwen3_moe", size: Size = "demo", seed: int = 7) -> int:
    """Write the checkpoint to `out`, which must not exist; returns the bytes of all tensors.

    Raises:
        ValueError: there is no such size of this architecture.
        FileExistsError: `out` is there already.
    """
    shape = SHAPES.get((arch, size))
    if shape is None:
        raise ValueError(f"no {size} checkpoint of {arch}: choose one of {sorted(SHAPES)}")
    if out.exists():
        raise FileExistsError(f"{out} exists; remove it or choose another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        os.chmod(folder, 0o755)  # read by containers of another user
        _write_json(folder / "config.json", config(arch, shape))
        _write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False})
        write_tokenizer(folder, shape.vocab)
        total = write_weights(folder, list(tensors(arch, shape)), SHARDS[size], seed)
        folder.rename(out)
    except BaseException:  # whatever it was: half a checkpoint is of no use
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return total


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make a deterministic checkpoint in the Hugging Face layout.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=("demo", "tiny"), default="demo")
    parser.add_argument("--arch", choices=("qwen3_moe", "llama", "qwen2"), default="qwen3_moe")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args(arguments)
    try:
        total = make_checkpoint(chosen.out, arch=chosen.arch, size=chosen.size, seed=chosen.seed)
    except (ValueError, OSError) as error:
        print(f"checkpoint: {error}", file=sys.stderr)
        return 1
    print(f"{chosen.out}: {total} bytes of weights ({total / (1 << 20):.1f} MiB), {chosen.arch}, {chosen.size}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
