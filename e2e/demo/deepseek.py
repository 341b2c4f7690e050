"""DeepSeek-V3 and DeepSeek-V4 in their published layouts, for checkpoints of any size.

V3 has multi-head latent attention (a low-rank key-value projection that SGLang splits into `w_kc` and `w_vc` after the
load). V4 names its files' tensors by its own reference code; it has compressed attention, hash-routed experts in
the first layers, grouped output projections and hyper-connections in 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from demo.architectures import Shape, Tensor, linear, mlp

DeepseekArch = Literal["deepseek_v3", "deepseek_v4"]


@dataclass(frozen=True)
class DeepseekShape(Shape):
    nope: int = 32
    rope: int = 16
    value: int = 32
    query_rank: int = 64
    key_rank: int = 64
    dense_layers: int = 1
    groups: int = 2
    """Groups of experts (V3), groups of the output projection (V4)."""
    output_rank: int = 32
    compress: tuple[int, ...] = field(default=())
    """Per layer: 0 (a window only), 4 (with an indexer) or 128."""
    index_heads: int = 4
    index_dim: int = 32
    hash_layers: int = 1
    streams: int = 4


V3_TINY = DeepseekShape(2048, 128, 2, 4, 4, 48, 256, experts=8, moe_intermediate=64)
V4_TINY = DeepseekShape(
    2048, 128, 3, 4, 1, 64, 256, experts=8, moe_intermediate=64, compress=(128, 4, 128), dense_layers=0
)


def deepseek_config(arch: DeepseekArch, shape: DeepseekShape) -> dict[str, Any]:
    """config.json as SGLang reads it."""
    common: dict[str, Any] = {
        "model_type": arch,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "moe_intermediate_size": shape.moe_intermediate,
        "num_hidden_layers": shape.layers,
        "num_nextn_predict_layers": 0,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": shape.experts_per_token,
        "first_k_dense_replace": shape.dense_layers,
        "moe_layer_freq": 1,
        "norm_topk_prob": True,
        "topk_method": "noaux_tc",
        "q_lora_rank": shape.query_rank,
        "qk_rope_head_dim": shape.rope,
        "max_position_embeddings": shape.positions,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "rope_scaling": {
            **{"type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
            "original_max_position_embeddings": shape.positions // 4,
        },
    }
    return common | (_v3_config(shape) if arch == "deepseek_v3" else _v4_config(shape))


def _v3_config(shape: DeepseekShape) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "qk_nope_head_dim": shape.nope,
        "v_head_dim": shape.value,
        "kv_lora_rank": shape.key_rank,
        "n_group": shape.groups,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
    }


def _v4_config(shape: DeepseekShape) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "head_dim": shape.head_dim,
        "o_groups": shape.groups,
        "o_lora_rank": shape.output_rank,
        "compress_ratios": list(shape.compress),
        "compress_rope_theta": 160000.0,
        "index_n_heads": shape.index_heads,
        "index_head_dim": shape.index_dim,
        "index_topk": 64,
        "num_hash_layers": shape.hash_layers,
        "hc_mult": shape.streams,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "sliding_window": 128,
        "swiglu_limit": 10.0,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
    }


def v3_tensors(shape: DeepseekShape) -> Iterator[Tensor]:
    """All tensors of DeepSeek-V3 in a fixed order."""
    hidden, heads = shape.hidden, shape.heads
    yield Tensor("model.embed_tokens.weight", (shape.vocab, hidden), 1.0)
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        attention = f"{layer}.self_attn"
        yield Tensor(f"{layer}.input_layernorm.weight", (hidden,), 0.0)
        yield linear(f"{attention}.q_a_proj.weight", shape.query_rank, hidden)
        yield Tensor(f"{attention}.q_a_layernorm.weight", (shape.query_rank,), 0.0)
        yield linear(f"{attention}.q_b_proj.weight", heads * (shape.nope + shape.rope), shape.query_rank)
        yield linear(f"{attention}.kv_a_proj_with_mqa.weight", shape.key_rank + shape.rope, hidden)
        yield Tensor(f"{attention}.kv_a_layernorm.weight", (shape.key_rank,), 0.0)
        yield linear(f"{attention}.kv_b_proj.weight", heads * (shape.nope + shape.value), shape.key_rank)
        yield linear(f"{attention}.o_proj.weight", hidden, heads * shape.value)
        yield Tensor(f"{layer}.post_attention_layernorm.weight", (hidden,), 0.0)
        if number < shape.dense_layers:
            yield from mlp(f"{layer}.mlp", hidden, shape.intermediate)
            continue
        yield linear(f"{layer}.mlp.gate.weight", shape.experts, hidden)
        yield Tensor(f"{layer}.mlp.gate.e_score_correction_bias", (shape.experts,), 0.1, "F32")
        for expert in range(shape.experts):
            yield from mlp(f"{layer}.mlp.experts.{expert}", hidden, shape.moe_intermediate)
        yield from mlp(f"{layer}.mlp.shared_experts", hidden, shape.moe_intermediate)
    yield Tensor("model.norm.weight", (hidden,), 0.0)
    yield linear("lm_head.weight", shape.vocab, hidden)


def v4_tensors(shape: DeepseekShape) -> Iterator[Tensor]:
    """All tensors of DeepSeek-V4 in a fixed order."""
    hidden, streams = shape.hidden, shape.streams
    mixing, wide = (2 + streams) * streams, streams * hidden
    yield Tensor("embed.weight", (shape.vocab, hidden), 1.0)
    for number, ratio in enumerate(shape.compress):
        layer = f"layers.{number}"
        for part in ("attn", "ffn"):
            yield Tensor(f"{layer}.hc_{part}_fn", (mixing, wide), wide**-0.5, "F32")
            yield Tensor(f"{layer}.hc_{part}_base", (mixing,), 0.5, "F32")
            yield Tensor(f"{layer}.hc_{part}_scale", (3,), 0.5, "F32")
            yield Tensor(f"{layer}.{part}_norm.weight", (hidden,), 0.0)
        yield from _v4_attention(f"{layer}.attn", shape, ratio)
        yield linear(f"{layer}.ffn.gate.weight", shape.experts, hidden)
        if number < shape.hash_layers:
            table = (shape.vocab, shape.experts_per_token)
            yield Tensor(f"{layer}.ffn.gate.tid2eid", table, shape.experts, "I32", "below")
        else:
            yield Tensor(f"{layer}.ffn.gate.bias", (shape.experts,), 0.1, "F32")
        names = ("w1", "w3", "w2")
        for expert in range(shape.experts):
            yield from mlp(f"{layer}.ffn.experts.{expert}", hidden, shape.moe_intermediate, names)
        yield from mlp(f"{layer}.ffn.shared_experts", hidden, shape.moe_intermediate, names)
    yield Tensor("norm.weight", (hidden,), 0.0)
    yield linear("head.weight", shape.vocab, hidden)
    yield Tensor("hc_head_fn", (streams, wide), wide**-0.5, "F32")
    yield Tensor("hc_head_base", (streams,), 0.5, "F32")
    yield Tensor("hc_head_scale", (1,), 0.5, "F32")


def _v4_attention(prefix: str, shape: DeepseekShape, ratio: int) -> Iterator[Tensor]:
    hidden, all_heads = shape.hidden, shape.heads * shape.head_dim
    yield Tensor(f"{prefix}.attn_sink", (shape.heads,), 0.5, "F32")
    yield linear(f"{prefix}.wq_a.weight", shape.query_rank, hidden)
    yield Tensor(f"{prefix}.q_norm.weight", (shape.query_rank,), 0.0)
    yield linear(f"{prefix}.wq_b.weight", all_heads, shape.query_rank)
    yield linear(f"{prefix}.wkv.weight", shape.head_dim, hidden)
    yield Tensor(f"{prefix}.kv_norm.weight", (shape.head_dim,), 0.0)
    yield linear(f"{prefix}.wo_a.weight", shape.groups * shape.output_rank, all_heads // shape.groups)
    yield linear(f"{prefix}.wo_b.weight", hidden, shape.groups * shape.output_rank)
    if ratio:
        yield from _v4_compressor(f"{prefix}.compressor", hidden, shape.head_dim, ratio)
    if ratio == 4:
        index = shape.index_heads * shape.index_dim
        yield linear(f"{prefix}.indexer.wq_b.weight", index, shape.query_rank)
        yield linear(f"{prefix}.indexer.weights_proj.weight", shape.index_heads, hidden)
        yield from _v4_compressor(f"{prefix}.indexer.compressor", hidden, shape.index_dim, ratio)


def _v4_compressor(prefix: str, hidden: int, width: int, ratio: int) -> Iterator[Tensor]:
    overlapping = 2 * width if ratio == 4 else width
    yield Tensor(f"{prefix}.ape", (ratio, overlapping), 0.5, "F32")
    yield linear(f"{prefix}.wkv.weight", overlapping, hidden)
    yield linear(f"{prefix}.wgate.weight", overlapping, hidden)
    yield Tensor(f"{prefix}.norm.weight", (width,), 0.0)
