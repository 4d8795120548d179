"""The configuration of the nsys room, and which captures the questions a to e need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from lab.errors import UsageError
from lab.rooms.nsys.flops import PUBLISHED, SIZES, ModelSpec

ProfileType = Literal["forward", "forward_backward", "training"]
TYPES: tuple[ProfileType, ...] = ("forward", "forward_backward", "training")
CONTEXTS = (128, 256, 512, 1024)
# Captures are shared: the five parts need three per size and context.
PART_TYPES: dict[str, tuple[ProfileType, ...]] = {
    "a": ("forward",),
    "b": ("forward", "forward_backward"),
    "c": ("forward",),
    "d": ("forward", "training"),
    "e": ("forward",),
}
QUESTIONS = {
    "a": "How long does a forward pass take, and does the profiler agree with Python?",
    "b": "Which kernel costs most GPU time, and how often is it launched in a pass?",
    "c": "Which kernels besides matrix products take a notable share of the forward pass?",
    "d": "How does the share of matrix products change from inference to a whole training step?",
    "e": "How do softmax and matrix products inside attention compare in time and in FLOPs?",
}


def _help(text: str, **limits: Any) -> msgspec.Meta:
    return msgspec.Meta(description=text, **limits)


class WorkloadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one measured process does, besides its size, context and profile type."""

    batch_size: Annotated[int, _help("sequences per pass", ge=1)] = 4
    warmup_steps: Annotated[int, _help("steps before anything is measured", ge=0)] = 5
    measure_steps: Annotated[int, _help("measured steps", ge=1)] = 10
    annotated_attention: Annotated[bool, _help("ranges inside attention")] = True
    softmax: Annotated[
        Literal["plain", "fused"], _help("plain: max, subtract, exp, sum, divide; fused: torch.softmax")
    ] = "plain"
    fused_qkv: Annotated[bool, _help("one GEMM for query, key and value")] = False
    dtype: Annotated[Literal["fp32", "tf32", "bf16", "fp16"], _help("bf16 and fp16 by autocast")] = "fp32"
    seed: Annotated[int, _help("seed of weights and tokens", ge=0)] = 0


class NsysConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A matrix of cells (sizes x contexts x profile types), each recorded, and timed without a profiler."""

    parts: tuple[str, ...] = ()
    model_sizes: tuple[str, ...] = ()  # (): the five published sizes with GPUs, tiny without
    context_lengths: tuple[Annotated[int, msgspec.Meta(ge=2)], ...] = ()  # (): 512 with GPUs, 128 without
    profile_types: tuple[ProfileType, ...] = ()  # (): those the parts need
    collector: Literal["auto", "nsys", "kineto"] = "auto"
    twin: Annotated[bool, _help("time the same steps without a profiler too")] = True
    keep_original: Annotated[bool, _help("keep nsys' own .nsys-rep, which holds the environment")] = False
    pause_s: Annotated[float, _help("pause before each process on GPUs, s", ge=0)] = 1.0
    step_timeout_s: Annotated[float, _help("limit of one process, s", gt=0)] = 900.0
    workload: WorkloadConfig = WorkloadConfig()


class Cell(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One capture: a size, a context length and a profile type; `parts` are the questions it answers."""

    size: str
    context: int
    type: ProfileType
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.size}_ctx{self.context}_{self.type}"


def parse_parts(text: str) -> tuple[str, ...]:
    """`a,b` or `b_c` or `all` -> parts in order. Raises UsageError for an unknown one."""
    wanted = [part for word in text.replace("_", ",").split(",") if (part := word.strip().lower())]
    if wanted == ["all"]:
        return tuple(PART_TYPES)
    unknown = [part for part in wanted if part not in PART_TYPES]
    if unknown or not wanted:
        raise UsageError(
            f"unknown part {unknown[0]!r}" if unknown else "no part given",
            fix=f"one or more of {', '.join(PART_TYPES)}, or all",
        )
    return tuple(part for part in PART_TYPES if part in wanted)


def parse_sizes(text: str) -> tuple[str, ...]:
    """`small,medium` or `all` -> sizes, each once. Raises UsageError for an unknown one."""
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    if wanted == ["all"]:
        return PUBLISHED
    for name in wanted:
        if name not in SIZES:
            raise UsageError(f"unknown model size {name!r}", fix=f"one of: {', '.join(SIZES)}, or all")
    return tuple(dict.fromkeys(wanted))


def parse_types(text: str) -> tuple[ProfileType, ...]:
    """`forward,training` -> profile types in order. Raises UsageError for an unknown one."""
    wanted = {word.strip() for word in text.split(",") if word.strip()}
    unknown = sorted(wanted - set(TYPES))
    if unknown:
        raise UsageError(f"unknown profile type {unknown[0]!r}", fix=f"one of: {', '.join(TYPES)}")
    return tuple(kind for kind in TYPES if kind in wanted)


def resolved(config: NsysConfig, *, on_gpu: bool) -> NsysConfig:
    """The configuration with every empty choice filled, from the parts and from whether there is a GPU."""
    everything = config.parts == tuple(PART_TYPES)
    parts = config.parts or (() if config.profile_types else tuple(PART_TYPES))
    types = config.profile_types or tuple(
        kind for kind in TYPES if any(kind in PART_TYPES[part] for part in parts)
    )
    contexts = CONTEXTS if everything and on_gpu else (512,) if on_gpu else (128,)
    return msgspec.structs.replace(
        config,
        parts=parts or tuple(part for part in PART_TYPES if set(PART_TYPES[part]) & set(types)),
        profile_types=types,
        model_sizes=config.model_sizes or (PUBLISHED if on_gpu else ("tiny",)),
        context_lengths=config.context_lengths or contexts,
    )


def cells(config: NsysConfig) -> list[Cell]:
    """Every capture of a resolved config, each once, in the order of sizes, contexts and types."""
    return [
        Cell(size=size, context=context, type=kind, parts=parts_of(kind, config.parts))
        for size in config.model_sizes
        for context in config.context_lengths
        for kind in config.profile_types
    ]


def parts_of(kind: ProfileType, parts: Sequence[str]) -> tuple[str, ...]:
    """The parts among `parts` that a capture of this type serves."""
    return tuple(part for part in parts if kind in PART_TYPES[part])


def spec_of(size: str, *, fused_qkv: bool = False) -> ModelSpec:
    """The model's shape by its size."""
    return msgspec.structs.replace(SIZES[size], fused_qkv=fused_qkv)
