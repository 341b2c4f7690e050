"""Reinforcement learning in plain PyTorch whose rollouts get each step's weights as a delta. README.md tells more.

The trainer has FP32 masters and publishes their BF16 values after each step; the rollout samples from its own memory,
which deltas bring forward. After each step both sides are compared, byte by byte.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from policy import Policy
from rollout import Rollout
from torch import Tensor
from torch.nn import functional

from flashboot_agent.sync.http import HttpOrigin
from flashboot_agent.sync.origin import DirectoryOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.tensors import TensorPlaces
from flashboot_agent.sync.torch_tensors import add_all, specs_of, tensor_bytes


def cast(policy: Policy) -> dict[str, Tensor]:
    """What is served of the masters."""
    return {name: tensor.detach().to(torch.bfloat16) for name, tensor in policy.state_dict().items()}


def improve(policy: Policy, optimizer: torch.optim.Optimizer, questions: Tensor, answers: Tensor, gain: Tensor) -> None:
    """One step of REINFORCE with the mean as baseline."""
    chances = functional.log_softmax(policy(questions), -1)
    taken = chances.gather(1, answers[:, None])[:, 0]
    loss = -(taken * (gain - gain.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def run(folder: Path, steps: int, rate: float, url: str | None) -> dict[str, object]:
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate)
    weights = cast(policy)
    origin = HttpOrigin(url) if url else DirectoryOrigin(folder / "published")
    rewards, sent = [], []
    with Publisher(folder / "published", TensorPlaces(specs_of(weights))) as publisher:
        publisher.begin(0)
        add_all(publisher, weights)
        publisher.commit()
        rollout = Rollout(weights, 0, origin, folder / "rollout")
        for step in range(1, steps + 1):
            questions, answers, gain = rollout.sample(256, dice)
            improve(policy, optimizer, questions, answers, gain)
            weights = cast(policy)
            publisher.begin(step)
            add_all(publisher, weights)
            pending = publisher.commit()
            # What else the trainer has to do goes here, while a thread encodes: saving, logging, the next batch.
            pending.result()
            sent.append(rollout.follow())
            rewards.append(round(float(gain.mean()), 3))
            same = all(tensor_bytes(rollout.weights[name]) == tensor_bytes(weights[name]) for name in weights)
            if not same or rollout.arena.version != step:
                raise SystemExit(f"step {step}: the rollout has other bytes than the trainer")
            print(f"step {step}: reward {rewards[-1]}, {sent[-1]} bytes sent", file=sys.stderr)
    full = sum(tensor.nbytes for tensor in weights.values())
    return {"steps": steps, "rewards": rewards, "bytesSent": sent, "bytesOfWeights": full}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to publish and receive (default: a temporary one)")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate; 1e-6 is a large model's")
    parser.add_argument("--url", help="receive from here: an HTTP server of FOLDER/published")
    known = parser.parse_args(arguments)
    if known.folder:
        print(json.dumps(run(known.folder, known.steps, known.rate, known.url)))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(Path(folder), known.steps, known.rate, known.url)))


if __name__ == "__main__":
    main(sys.argv[1:])
