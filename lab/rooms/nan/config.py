"""The settings of the nan room, and its experiments: each changes one thing against the baseline."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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


def _help(text: str, **limits: Any) -> msgspec.Meta:
    return msgspec.Meta(description=text, **limits)


class NixnanConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What nixnan reads from its environment and its working directory; by default nothing is left out."""

    sampling: Annotated[int, _help("instrument 1 in N launches of a kernel; 0: all", ge=0)] = 0
    line_info: Annotated[bool, _help("report source lines; crashes on wheels without them")] = False
    max_errors: Annotated[int, _help("stop after this many lines; 0: never", ge=0)] = 0
    histogram: Annotated[bool, _help("log ranges of exponents; tears lines: needs a run of its own")] = False
    bin_spec: Annotated[str | None, _help("JSON of exponent bins, as text")] = None
    only_kernels: Annotated[tuple[str, ...], _help("exact short names; all others are left alone")] = ()
    not_kernels: Annotated[tuple[str, ...], _help("exact short names that are left alone")] = ()
    inventory: Annotated[bool, _help("only list the kernels (LOG_KERNELS); nothing is checked")] = False
    fun_detail: Annotated[bool, _help("full names on repeats")] = False
    attach: Annotated[
        Literal["auto", "inject", "preload"],
        _help("how the tool is attached; auto: CUDA_INJECTION64_PATH, then LD_PRELOAD if it never attached"),
    ] = "auto"
    log_limit_bytes: Annotated[int, _help("the step is ended when its log outgrows this", ge=1 << 20)] = (
        20 << 30
    )
    grace_s: Annotated[float, _help("seconds from SIGINT to SIGKILL, for the tool's report", gt=0)] = 60.0


class TrainConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training job under the guard: the user's command."""

    command: tuple[str, ...]
    cwd: Annotated[str, _help("where the command runs")] = ""
    on_bad: Annotated[
        Literal["keep", "raise", "replay"], _help("replay: run a bad step again to name the operator")
    ] = "replay"


class NanConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of the room. `model` is a hub id, a folder, `tiny` or `7b-shape` (random weights, offline)."""

    experiments: tuple[str, ...]
    sass: Annotated[bool, _help("run under nixnan.so, without the watch")] = False
    model: str = "tiny"
    layers: Annotated[int, _help("layers of tiny or 7b-shape", ge=1)] | None = None
    prompt: Annotated[tuple[str, ...], _help("several prompts make a left-padded batch", min_length=1)] = (
        "dizzy",
    )
    max_new_tokens: Annotated[int, _help("tokens to generate, exactly", ge=1)] = 50
    seed: int = 0
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32"], _help("of the baseline's weights and computation")
    ] = "float16"
    attn: Annotated[
        Literal["auto", "eager", "sdpa", "flash_attention_2"],
        _help("of the baseline; auto: the library's choice"),
    ] = "auto"
    quant: Annotated[
        Literal["auto", "none", "4bit"], _help("of the baseline; auto: 4bit for models that are loaded")
    ] = "auto"
    device: Annotated[Literal["auto", "cuda", "cpu"], _help("auto: the GPU if there is one")] = "auto"
    scale: Annotated[float, _help("attention_scale multiplies scores by this", gt=0)] = 0.5
    clip: Annotated[float, _help("attention_clip's limit", gt=0)] = 10.0
    eps: Annotated[float, _help("layernorm_eps sets this", gt=0)] = 1e-3
    provoke: Literal["overflow", "scores", "nan-weight", "masked-softmax"] | None = None
    provoke_layer: Annotated[int, _help("default: the middle one", ge=0)] | None = None
    counter: Annotated[
        Literal["auto", "kernel", "bits", "norm", "plain"], _help("how the watch counts; auto: the best here")
    ] = "auto"
    timing: Annotated[int, _help("forwards timed with and without the watch; 0: none", ge=0)] = 7
    step_timeout_s: Annotated[float, _help("limit of one experiment, s", gt=0)] = 3600.0
    nixnan: NixnanConfig = NixnanConfig()
    train: TrainConfig | None = None


def from_hub(config: NanConfig) -> bool:
    """Whether the model is named by its hub id; a folder is given as an absolute path."""
    return config.model not in BUILT_IN and not config.model.startswith("/")


def label(config: NanConfig, experiment: str) -> str:
    """The experiment with the setting it uses, such as `attention_scale@0.5`."""
    settings = {"attention_scale": config.scale, "attention_clip": config.clip, "layernorm_eps": config.eps}
    return f"{experiment}@{settings[experiment]:g}" if experiment in settings else experiment
