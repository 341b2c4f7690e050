"""A sentence encoder (BERT with mean pooling) in plain PyTorch, with the names of all-MiniLM-L6-v2's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Embeddings(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.word_embeddings = nn.Embedding(config["vocab_size"], width)
        self.position_embeddings = nn.Embedding(config["max_position_embeddings"], width)
        self.token_type_embeddings = nn.Embedding(config["type_vocab_size"], width)
        self.LayerNorm = nn.LayerNorm(width, eps=config["layer_norm_eps"])

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.LayerNorm(
            self.word_embeddings(ids) + self.position_embeddings(positions) + self.token_type_embeddings.weight[0]
        )


class Layer(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner, eps = config["hidden_size"], config["intermediate_size"], config["layer_norm_eps"]
        self.heads = config["num_attention_heads"]
        self.attention = nn.Module()
        self.attention.self = nn.Module()
        for name in ("query", "key", "value"):
            self.attention.self.add_module(name, nn.Linear(width, width))
        self.attention.output = _dense(width, width, eps)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = _dense(inner, width, eps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        at = self.attention
        query, key, value = (
            linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear in (at.self.query, at.self.key, at.self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        x = at.output.LayerNorm(at.output.dense(mixed) + x)
        inner = functional.gelu(self.intermediate["dense"](x))
        return self.output["LayerNorm"](self.output["dense"](inner) + x)


def _dense(width_in: int, width_out: int, eps: float) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": nn.Linear(width_in, width_out), "LayerNorm": nn.LayerNorm(width_out, eps=eps)})


class Encoder(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Unit vectors, one per sentence. `ids`, `mask`: [sentences, tokens]; the mask is 1 where there is a token."""
        x = self.embeddings(ids)
        seen = mask[:, None, None, :].bool()
        for layer in self.encoder.layer:
            x = layer(x, seen)
        weight = mask[:, :, None].to(x.dtype)
        return functional.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)


def build(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Encoder:
    """The model over the weights, without a copy: made on the meta device, then every parameter is one of `weights`.

    Raises RuntimeError when a weight is missing or has another shape.
    """
    with torch.device("meta"):
        model = Encoder(config)
    wanted = {name: weights[name] for name in model.state_dict() if name in weights}
    model.load_state_dict(wanted, assign=True)  # strict: what is missing is an error
    return model.eval().requires_grad_(False)
