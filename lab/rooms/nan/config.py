"""Every knob of the nan room, and its experiments."""

from __future__ import annotations

from typing import Annotated

import msgspec

# What each experiment changes against the baseline. Names as in the published experiments.
EXPERIMENTS = {
    "baseline": "4-bit weights, fp16",
    "bfloat16": "bf16 in place of fp16",
    "attention_scale": "attention scores multiplied by --scale",
    "attention_clip": "attention outputs clipped to +-clip",
    "8bit": "8-bit weights",
    "layernorm_eps": "another epsilon in every norm",
    "eager": "eager attention in place of fused",
}
RECIPES = {
    "priority": ("baseline", "bfloat16", "attention_scale", "eager"),
    "all": tuple(EXPERIMENTS),
}


class NanConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    experiments: tuple[str, ...]
    sass: bool = False  # under nixnan.so, hooks off
    model: str = "tiny"  # hub id, path, or "tiny": an offline Mistral with random weights
    prompt: str = "dizzy"
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] = 50
    seed: int = 0
