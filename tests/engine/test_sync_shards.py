"""Trainers whose weights are in shards publish what one with whole tensors would, and gather nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.shard_writer import ShardWriter
from flashboot_agent.sync.shared_images import SharedImages
from flashboot_agent.sync.tensors import TensorPlaces
from flashboot_agent.sync.torch_tensors import Adds, add_all, add_tensor, specs_of
from tests.engine.servers import ROOT

# FSDP2 in real processes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What shard_ranks.py says."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.shard_ranks", tmp_path_factory.mktemp("ranks")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "agent")))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_processes_that_add_their_own_shards_publish_what_whole_tensors_are(ranks: Any) -> None:
    """Uneven and empty shards, replicas, columns, and rows that are cut twice."""
    assert len(ranks["ways"]) == 3
    for way, found in ranks["ways"].items():
        assert found["shards"] == found["whole"], way
        assert len(set(found["whole"])) == 3, "each step changed something"
    shapes = ranks["ways"]["FSDP"]["shapes"]
    assert [mine["down.weight"] for mine in shapes] == [[1, 14], [1, 14], [1, 14], [0, 14]]
    assert [mine["up.weight"] for mine in shapes] == [[4, 5], [4, 5], [4, 5], [2, 5]]
    assert len({json.dumps(found["shapes"]) for found in ranks["ways"].values()}) == 3


def test_summands_are_refused(ranks: Any) -> None:
    assert "w is a sum that is not formed yet" in ranks["refused"]


# Plain tensors as Megatron cuts them ----------------------------------------------------------------------------

TP, HIDDEN, GROUPS, QUERIES, HEAD, FFN, VOCAB, PADDED = 2, 8, 4, 3, 2, 6, 13, 16
"""`QUERIES` heads per group of a key and a value head; the vocabulary is padded to a multiple."""


def checkpoint() -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = {
        "q_proj": (GROUPS * QUERIES * HEAD, HIDDEN),
        "k_proj": (GROUPS * HEAD, HIDDEN),
        "v_proj": (GROUPS * HEAD, HIDDEN),
        "o_proj": (HIDDEN, GROUPS * QUERIES * HEAD),
        "gate_proj": (FFN, HIDDEN),
        "up_proj": (FFN, HIDDEN),
        "down_proj": (HIDDEN, FFN),
        "embed_tokens": (VOCAB, HIDDEN),
        "norm": (HIDDEN,),
    }
    return {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}


def megatron(whole: dict[str, Any], rank: int) -> dict[str, Any]:
    """What a rank has: heads by groups, gate and up of its own, rows or columns."""
    q, k, v = (whole[name].unflatten(0, (GROUPS, -1)) for name in ("q_proj", "k_proj", "v_proj"))
    padded = torch.nn.functional.pad(whole["embed_tokens"], (0, 0, 0, PADDED - VOCAB))
    return {
        "linear_qkv": torch.cat([q, k, v], 1).chunk(TP)[rank].flatten(0, 1),
        "linear_proj": whole["o_proj"].chunk(TP, 1)[rank],
        "linear_fc1": torch.cat([whole["gate_proj"].chunk(TP)[rank], whole["up_proj"].chunk(TP)[rank]]),
        "linear_fc2": whole["down_proj"].chunk(TP, 1)[rank],
        "word_embeddings": padded.chunk(TP)[rank],
        "layer_norm": whole["norm"],
    }


def add_rank(to: Adds, mine: dict[str, Any], rank: int) -> None:
    """As docs/sparse-sync.md says it."""
    heads = {"q_proj": QUERIES * HEAD, "k_proj": HEAD, "v_proj": HEAD}
    for number, group in enumerate(mine["linear_qkv"].split(sum(heads.values())), rank * GROUPS // TP):
        for name, part in zip(heads, group.split(list(heads.values())), strict=True):
            add_tensor(to, name, part, (number * heads[name], 0))
    for name, part in zip(("gate_proj", "up_proj"), mine["linear_fc1"].chunk(2), strict=True):
        add_tensor(to, name, part, (rank * FFN // TP, 0))
    for name, theirs in (("o_proj", "linear_proj"), ("down_proj", "linear_fc2")):
        add_tensor(to, name, mine[theirs], (0, rank * mine[theirs].shape[1]))
    begin = rank * PADDED // TP
    add_tensor(to, "embed_tokens", mine["word_embeddings"][: max(0, VOCAB - begin)], (begin, 0))
    add_all(to, {"norm": mine["layer_norm"]})


def test_shards_as_megatron_cuts_them_are_added_by_their_offsets(tmp_path: Path) -> None:
    whole = checkpoint()
    places = TensorPlaces(specs_of(whole))
    with (
        SharedImages(tmp_path / "memory", places.nbytes, writers=[1]) as images,
        Publisher(tmp_path / "shards", places, shared=images) as publisher,
        ShardWriter(tmp_path / "memory", places, rank=1) as writer,
    ):
        publisher.begin(0)
        writer.begin(0)
        add_rank(writer, megatron(whole, 1), 1)
        writer.commit()
        add_rank(publisher, megatron(whole, 0), 0)
        by_shards = publisher.commit().result(30).digest
    with Publisher(tmp_path / "whole", places) as publisher:
        publisher.begin(0)
        add_all(publisher, whole)
        assert publisher.commit().result(30).digest == by_shards


# The example ----------------------------------------------------------------------------------------------------


def test_the_example_with_fsdp_has_equal_sides(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = os.environ | {"PYTHONPATH": str(ROOT / "agent"), "OMP_NUM_THREADS": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}  # as torchrun says it
    places = ["--folder", str(tmp_path / "rl"), "--memory", str(tmp_path / "memory")]
    command = [sys.executable, str(ROOT / "examples/rl/train_fsdp.py"), *places, "--steps", "4"]
    processes = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    ends = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], [end[1].decode()[-3000:] for end in ends]
    said = json.loads(ends[0][0])
    assert said["shards"]["heat"] == [[1], [0]], "one process has all of it"
    assert len(said["bytesSent"]) == 4
    assert min(said["bytesSent"]) > 0
