"""The configuration of a profile, and the models that lab knows by name.

The built-in architectures are the published configurations (bigscience/bloom-560m, lmsys/vicuna-7b-v1.5), so
that a machine without network or weights runs the same kernels. The tiny ones are for a CPU.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """One model: its hub id ("" = none), its config for transformers, and the prompt published with it."""

    hub_id: str
    config: dict[str, Any]
    prompt: str


_BLOOM_PROMPT = "Explain distributed training in one paragraph."
_LLAMA_PROMPT = "Explain tensor parallelism in one paragraph."


def _bloom(vocab_size: int, hidden_size: int, n_layer: int, n_head: int) -> dict[str, Any]:
    return {
        "model_type": "bloom",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "n_layer": n_layer,
        "n_head": n_head,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
    }


def _llama(
    vocab_size: int, hidden_size: int, intermediate_size: int, layers: int, heads: int, kv_heads: int
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


MODELS = {
    "bloom-560m": Architecture(
        hub_id="bigscience/bloom-560m", config=_bloom(250880, 1024, 24, 16), prompt=_BLOOM_PROMPT
    ),
    "vicuna-7b": Architecture(
        hub_id="lmsys/vicuna-7b-v1.5", config=_llama(32000, 4096, 11008, 32, 32, 32), prompt=_LLAMA_PROMPT
    ),
    "tiny-bloom": Architecture(hub_id="", config=_bloom(512, 64, 2, 4), prompt=_BLOOM_PROMPT),
    "tiny-llama": Architecture(hub_id="", config=_llama(512, 64, 172, 2, 4, 4), prompt=_LLAMA_PROMPT),
}


def known(model: str) -> Architecture | None:
    """The built-in architecture of a short name or a hub id; None for any other model."""
    by_hub_id = {one.hub_id: one for one in MODELS.values() if one.hub_id}
    return MODELS.get(model) or by_hub_id.get(model)


class KernelsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One profile: a model generates text greedily, with every forward marked."""

    model: str = "tiny-bloom"  # short name, hub id, or folder with a checkpoint
    tp: Annotated[int, msgspec.Meta(ge=1)] = 1  # tensor parallel ranks
    prompt: str = ""  # "": the model's own
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] = 64
    fixed_tokens: bool = False  # continue past an end-of-text token: exactly max_new_tokens
    record_shapes: bool = True
    weights: Literal["auto", "checkpoint", "random"] = "auto"
    # auto: float16 on a GPU, float32 on a CPU
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    attn: Literal["auto", "eager", "sdpa"] = "auto"
    eight_bit: bool = False
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0


def num_params(config: dict[str, Any]) -> int:
    """Parameters of a built-in architecture, by its layers in the papers (BLOOM: tied embedding)."""
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    if config["model_type"] == "bloom":
        layer = 12 * hidden * hidden + 13 * hidden  # qkv, dense, MLP of 4 h with biases, two norms
        return int(vocab * hidden + config["n_layer"] * layer + 4 * hidden)  # norms of embedding and end
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    attention = 2 * hidden * hidden + 2 * hidden * hidden * kv_heads // heads
    layer = attention + 3 * hidden * config["intermediate_size"] + 2 * hidden
    return int(2 * vocab * hidden + config["num_hidden_layers"] * layer + hidden)


def sharded_params(config: dict[str, Any], ranks: int) -> int:
    """Parameters on one of `ranks` tensor parallel ranks: layers are split, embeddings are not."""
    all_params, vocab, hidden = num_params(config), config["vocab_size"], config["hidden_size"]
    replicated = vocab * hidden * (1 if config["model_type"] == "bloom" else 2)
    return int(replicated + (all_params - replicated) // ranks)


def heads_of(config: dict[str, Any]) -> dict[str, int]:
    """What the number of tensor parallel ranks must divide: heads, key-value heads, width of the MLP."""
    if config["model_type"] == "bloom":
        return {"attention heads": config["n_head"], "MLP width": 4 * config["hidden_size"]}
    return {
        "attention heads": config["num_attention_heads"],
        "key-value heads": config["num_key_value_heads"],
        "MLP width": config["intermediate_size"],
    }
