"""Errors for what cannot work"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from lab.errors import GpuError, MissingError, UsageError
from lab.rooms.kernels.config import KernelsConfig, heads_of, known, num_params, sharded_params
from lab.rooms.kernels.cures import no_gpu_cure

GIB = 2**30


ROOM_FOR_THE_REST = 1.15  # weights times this: context, cache of keys and values, activations of one prompt


# transformers releases that work with a torch below 2.1 (measured with 1.12.1 on BLOOM and Llama).
OLD_TORCH_NEEDS = ("4.30.2", "4.49.0")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the workload's Python says of itself and of its GPUs. Versions are texts like 2.13.0; None = not installed."""

    torch: str
    cuda: str | None = None  # the CUDA version torch was built for; None: a CPU (or ROCm) build
    hip: str | None = None
    archs: tuple[str, ...] = ()  # torch.cuda.get_arch_list()
    transformers: str | None = None
    bitsandbytes: str | None = None
    num_gpus: int = 0
    capabilities: tuple[tuple[int, int], ...] = ()
    mem_bytes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    has_dtensor: bool = True
    world_size: int = 1
    env: dict[str, str] = {}


def refuse_plan(
    config: KernelsConfig, *, vendor: str, gpus: Sequence[tuple[str, int | None]], image: str | None
) -> None:
    """Raise for what the host can see will not work; gpus are (name, memory in bytes or None), [] a CPU run."""
    check_divisible(config)
    if image == "pascal" and config.tp > 1:
        raise UsageError(
            "tensor parallel needs DTensor, and the image pascal has torch 1.12 without it",
            fix="--image cuda with newer GPUs, or drop --tp: bloom-560m fits one 11 GB card",
        )
    if image == "pascal" and config.eight_bit:
        raise UsageError(
            "8-bit needs bitsandbytes, which needs torch 2.3: installing it into the image pascal would replace torch 1.12 by one without code for Pascal",
            fix="drop --8bit, or use a smaller model: bloom-560m fits one 11 GB card",
        )
    if config.eight_bit and config.tp > 1:
        raise UsageError("8-bit weights cannot be sharded", fix="--tp 2 without --8bit, or --8bit on one GPU")
    if gpus and config.tp > len(gpus):
        raise GpuError(
            f"--tp {config.tp} needs {config.tp} GPUs, {len(gpus)} picked", fix="lower --tp or widen --gpus"
        )
    if vendor == "none" and config.eight_bit:
        raise UsageError("8-bit weights need a GPU", fix="drop --8bit")
    if vendor == "none" and config.dtype == "float16" and image == "pascal":
        raise UsageError("torch 1.12 has no float16 arithmetic on a CPU", fix="--dtype float32")
    for name, mem_bytes in gpus[: config.tp]:
        check_memory(config, name, mem_bytes, on_gpu=True)


def check_divisible(config: KernelsConfig) -> None:
    """The ranks must share heads and MLP evenly. Raises UsageError for a built-in model that they do not fit."""
    model = known(config.model)
    uneven = {what: n for what, n in heads_of(model.config).items() if n % config.tp} if model else {}
    for what, count in uneven.items():
        raise UsageError(
            f"--tp {config.tp} does not divide the {count} {what} of {config.model}",
            fix=f"a divisor of {count}",
        )


def check_memory(config: KernelsConfig, name: str, mem_bytes: int | None, *, on_gpu: bool) -> None:
    """Raise GpuError when the weights alone will not fit a GPU of `mem_bytes`. Only built-in models are known."""
    model = known(config.model)
    if model is None or mem_bytes is None:
        return
    weights = sharded_params(model.config, config.tp) * bytes_per_param(config, on_gpu)
    if weights * ROOM_FOR_THE_REST <= mem_bytes:
        return
    whole = num_params(model.config) * bytes_per_param(config, on_gpu)
    ranks = next(
        (n for n in (2, 4, 8) if n > config.tp and _fits(config, model.config, n, mem_bytes, on_gpu)), None
    )
    tp = f"--tp {ranks} over {ranks} of them, " if ranks else ""
    raise GpuError(
        f"{config.model} needs {weights / GIB:.1f} GiB of weights on each GPU ({whole / GIB:.1f} GiB in all), "
        f"{name or 'the GPU'} has {mem_bytes / GIB:.1f} GiB",
        fix=f"{tp}bloom-560m (1.1 GB in float16), or --8bit with torch 2.3 or newer",
    )


