"""Shapes of the checkpoints that the demo and the tests make: config.json and the tensors that go with it.

Pure: numbers in, names and shapes out. Names and shapes are those of the published layout of each architecture, so that
SGLang (and, but for DeepSeek-V4, transformers) loads the result like any published checkpoint. The DeepSeek models
stand in deepseek.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Arch = Literal["qwen3_moe", "llama", "qwen2", "qwen3", "deepseek_v3", "deepseek_v4"]
Size = Literal["demo", "tiny"]
DType = Literal["BF16", "F32", "I32", "F8_E4M3"]
Draw = Literal["uniform", "positive", "powers", "below"]


@dataclass(frozen=True)
class Shape:
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    experts: int = 0
    moe_intermediate: int = 0
    experts_per_token: int = 2
    positions: int = 2048
    tied: bool = False
    """The output layer is the embedding itself (one tensor, two names in the model, one in the files)."""


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    scale: float
    """Half the width of the uniform distribution; 0 means all ones (norm weights)."""
    dtype: DType = "BF16"
    draw: Draw = "uniform"
    """`positive`: up to `scale`; `powers`: of two, up to `scale`; `below`: whole numbers from 0 to under `scale`."""


DENSE: tuple[Arch, ...] = ("llama", "qwen2", "qwen3")
SHAPES: dict[tuple[Arch, Size], Shape] = {
    ("qwen3_moe", "demo"): Shape(2048, 512, 8, 8, 2, 64, 1024, experts=16, moe_intermediate=656),
    ("qwen3_moe", "tiny"): Shape(2048, 128, 2, 4, 2, 32, 256, experts=8, moe_intermediate=64),
    ("llama", "tiny"): Shape(2048, 128, 2, 4, 2, 32, 256),
    ("qwen2", "tiny"): Shape(2048, 128, 2, 4, 2, 32, 256, tied=True),
    ("qwen3", "tiny"): Shape(2048, 128, 2, 4, 2, 32, 256, tied=True),
}

_CLASS: dict[Arch, str] = {
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def config(arch: Arch, shape: Shape) -> dict[str, Any]:
    """config.json as transformers and SGLang read it."""
    common: dict[str, Any] = {
        "architectures": [_CLASS[arch]],
        "model_type": arch,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "attention_bias": False,
    }
    if arch == "qwen3_moe":
        common |= {
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.experts_per_token,
            "moe_intermediate_size": shape.moe_intermediate,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
            "router_aux_loss_coef": 0.001,
        }
    return common


def tensors(arch: Arch, shape: Shape) -> Iterator[Tensor]:
    """All tensors in a fixed order.

    Scales keep activations of order one through the layers and give the layers as much say as the residual, so that
    the greedy token depends on the whole prompt and not on the last token alone.
    """
    hidden, query, key = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield Tensor("model.embed_tokens.weight", (shape.vocab, hidden), 1.0 if not shape.tied else 0.25)
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        yield Tensor(f"{layer}.input_layernorm.weight", (hidden,), 0.0)
        for part, width in (("q", query), ("k", key), ("v", key)):
            yield linear(f"{layer}.self_attn.{part}_proj.weight", width, hidden)
            if arch == "qwen2":
                yield Tensor(f"{layer}.self_attn.{part}_proj.bias", (width,), 0.5)
        if arch in ("qwen3", "qwen3_moe"):
            yield Tensor(f"{layer}.self_attn.q_norm.weight", (shape.head_dim,), 0.0)
            yield Tensor(f"{layer}.self_attn.k_norm.weight", (shape.head_dim,), 0.0)
        yield linear(f"{layer}.self_attn.o_proj.weight", hidden, query)
        yield Tensor(f"{layer}.post_attention_layernorm.weight", (hidden,), 0.0)
        if arch == "qwen3_moe":
            yield linear(f"{layer}.mlp.gate.weight", shape.experts, hidden)
            for expert in range(shape.experts):
                yield from mlp(f"{layer}.mlp.experts.{expert}", hidden, shape.moe_intermediate)
        else:
            yield from mlp(f"{layer}.mlp", hidden, shape.intermediate)
    yield Tensor("model.norm.weight", (hidden,), 0.0)
    if not shape.tied:
        yield linear("lm_head.weight", shape.vocab, hidden)


def linear(name: str, out: int, into: int) -> Tensor:
    return Tensor(name, (out, into), 2.0 * into**-0.5)


def mlp(
    prefix: str, hidden: int, width: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> Iterator[Tensor]:
    for part in names[:2]:
        yield linear(f"{prefix}.{part}.weight", width, hidden)
    yield linear(f"{prefix}.{names[2]}.weight", hidden, width)
