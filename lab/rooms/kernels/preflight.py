"""Refuses what cannot work before anything is loaded or downloaded; every error says what to do. Pure.

`refuse_plan` checks on the host what is known of GPUs and image; `refuse_here` checks on the GPU machine what
its torch reports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from lab.core.words import plural
from lab.errors import GpuError, MissingError, UsageError
from lab.rooms.kernels.config import KernelsConfig, heads_of, known, num_params, sharded_params
from lab.rooms.kernels.cures import FOR_OLD_TORCH, no_gpu_cure

GIB = 2**30
OVERHEAD = 1.15  # of the weights: context, cache of keys and values, activations of one prompt
# transformers releases that work with a torch below 2.1 (measured with 1.12.1 on BLOOM and Llama).
OLD_TORCH_NEEDS = ("4.30.2", "4.49.0")
ARCH = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d{1,2})(?P<minor>\d)[a-z]?")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Versions and GPUs of the workload's Python. Versions are texts like 2.13.0; None: not installed."""

    torch: str
    cuda: str | None = None  # the version torch was built for; None: a CPU or ROCm build
    hip: str | None = None
    archs: tuple[str, ...] = ()  # torch.cuda.get_arch_list()
    transformers: str | None = None
    bitsandbytes: str | None = None
    num_gpus: int = 0
    capabilities: tuple[tuple[int, int], ...] = ()
    mem_bytes: tuple[int, ...] = ()
    host_mem_bytes: int | None = None  # available to this process; None: not known
    names: tuple[str, ...] = ()
    has_dtensor: bool = True
    world_size: int = 1
    env: dict[str, str] = {}


def refuse_plan(
    config: KernelsConfig, *, vendor: str, gpus: Sequence[tuple[str, int | None]], image: str | None = None
) -> None:
    """Raise for a plan that cannot work; gpus are (name, memory in bytes or None), empty for a CPU run."""
    check_divisible(config)
    if config.eight_bit and config.tp > 1:
        raise UsageError("8-bit weights cannot be sharded", fix="--tp 2 without --8bit, or --8bit on one GPU")
    if gpus and config.tp > len(gpus):
        needed = plural(config.tp, "GPU")
        raise GpuError(
            f"--tp {config.tp} needs {needed}, but {len(gpus)} selected", fix="lower --tp or widen --gpus"
        )
    if vendor == "none" and config.eight_bit:
        raise UsageError("8-bit weights need a GPU", fix="drop --8bit")
    if image == "pascal" and config.eight_bit:
        raise UsageError("bitsandbytes needs torch 2.3, which has no code for Pascal GPUs", fix="drop --8bit")
    for name, mem_bytes in gpus[: config.tp]:
        check_memory(config, name, mem_bytes)


def check_divisible(config: KernelsConfig) -> None:
    """The ranks must share heads and MLP evenly.

    Raises UsageError for a built-in model that they do not divide.
    """
    model = known(config.model)
    uneven = {part: n for part, n in heads_of(model.config).items() if n % config.tp} if model else {}
    for part, count in uneven.items():
        raise UsageError(
            f"--tp {config.tp} does not divide the {count} {part} of {config.model}",
            fix=f"a divisor of {count}",
        )


def check_memory(config: KernelsConfig, name: str, mem_bytes: int | None) -> None:
    """Raise GpuError if the weights of a built-in model do not fit a GPU of `mem_bytes`."""
    model = known(config.model)
    if model is None or mem_bytes is None:
        return
    per_param = bytes_per_param(config, on_gpu=True)
    needed = {ranks: sharded_params(model.config, ranks) * per_param for ranks in {config.tp, 2, 4, 8}}
    fitting = sorted(ranks for ranks, size in needed.items() if size * OVERHEAD <= mem_bytes)
    if config.tp in fitting:
        return
    enough = next((ranks for ranks in fitting if ranks > config.tp), None)
    tp = f"--tp {enough} over {enough} of them, " if enough else ""
    all_bytes = num_params(model.config) * per_param
    raise GpuError(
        f"{config.model} needs {needed[config.tp] / GIB:.1f} GiB of weights on each GPU "
        f"({all_bytes / GIB:.1f} GiB in total), {name or 'the GPU'} has {mem_bytes / GIB:.1f} GiB",
        fix=f"{tp}bloom-560m (1.1 GB in float16), or --8bit with torch 2.3 or newer",
    )


