"""Four real processes of a trainer that has its weights in shards, for test_sync_shards.py.

    python -m tests.engine.shard_ranks FOLDER

They are forked from one that has imported torch, and talk over gloo. Each adds what it has of a version, and rank 0
publishes; then it publishes the same versions from gathered tensors, to compare. Prints a JSON object: of each way the
shapes by rank, digests of the versions by shards, and of those by whole tensors; and what is refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.shard_writer import ShardWriter
from flashboot_agent.sync.shared_images import SharedImages
from flashboot_agent.sync.tensors import TensorPlaces
from flashboot_agent.sync.torch_tensors import add_all, add_tensor, specs_of

WORLD: Final = 4
STEPS: Final = 2


class Model(nn.Module):  # type: ignore[misc] # torch is not looked into
    """Sizes that four processes can't share evenly; some are smaller than four."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(5, 14), nn.Linear(14, 3)
        self.heat = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, values: Any) -> Any:
        return self.down(torch.relu(self.up(values))) * self.heat


def rows(model: Model) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))


def columns(model: Model) -> None:
    fully_shard(
        model,
        mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")),
        shard_placement_fn=lambda parameter: Shard(parameter.ndim - 1) if parameter.shape[-1] % 2 == 0 else None,
    )


def both(model: Model) -> None:
    mesh: DeviceMesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shards", "tensors"))
    parallelize_module(model, mesh["tensors"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["shards"])


WAYS: Final[dict[str, Callable[[Model], None]]] = {
    "FSDP": rows,
    "HSDP, of columns where they are even": columns,
    "FSDP and tensor parallelism": both,
}


def served(model: Model) -> dict[str, Any]:
    return {name: value.detach().to(torch.bfloat16) for name, value in model.state_dict().items()}


def gathered(weights: dict[str, Any]) -> dict[str, Any]:
    return {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in weights.items()}


def trained(way: Callable[[Model], None]) -> list[dict[str, Any]]:
    """This process's part of each version."""
    torch.manual_seed(0)
    model = Model()
    way(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = [served(model)]
    for _ in range(STEPS):
        model(torch.ones(4, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(served(model))
    return found


def by_shards(folder: Path, all_versions: list[dict[str, Any]], rank: int) -> list[str]:
    places = TensorPlaces(specs_of(all_versions[0]))
    if rank:
        with ShardWriter(folder / "memory", places, rank, wait_seconds=20) as writer:
            for number, weights in enumerate(all_versions):
                writer.begin(number)
                add_all(writer, weights)
                writer.commit()
        return []
    digests = []
    with (
        SharedImages(folder / "memory", places.nbytes, range(1, WORLD)) as images,
        Publisher(folder / "published", places, shared=images, wait_seconds=20) as publisher,
    ):
        for number, weights in enumerate(all_versions):
            publisher.begin(number)
            add_all(publisher, weights)
            digests.append(publisher.commit().result().digest)
    return digests


def by_whole(folder: Path, all_versions: list[dict[str, Any]]) -> list[str]:
    digests = []
    with Publisher(folder / "whole", TensorPlaces(specs_of(all_versions[0]))) as publisher:
        for number, weights in enumerate(all_versions):
            publisher.begin(number)
            add_all(publisher, weights)
            digests.append(publisher.commit().result().digest)
    return digests


def one_way(folder: Path, way: Callable[[Model], None], rank: int) -> dict[str, Any]:
    all_versions = trained(way)
    shapes = {name: list(each.to_local().shape) for name, each in all_versions[0].items() if isinstance(each, DTensor)}
    shards = by_shards(folder, all_versions, rank)
    whole = [gathered(weights) for weights in all_versions]
    every: list[Any] = [None] * WORLD
    dist.all_gather_object(every, shapes)
    return {"shapes": every, "shards": shards, "whole": by_whole(folder, whole) if rank == 0 else []}


def refused(folder: Path) -> str:
    """Of a tensor that each process has a summand of."""
    mesh = DeviceMesh("cpu", [0])
    summand = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    with Publisher(folder / "refused", TensorPlaces(specs_of({"w": summand}))) as publisher:
        publisher.begin(0)
        try:
            add_tensor(publisher, "w", summand)
        except BadRequest as error:
            return str(error)
    return ""


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    found = {name: one_way(folder / str(number), way, rank) for number, (name, way) in enumerate(WAYS.items())}
    if rank == 0:
        print("\n" + json.dumps({"ways": found, "refused": refused(folder)}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    children = []
    for number in range(WORLD):
        child = os.fork()
        if child == 0:
            main(Path(sys.argv[1]), number)
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
