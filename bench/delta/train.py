"""`python -m bench.delta.train FILE`: a small mixture of experts, trained on Python's own library and then by a policy
gradient; run by a Python that has torch.

FILE (npz) gets the FP32 master weights and the last update of AdamW per unit of learning rate, so that a pair of
versions for any rate of change is these weights and these weights plus as many times the update.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, EXPERTS, ACTIVE, INNER, HEADS, VOCABULARY = 256, 4, 16, 4, 192, 4, 256
BATCH, LENGTH = 8, 96
PRETRAINING, POLICY_STEPS, GROUP, PROMPTS, PROMPT, SAMPLE = 60, 12, 8, 2, 16, 24


class Norm(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = Norm(), Norm()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.gate_up = nn.Parameter(torch.empty(EXPERTS, WIDTH, 2 * INNER))
        self.down = nn.Parameter(torch.empty(EXPERTS, INNER, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        tokens = self.between(x).view(-1, WIDTH)
        weight, chosen = torch.softmax(self.router(tokens), -1).topk(ACTIVE, -1)
        mixed = torch.zeros_like(tokens)
        for expert in range(EXPERTS):
            rows, place = (chosen == expert).nonzero(as_tuple=True)
            gate, up = (tokens[rows] @ self.gate_up[expert]).chunk(2, -1)
            part = (functional.silu(gate) * up) @ self.down[expert]
            mixed = mixed.index_add(0, rows, part * weight[rows, place, None])
        return x + mixed.view(batch, length, WIDTH)


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.embed(text) + self.place(torch.arange(text.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def corpus() -> torch.Tensor:
    """Bytes of Python's own library: there wherever this runs."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()


def pieces(text: torch.Tensor, count: int, length: int) -> torch.Tensor:
    return torch.stack([text[at : at + length] for at in torch.randint(0, len(text) - length, (count,)).tolist()])


def pretrain(model: Model, text: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(PRETRAINING):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 10)
        sample = pieces(text, BATCH, LENGTH + 1)
        loss = functional.cross_entropy(model(sample[:, :-1]).flatten(0, 1), sample[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.2f}", file=sys.stderr, flush=True)


def policy_gradient(model: Model, text: torch.Tensor) -> None:
    """The gradient that raises the share of lower-case letters in what the model writes, against its group's mean."""
    sample = pieces(text, PROMPTS, PROMPT).repeat_interleave(GROUP, 0)
    with torch.no_grad():
        for _ in range(SAMPLE):
            sample = torch.cat([sample, torch.multinomial(torch.softmax(model(sample)[:, -1], -1), 1)], 1)
    written = sample[:, PROMPT:]
    reward = ((written >= ord("a")) & (written <= ord("z"))).float().mean(1).view(PROMPTS, GROUP)
    advantage = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).flatten()
    chances = torch.log_softmax(model(sample)[:, PROMPT - 1 : -1], -1).gather(-1, written[..., None])[..., 0]
    (-(advantage[:, None] * chances).mean()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def main() -> None:
    torch.manual_seed(1)
    model, text = Model(), corpus()
    pretrain(model, text)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.999), weight_decay=0.0)
    before: dict[str, torch.Tensor] = {}
    for _ in range(POLICY_STEPS):
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        optimizer.zero_grad()
        policy_gradient(model, text)
        optimizer.step()
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        mean, square = state["exp_avg"] / (1 - 0.9**POLICY_STEPS), state["exp_avg_sq"] / (1 - 0.999**POLICY_STEPS)
        found[f"weight/{name}"] = before[name].numpy()
        found[f"update/{name}"] = (-mean / (square.sqrt() + 1e-8)).numpy()
    np.savez(sys.argv[1], **found)


if __name__ == "__main__":
    main()
