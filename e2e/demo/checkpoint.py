"""Make a real checkpoint in the Hugging Face layout: config, tokenizer, sharded safetensors with an index.

    python -m demo.checkpoint OUT --size demo|tiny --arch ARCH [--tied | --no-tied] [--fp8 float|ue8m0]

The same seed gives the same bytes on every machine (draws.py). The folder appears under its final name only when it is
complete.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, get_args

from demo.architectures import Arch, Size, Tensor
from demo.draws import data_bytes, drawn
from demo.recipes import Fp8, recipe
from demo.tokenizer import write_tokenizer

INDEX: Final = "model.safetensors.index.json"
SHARDS: Final[dict[Size, int]] = {"demo": 4, "tiny": 2}


def split(wanted: list[Tensor], shards: int) -> list[list[Tensor]]:
    """Consecutive runs of about equal bytes, none empty."""
    total = sum(map(data_bytes, wanted))
    runs: list[list[Tensor]] = [[]]
    done = 0
    for tensor in wanted:
        if len(runs) < shards and runs[-1] and done >= total * len(runs) / shards:
            runs.append([])
        runs[-1].append(tensor)
        done += data_bytes(tensor)
    return runs


def write_safetensors(path: Path, run: list[Tensor], seed: int) -> int:
    """One shard in the published safetensors format (length, JSON header padded to 8, bytes); returns its data bytes.

    Written by hand so that the file's bytes depend on nothing but this module.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in run:
        begin, end = end, end + data_bytes(tensor)
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in run:
            file.write(drawn(tensor, seed))
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


def make_checkpoint(
    out: Path,
    *,
    arch: Arch = "qwen3_moe",
    size: Size = "demo",
    seed: int = 7,
    tied: bool | None = None,
    fp8: Fp8 | None = None,
) -> int:
    """Write the checkpoint to `out`, which must not exist; returns the bytes of all tensors.

    `tied`: whether the output layer is the embedding; the architecture's habit when None.

    Raises:
        ValueError: there is no such checkpoint of this architecture.
        FileExistsError: `out` is there already.
    """
    wanted = recipe(arch, size, tied=tied, fp8=fp8)
    if out.exists():
        raise FileExistsError(f"{out} exists; remove it or choose another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        os.chmod(folder, 0o755)  # read by containers of another user
        _write_json(folder / "config.json", wanted.config)
        _write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False})
        write_tokenizer(folder, wanted.vocab)
        total = write_weights(folder, wanted.tensors, SHARDS[size], seed)
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
    parser.add_argument("--arch", choices=get_args(Arch), default="qwen3_moe")
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, help="the output layer is the embedding")
    parser.add_argument("--fp8", choices=get_args(Fp8), help="block FP8, with any scales or with powers of two")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args(arguments)
    try:
        total = make_checkpoint(
            chosen.out, arch=chosen.arch, size=chosen.size, seed=chosen.seed, tied=chosen.tied, fp8=chosen.fp8
        )
    except (ValueError, OSError) as error:
        print(f"checkpoint: {error}", file=sys.stderr)
        return 1
    print(f"{chosen.out}: {total} bytes of weights ({total / (1 << 20):.1f} MiB), {chosen.arch}, {chosen.size}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
