"""Which GPUs this machine has, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lab.core.gpu import Gpu
from lab.gpus.amd import amd_gpus
from lab.gpus.nvidia import nvidia_gpus


def discover(env: Mapping[str, str] | None = None) -> list[Gpu]:
    """The GPUs that this process may use, NVIDIA's first, because an AMD iGPU may be beside them.

    CUDA_VISIBLE_DEVICES and ROCR_/HIP_VISIBLE_DEVICES, set by a scheduler, narrow the list.
    """
    env = os.environ if env is None else env
    nvidia = _visible(nvidia_gpus(), env.get("CUDA_VISIBLE_DEVICES"))
    return nvidia or _visible(amd_gpus(env), env.get("ROCR_VISIBLE_DEVICES", env.get("HIP_VISIBLE_DEVICES")))


def _visible(gpus: list[Gpu], mask: str | None) -> list[Gpu]:
    """The GPUs that a scheduler's mask names, in its order. An invalid entry ends the list, as in CUDA."""
    if mask is None or not gpus:
        return gpus
    kept: list[Gpu] = []
    for entry in (part.strip() for part in mask.split(",")):
        hit = next((g for g in gpus if entry and (str(g.index) == entry or g.uuid.startswith(entry))), None)
        if hit is None:
            break
        kept.append(hit)
    return kept
