"""A policy small enough to see what happens: which of four answers to give to one of sixty-four questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

QUESTIONS, ANSWERS, WIDTH = 64, 4, 96


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.question = nn.Embedding(QUESTIONS, WIDTH)
        self.inner = nn.Linear(WIDTH, 4 * WIDTH)
        self.out = nn.Linear(4 * WIDTH, ANSWERS)
        self.heat = nn.Parameter(torch.ones(1))

    def forward(self, questions: Tensor) -> Tensor:
        return self.out(functional.gelu(self.inner(self.question(questions)))) * self.heat


def over(weights: Mapping[str, Any]) -> Policy:
    """A policy that reads these tensors, without a copy: who changes their bytes changes its answers."""
    with torch.device("meta"):
        policy = Policy()
    policy.load_state_dict(weights, assign=True)
    return policy.eval().requires_grad_(False)


def reward(questions: Tensor, answers: Tensor) -> Tensor:
    """1 for the right answer."""
    return (answers == questions * 7 % ANSWERS).float()
