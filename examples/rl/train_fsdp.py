"""train.py with FSDP2: each process adds its own shards of a version, and none gathers a tensor to publish it.

    torchrun --nproc-per-node 2 train_fsdp.py --folder /tmp/rl

Rank 0 publishes; the others write to its image, in memory of the node (--memory). Rollout and comparison are rank 0's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from policy import Policy
from rollout import Rollout
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from train import cast, improve

from flashboot_agent.sync.origin import DirectoryOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.shard_writer import ShardWriter
from flashboot_agent.sync.shared_images import SharedImages
from flashboot_agent.sync.tensors import TensorPlaces
from flashboot_agent.sync.torch_tensors import add_all, specs_of, tensor_bytes

BATCH = 256


@contextmanager
def opened(folder: Path, memory: Path, places: TensorPlaces) -> Iterator[Publisher | ShardWriter]:
    """What this process adds its shards to."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank:
        with ShardWriter(memory, places, rank) as writer:
            yield writer
    else:
        with (
            SharedImages(memory, places.nbytes, writers=range(1, world)) as images,
            Publisher(folder / "published", places, shared=images) as publisher,
        ):
            yield publisher


def publish(to: Publisher | ShardWriter, version: int, weights: dict[str, Tensor]) -> None:
    """The same on all ranks."""
    to.begin(version)
    add_all(to, weights)
    pending = to.commit()
    if pending:
        pending.result()  # here, because the rollout is the next thing that happens


def sampled(rollout: Rollout | None, dice: torch.Generator) -> list[Tensor]:
    """This rank's part of what rank 0 sampled."""
    found = list(rollout.sample(BATCH, dice)) if rollout else []
    for number, kind in enumerate((torch.int64, torch.int64, torch.float32)):
        if not rollout:
            found.append(torch.empty(BATCH, dtype=kind))
        dist.broadcast(found[number], 0)
    return [each.chunk(dist.get_world_size())[dist.get_rank()] for each in found]


def whole(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gathered, to compare. All ranks take part."""
    return {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in weights.items()}


def run(folder: Path, memory: Path, steps: int, rate: float) -> dict[str, object]:
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1)
    policy = Policy()
    fully_shard(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate)
    weights = cast(policy)
    start = whole(weights)
    sent: list[int] = []
    with opened(folder, memory, TensorPlaces(specs_of(weights))) as to:
        publish(to, 0, weights)
        rollout = None
        if isinstance(to, Publisher):
            rollout = Rollout(start, 0, DirectoryOrigin(folder / "published"), folder / "rollout")
        for step in range(1, steps + 1):
            improve(policy, optimizer, *sampled(rollout, dice))
            weights = cast(policy)
            publish(to, step, weights)
            trained = whole(weights)
            if rollout:
                sent.append(rollout.follow())
                if any(tensor_bytes(rollout.weights[name]) != tensor_bytes(trained[name]) for name in trained):
                    raise SystemExit(f"step {step}: the rollout has other bytes than the trainer")
                print(f"step {step}: {sent[-1]} bytes sent", file=sys.stderr)
    mine = {name: list(each.to_local().shape) for name, each in weights.items() if isinstance(each, DTensor)}
    every: list[dict[str, list[int]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return {"bytesSent": sent, "shards": {name: [shapes[name] for shapes in every] for name in mine}}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where to publish and receive")
    parser.add_argument("--memory", type=Path, help="for the images, of twice the weights (default: in /dev/shm)")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate; 1e-6 is a large model's")
    known = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    said = run(known.folder, known.memory or Path("/dev/shm") / known.folder.name, known.steps, known.rate)
    if dist.get_rank() == 0:
        print(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
