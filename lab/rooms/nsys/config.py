"""The configuration of the nsys room, and which captures the questions a to e need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Literal

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
Count = Annotated[int, msgspec.Meta(ge=1)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0)]


class WorkloadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one measured process does, besides its size, context and profile type."""

    batch_size: Count = 4
    warmup_steps: CountOrNone = 5
    measure_steps: Count = 10
    annotated_attention: bool = True  # ranges inside attention
    softmax: Literal["plain", "fused"] = "plain"  # max, subtract, exp, sum, divide; or torch.softmax
    fused_qkv: bool = False  # one GEMM for query, key and value
    dtype: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"  # bf16 and fp16 by autocast
    seed: CountOrNone = 0  # of weights and tokens


class NsysConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A matrix of cells (sizes x contexts x profile types), each recorded, and timed without a profiler."""

    parts: tuple[str, ...] = ()
    model_sizes: tuple[str, ...] = ()  # (): the five published sizes with GPUs, tiny without
    context_lengths: tuple[Annotated[int, msgspec.Meta(ge=2)], ...] = ()  # (): 512 with GPUs, 128 without
    profile_types: tuple[ProfileType, ...] = ()  # (): those the parts need
    collector: Literal["auto", "nsys", "kineto"] = "auto"
    twin: bool = True  # time the same steps without a profiler too
    keep_original: bool = False  # nsys' own .nsys-rep, which holds the environment
    pause_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # before each process on GPUs
    step_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 900.0  # of one process
    workload: WorkloadConfig = WorkloadConfig()


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One capture: a size, a context length and a profile type; `parts` are the questions it answers."""

    size: str
    context: int
    type: ProfileType
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.size}_ctx{self.context}_{self.type}"


def parse_parts(text: str) -> tuple[str, ...]:
    """`a,b` or `b_c` or `all` -> parts in order. Raises UsageError for an unknown one, or for none."""
    names = _parse_names(text.replace("_", ",").lower(), "part", PART_TYPES, tuple(PART_TYPES))
    if not names:
        raise UsageError("no part given", fix=f"one or more of {', '.join(PART_TYPES)}, or all")
    return tuple(sorted(names))


def parse_sizes(text: str) -> tuple[str, ...]:
    """`small,medium` or `all` -> sizes, each once. Raises UsageError for an unknown one."""
    return _parse_names(text, "model size", SIZES, PUBLISHED)


def parse_types(text: str) -> tuple[ProfileType, ...]:
    """`forward,training` or `all` -> profile types in order. Raises UsageError for an unknown one."""
    names = _parse_names(text, "profile type", TYPES, TYPES)
    return tuple(kind for kind in TYPES if kind in names)


def _parse_names(
    text: str, noun: str, choices: Collection[str], all_names: tuple[str, ...]
) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for word in text.split(",") if (name := word.strip())))
    if names == ("all",):
        return all_names
    if unknown := [name for name in names if name not in choices]:
        raise UsageError(f"unknown {noun} {unknown[0]!r}", fix=f"one of: {', '.join(choices)}, or all")
    return names


def resolved(config: NsysConfig, *, on_gpu: bool) -> NsysConfig:
    """The configuration with every empty choice filled, from the parts and from whether there is a GPU."""
    parts = config.parts or (() if config.profile_types else tuple(PART_TYPES))
    types = config.profile_types or tuple(
        kind for kind in TYPES if any(kind in PART_TYPES[part] for part in parts)
    )
    contexts = CONTEXTS if config.parts == tuple(PART_TYPES) else (512,)
    return msgspec.structs.replace(
        config,
        parts=parts or tuple(part for part in PART_TYPES if set(PART_TYPES[part]) & set(types)),
        profile_types=types,
        model_sizes=config.model_sizes or (PUBLISHED if on_gpu else ("tiny",)),
        context_lengths=config.context_lengths or (contexts if on_gpu else (128,)),
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