def check_host_memory(config: KernelsConfig, mem_bytes: int | None, *, on_gpu: bool) -> None:
    """Raise UsageError if the host cannot hold what is loaded on it: CPU runs, and every rank's whole model.

    Ranks of tensor parallel load on the CPU and shard after; Linux would kill one of them minutes later.
    """
    model = known(config.model)
    if model is None or mem_bytes is None or (on_gpu and config.tp == 1):
        return
    needed = config.tp * num_params(model.config) * bytes_per_param(config, on_gpu=on_gpu) * OVERHEAD
    if needed > mem_bytes:
        raise UsageError(
            f"{config.model} on {plural(config.tp, 'rank')} needs {needed / GIB:.1f} GiB of host memory, "
            f"{mem_bytes / GIB:.1f} GiB are available",
            fix="a smaller model (bloom-560m, tiny-bloom), fewer ranks, or a GPU",
        )


def bytes_per_param(config: KernelsConfig, *, on_gpu: bool) -> float:
    if config.eight_bit:
        return 1.0
    dtype = config.dtype if config.dtype != "auto" else "float16" if on_gpu else "float32"
    return 4.0 if dtype == "float32" else 2.0


def refuse_here(config: KernelsConfig, facts: Facts, *, wants_gpu: bool) -> None:
    """Raise for what this torch, transformers and these GPUs cannot do, before anything is loaded."""
    _check_transformers(facts)
    if config.tp > 1 and not facts.has_dtensor:
        raise UsageError(
            f"tensor parallel needs DTensor (torch 2.3 or newer); this is torch {facts.torch}",
            fix="--image cuda with newer GPUs, or drop --tp: bloom-560m fits one 11 GB card",
        )
    if config.eight_bit:
        _check_eight_bit(facts)
    if not wants_gpu and config.dtype == "float16" and version(facts.torch) < (2, 1):
        raise UsageError("torch 1.12 has no float16 arithmetic on a CPU", fix="--dtype float32")
    if wants_gpu:
        _check_gpus(config, facts)
    check_host_memory(config, facts.host_mem_bytes, on_gpu=wants_gpu)


def _check_transformers(facts: Facts) -> None:
    if facts.transformers is None:
        raise MissingError(
            "transformers is not installed here",
            fix=f"pip install transformers (with torch 1.12: {FOR_OLD_TORCH})",
        )
    low, high = (version(text) for text in OLD_TORCH_NEEDS)
    if version(facts.torch) < (2, 1) and not low <= version(facts.transformers) <= high:
        raise MissingError(
            f"transformers {facts.transformers} does not work with torch {facts.torch}",
            fix=f"pip install {FOR_OLD_TORCH} 'numpy<2' (newer ones warn and continue without torch)",
        )


def _check_eight_bit(facts: Facts) -> None:
    if version(facts.torch) < (2, 3):
        raise UsageError(
            f"8-bit needs torch 2.3; this is torch {facts.torch}",
            fix="drop --8bit",
        )
    if facts.bitsandbytes is None:
        raise MissingError(
            "8-bit needs bitsandbytes, which is not installed here",
            fix=f"pip install bitsandbytes 'torch=={facts.torch.split('+')[0]}' (the pin keeps this torch)",
        )


def _check_gpus(config: KernelsConfig, facts: Facts) -> None:
    if facts.cuda is None and facts.hip is None:
        raise GpuError(
            f"torch {facts.torch} is built without CUDA or ROCm",
            fix="use a GPU image (--image cuda), or --gpus none",
        )
    if facts.num_gpus == 0:
        raise GpuError("torch sees no GPU", fix=no_gpu_cure(facts.env, config.tp))
    if facts.world_size > facts.num_gpus:
        gpus = plural(facts.num_gpus, "GPU")
        raise GpuError(f"{facts.world_size} ranks but {gpus}", fix="lower --tp or widen --gpus")
    for name, capability, mem_bytes in zip(facts.names, facts.capabilities, facts.mem_bytes, strict=False):
        if facts.hip is None:
            check_arch(name, capability, facts)
        check_memory(config, name, mem_bytes)


def check_arch(name: str, capability: tuple[int, int], facts: Facts) -> None:
    """Raise GpuError if torch has no code for a GPU.

    Binary code (sm_XY) runs on the same major version from its minor version on, intermediate code
    (compute_XY) on every newer GPU.
    """
    matches = [ARCH.fullmatch(arch) for arch in facts.archs]
    built = [(match["kind"], (int(match["major"]), int(match["minor"]))) for match in matches if match]
    if not built or any(_runs(kind, built_for, capability) for kind, built_for in built):
        return
    major, minor = capability
    fix = "--image pascal (torch 1.12 with code for sm_60)" if major <= 6 else "--image cuda"
    raise GpuError(
        f"{name} is sm_{major}{minor}; torch {facts.torch} has code for {' '.join(facts.archs)} only", fix=fix
    )


def _runs(kind: str, built_for: tuple[int, int], capability: tuple[int, int]) -> bool:
    return built_for <= capability and (kind == "compute" or built_for[0] == capability[0])


def version(text: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0): the leading numbers."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