def bytes_per_param(config: KernelsConfig, on_gpu: bool) -> float:
    if config.eight_bit:
        return 1.0
    dtype = config.dtype if config.dtype != "auto" else "float16" if on_gpu else "float32"
    return 4.0 if dtype == "float32" else 2.0


def _fits(config: KernelsConfig, model: dict[str, object], ranks: int, mem_bytes: int, on_gpu: bool) -> bool:
    return sharded_params(model, ranks) * bytes_per_param(config, on_gpu) * ROOM_FOR_THE_REST <= mem_bytes


def refuse_here(config: KernelsConfig, facts: Facts, *, wants_gpu: bool) -> None:
    """Raise for what this torch, this transformers and these GPUs cannot do. Nothing has been loaded yet."""
    _check_transformers(facts)
    if config.tp > 1 and not facts.has_dtensor:
        raise UsageError(
            f"tensor parallel needs DTensor (torch 2.3 or newer), here is torch {facts.torch}",
            fix="--image cuda, or drop --tp",
        )
    if config.eight_bit:
        _check_eight_bit(facts)
    if wants_gpu:
        _check_gpus(config, facts)


def _check_transformers(facts: Facts) -> None:
    if facts.transformers is None:
        raise MissingError(
            "transformers is not installed here",
            fix="pip install transformers (with torch 1.12: transformers==4.46.3)",
        )
    low, high = (version(text) for text in OLD_TORCH_NEEDS)
    if version(facts.torch) < (2, 1) and not low <= version(facts.transformers) <= high:
        raise MissingError(
            f"transformers {facts.transformers} does not work with torch {facts.torch}",
            fix="pip install transformers==4.46.3 'numpy<2' (newer ones go on without torch after a warning)",
        )


def _check_eight_bit(facts: Facts) -> None:
    if version(facts.torch) < (2, 3):
        raise UsageError(
            f"8-bit needs torch 2.3, here is {facts.torch}",
            fix="drop --8bit: installing bitsandbytes here would replace torch by one without code for old GPUs",
        )
    if facts.bitsandbytes is None:
        raise MissingError(
            "8-bit needs bitsandbytes, which is not installed here",
            fix=f"pip install bitsandbytes 'torch=={facts.torch.split('+')[0]}' (pinned, so that torch stays)",
        )


def _check_gpus(config: KernelsConfig, facts: Facts) -> None:
    if facts.cuda is None and facts.hip is None:
        raise GpuError(
            f"torch {facts.torch} is built without CUDA and ROCm",
            fix="a GPU image (--image cuda), or --gpus none",
        )
    if facts.num_gpus == 0:
        raise GpuError("torch sees no GPU", fix=no_gpu_cure(facts.env, config.tp))
    if facts.world_size > facts.num_gpus:
        raise GpuError(f"{facts.world_size} ranks, {facts.num_gpus} GPUs", fix="lower --tp or widen --gpus")
    for name, capability, mem_bytes in zip(facts.names, facts.capabilities, facts.mem_bytes, strict=False):
        if facts.hip is None:
            check_arch(name, capability, facts)
        check_memory(config, name, mem_bytes, on_gpu=True)


def check_arch(name: str, capability: tuple[int, int], facts: Facts) -> None:
    """Raise GpuError when torch holds no code for a GPU: binary code runs on the same major version from its minor
    on, intermediate code (compute_XY) upwards."""
    major, minor = capability
    numbers = [
        (kind, int(digits[:-1]), int(digits[-1]))
        for arch in facts.archs
        if (parts := re.fullmatch(r"(sm|compute)_(\d{2,3})[a-z]?", arch))
        for kind, digits in [parts.groups()]
    ]
    runs = any(
        (kind == "sm" and a == major and b <= minor) or (kind == "compute" and (a, b) <= capability)
        for kind, a, b in numbers
    )
    if runs or not numbers:
        return
    image = "pascal" if major <= 6 else "cuda"
    raise GpuError(
        f"{name} is sm_{major}{minor}; torch {facts.torch} holds code for {' '.join(facts.archs)} only",
        fix=f"--image {image}" + (" (torch 1.12 with code for sm_60)" if image == "pascal" else ""),
    )


def version(text: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0); what is no number ends it."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
