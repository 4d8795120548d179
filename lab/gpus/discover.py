"""Which GPUs this machine has, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lab.core.gpu import Gpu, promised_gpus
from lab.core.words import plural
from lab.errors import GpuError
from lab.gpus.amd import amd_gpus
from lab.gpus.nvidia import DEAD, DEAD_CURE, in_container, nvidia_inventory
from lab.gpus.selection import matching, present

AMD_MASKS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
ENDS_A_MASK = ("", "NoDevFiles", "none", "void")  # besides a negative index


class Found(NamedTuple):
    """The GPUs that this process may use, and a sentence on each that is here and is left out."""

    gpus: list[Gpu]
    notes: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()  # those of the notes that are about a GPU that does not answer


def discover(env: Mapping[str, str] | None = None) -> list[Gpu]:
    """The GPUs of `look`."""
    return look(env).gpus


def look(env: Mapping[str, str] | None = None) -> Found:
    """The GPUs that this process may use, NVIDIA's first, because an AMD iGPU may be beside them.

    CUDA_VISIBLE_DEVICES and ROCR_/HIP_VISIBLE_DEVICES, set by a scheduler, narrow the list. Raises GpuError
    for a mask that names a GPU or MIG instance that is not here, and for fewer GPUs than an engine gave.
    """
    env = os.environ if env is None else env
    usable, empty, silent = nvidia_inventory(env)
    gpus = visible(usable, "CUDA_VISIBLE_DEVICES", env, [*empty, *silent])
    # A mask left the others out; a GPU that it names and that cannot compute is an error above.
    hidden = "CUDA_VISIBLE_DEVICES" in env
    notes, dead = (() if hidden else tuple(map(_left_out, some)) for some in (empty, silent))
    if not gpus:
        mask = next((name for name in AMD_MASKS if name in env), AMD_MASKS[0])
        gpus = visible(amd_gpus(env, with_nodes=in_container(env)), mask, env)
    if len(gpus) < (promised := promised_gpus(env)):
        raise GpuError(
            f"this container or step was given {plural(promised, 'GPU')}, and {len(gpus)} can be seen",
            location=present(gpus),
            fix="see `lab doctor` on the host: container toolkit or CDI specification may be out of date",
        )
    return Found(gpus, (*notes, *dead), dead)


def _left_out(gpu: Gpu) -> str:
    if not gpu.uuid or DEAD.search(f"{gpu.uuid} {gpu.name}"):
        return f"GPU {gpu.index} is left out: it does not answer ({gpu.name}); {DEAD_CURE}"
    return (
        f"GPU {gpu.index} ({gpu.name}, {gpu.uuid}) is left out: MIG is enabled on it and has no instance "
        f"(make one: nvidia-smi mig -i {gpu.index} -cgi PROFILE -C; "
        f"disable MIG: nvidia-smi -i {gpu.index} -mig 0)"
    )


def visible(gpus: Sequence[Gpu], mask: str, env: Mapping[str, str], empty: Sequence[Gpu] = ()) -> list[Gpu]:
    """The GPUs that the variable `mask` names, in its order; all if it is not set. None of `empty` can be.

    As in CUDA, an empty entry or a negative index ends the list, and the index or UUID of a GPU that MIG
    divides means its first instance.
    """
    if mask not in env:
        return list(gpus)
    visible_gpus: list[Gpu] = []
    entries = [part.strip() for part in env[mask].split(",")]
    for entry in entries:
        if entry in ENDS_A_MASK or entry.startswith("-"):
            break
        item = int(entry) if entry.isdecimal() else entry
        hits = matching(gpus, item)
        if not hits and (dead := matching(empty, item)):
            raise _refusal(gpus, mask, env[mask], f"names {entry!r}, and {_left_out(dead[0])}")
        # An index is all that some schedulers set, for both vendors alike; a UUID names one of these GPUs.
        if not hits and (gpus or _is_uuid(entry)):
            raise _refusal(gpus, mask, env[mask], f"names {entry!r}, which is not on this machine")
        if len({hit.parent or hit.uuid for hit in hits}) > 1:
            raise _refusal(gpus, mask, env[mask], f"names {entry!r}, which begins several UUIDs")
        visible_gpus += [hit for hit in hits[:1] if hit not in visible_gpus]
    if not visible_gpus and any(map(_is_uuid, entries)):
        raise _refusal(gpus, mask, env[mask], "ends before the first GPU that it names")
    return visible_gpus


def _is_uuid(entry: str) -> bool:
    return entry.upper().startswith(("GPU-", "MIG-"))


def _refusal(gpus: Sequence[Gpu], mask: str, value: str, problem: str) -> GpuError:
    return GpuError(
        f"{mask}={value} {problem}",
        location=present(gpus),
        fix=f"correct or unset {mask}; to run on the CPU: --gpus none",
    )
