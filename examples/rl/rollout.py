"""The side that serves: weights in one piece of memory, which deltas bring forward while the policy does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from policy import QUESTIONS, over, reward
from torch import Tensor

from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.sync.origin import Origin
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.resident import ResidentArena
from flashboot_agent.sync.tensors import TensorPlaces
from flashboot_agent.sync.torch_tensors import specs_of, tensor_bytes


class Rollout:
    def __init__(self, weights: dict[str, Tensor], version: int, origin: Origin, folder: Path) -> None:
        """`weights`: of this version, as the checkpoint has them from which both sides begin."""
        places = TensorPlaces(specs_of(weights))
        memory = bytearray(places.nbytes)
        views: dict[str, Any] = {}
        for name, tensor in weights.items():
            begin, end = places.extent(name)
            memory[begin:end] = tensor_bytes(tensor)
            part = torch.frombuffer(memory, dtype=tensor.dtype, offset=begin, count=tensor.numel())
            views[name] = part.view(tensor.shape)
        self.weights, self.policy = views, over(views)
        source = MemorySource(memoryview(memory), places.runs, places.content, "the rollout's weights", places.subject)
        self.arena = ResidentArena(source, version, chunk_digests(memory), folder / "arena")
        self._receiver = Receiver(origin, folder / "spool", trusted=None)

    def follow(self) -> int:
        """Bring the weights to the newest version; how many bytes that took. Nothing samples meanwhile."""
        return sum(step.nbytes for step in self._receiver.follow(self.arena))

    def sample(self, count: int, dice: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Questions, answers, rewards."""
        questions = torch.randint(QUESTIONS, (count,), generator=dice)
        chances = torch.softmax(self.policy(questions).float(), -1)
        answers = torch.multinomial(chances, 1, generator=dice)[:, 0]
        return questions, answers, reward(questions, answers)
