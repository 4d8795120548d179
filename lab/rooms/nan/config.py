"""The settings of the nan room, and its experiments: each changes one thing against the baseline."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

# What each experiment changes against the baseline. Names as in the published experiments.
EXPERIMENTS = {
    "baseline": "4-bit weights (bitsandbytes) and half precision; unquantized where bitsandbytes is absent",
    "bfloat16": "bfloat16 in place of float16, for weights and computation",
    "attention_scale": "attention scores multiplied by --scale: a diagnostic, not a cure",
    "attention_clip": "attention outputs clamped to +-clip",
    "8bit": "8-bit weights (LLM.int8) in place of 4-bit",
    "layernorm_eps": "epsilon of every norm set to --eps",
    "eager": "eager attention in place of fused",
}
AGAIN = "baseline-again"  # the baseline run once more: how much two equal runs differ
RECIPES = {
    "priority": ("baseline", "bfloat16", "attention_scale", "eager"),
    "all": tuple(EXPERIMENTS),
}
BUILT_IN = ("tiny", "7b-shape")  # random weights, offline
TRAIN = "train"  # a job under the guard; the rest of the command line is the job
RESULT = "result.json"
CONFIG = "nan.json"
PROVOCATIONS = {
    "overflow": "the gated product of one layer's MLP overflows half",
    "scores": "one layer's attention scores overflow half",
    "nan-weight": "one weight of one layer is NaN",
    "masked-softmax": "one row of one layer's attention mask is all -inf",
}


AboveZero = Annotated[float, msgspec.Meta(gt=0)]
OneOrMore = Annotated[int, msgspec.Meta(ge=1)]
ZeroOrMore = Annotated[int, msgspec.Meta(ge=0)]


class NixnanConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What nixnan reads from its environment and its working directory, as the options of `lab run nixnan`.

    By default nothing is left out.
    """

    sampling: ZeroOrMore = 0
    line_info: bool = False  # nixnan crashes on wheels without line information
    max_errors: ZeroOrMore = 0
    histogram: bool = False
    bin_spec: str | None = None  # the JSON itself
    only_kernels: tuple[str, ...] = ()
    not_kernels: tuple[str, ...] = ()
    inventory: bool = False
    fun_detail: bool = False
    attach: Literal["auto", "inject", "preload"] = "auto"
    log_limit_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 20 << 30  # a larger log ends the step
    grace_s: AboveZero = 60.0  # from SIGINT to SIGKILL, for the tool's report


class TrainConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training job under the guard: the user's command."""

    command: tuple[str, ...]
    cwd: str = ""  # where the command runs
    on_bad: Literal["keep", "raise", "replay"] = "replay"


class NanConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of the room, as the options of `lab run nan`."""

    experiments: tuple[str, ...]
    sass: bool = False  # run under nixnan.so, without the watch
    model: str = "tiny"
    layers: OneOrMore | None = None
    prompt: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("dizzy",)
    max_new_tokens: OneOrMore = 50
    seed: int = 0
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    attn: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    quant: Literal["auto", "none", "4bit"] = "auto"
    device: Literal["auto", "cuda", "cpu"] = "auto"
    scale: AboveZero = 0.5
    clip: AboveZero = 10.0
    eps: AboveZero = 1e-3
    provoke: Literal["overflow", "scores", "nan-weight", "masked-softmax"] | None = None
    provoke_layer: ZeroOrMore | None = None
    counter: Literal["auto", "kernel", "bits", "norm", "plain"] = "auto"
    step_timeout_s: AboveZero = 3600.0  # limit of one experiment
    nixnan: NixnanConfig = NixnanConfig()
    train: TrainConfig | None = None


def from_hub(config: NanConfig) -> bool:
    """Whether the model is named by its hub id; a folder is given as an absolute path."""
    return config.model not in BUILT_IN and not config.model.startswith("/")


def label(config: NanConfig, experiment: str) -> str:
    """The experiment with the setting it uses, such as `attention_scale@0.5`."""
    settings = {"attention_scale": config.scale, "attention_clip": config.clip, "layernorm_eps": config.eps}
    return f"{experiment}@{settings[experiment]:g}" if experiment in settings else experiment
