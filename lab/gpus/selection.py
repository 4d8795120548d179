"""Which GPUs a --gpus value means, and how a process is given them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lab.core.gpu import Gpu
from lab.core.words import plural
from lab.errors import GpuError, UsageError

SPEC_HELP = "use all, none, a count (4), indices (0,2 or 0-3), MIG instances (0:1), UUIDs, or CDI names"
# HIP does not read an empty value as "none", and counts its own among those that ROCR leaves.
HIDING = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
MASKS = (*HIDING, "GPU_DEVICE_ORDINAL")
CDI_NAME = re.compile(r"(?:nvidia|amd)\.com/gpu=[0-9A-Za-z:._-]+")


def select(gpus: Sequence[Gpu], spec: str, notes: Sequence[str] = ()) -> list[Gpu]:
    """Choose GPUs by `all`, `none`, a count, indices `0,2` or `0-3`, MIG instances `0:1`, UUIDs (or unique
    prefixes of them), or CDI names `nvidia.com/gpu=0`.

    notes: on GPUs that are here and are left out, for the error about one that is not present. Raises
    UsageError for an invalid value, GpuError for a GPU that is not present.
    """
    wanted = parse_spec(spec)
    if wanted == "all":
        return list(gpus)
    present_gpus = "; ".join((present(gpus), *notes))
    if isinstance(wanted, int):
        if wanted > len(gpus):
            raise GpuError(
                f"--gpus {wanted}: this machine has {plural(len(gpus), 'GPU')}",
                location=present_gpus,
                fix="ask for fewer with --gpus" if gpus else "--gpus none runs on the CPU",
            )
        return list(gpus[:wanted])
    return [_find(gpus, item, present_gpus) for item in wanted]


def parse_spec(spec: str) -> str | int | list[int | str]:
    """A --gpus value as "all", a count, or a list of indices and UUIDs without repeats."""
    text = spec.strip()
    if text in ("all", "none"):
        return "all" if text == "all" else []
    if text.isdecimal():
        if int(text) == 0:
            raise UsageError(
                "--gpus 0 asks for zero GPUs", fix="write --gpus none, or --gpus 0-0 for GPU number 0"
            )
        return int(text)
    items: list[int | str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        items.extend(_parse_part(part, spec))
    if not items or len(set(items)) != len(items):
        raise UsageError(f"--gpus {spec!r} names {'a GPU twice' if items else 'no GPU'}", fix=SPEC_HELP)
    return items


def _parse_part(part: str, spec: str) -> list[int | str]:
    if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high - low > 1023:
            raise UsageError(f"--gpus {spec!r}: {part!r} is not a valid range", fix=SPEC_HELP)
        return list(range(low, high + 1))
    if re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]+|\d+:\d+", part) or CDI_NAME.fullmatch(part):
        return [part]
    raise UsageError(f"--gpus {spec!r}: {part!r} is not a GPU", fix=SPEC_HELP)


def placeholders(vendor: str, spec: str, default: int) -> list[Gpu]:
    """Placeholders for GPUs that are not in this machine, named so."""
    wanted = parse_spec(spec)
    if wanted == "all" or isinstance(wanted, int):
        wanted = list(range(wanted if isinstance(wanted, int) else default))
    return [
        Gpu(
            vendor=vendor,
            index=i if isinstance(i, int) else n,
            name="not resolved on this machine",
            uuid=i if isinstance(i, str) else f"<uuid of GPU {i}>",
            render_node=f"/dev/dri/<render node of GPU {i}>" if vendor == "amd" else None,
        )
        for n, i in enumerate(wanted)
    ]


def visible_env(gpus: Sequence[Gpu], vendor: str) -> dict[str, str]:
    """The environment in which a process sees these GPUs and no others, once MASKS are taken out of it."""
    if not gpus:
        return dict.fromkeys(HIDING, "-1")
    if vendor == "amd":
        return {"ROCR_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in gpus)}
    # CUDA's own order is by speed; NVML and nvidia-smi count by PCI bus.
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}


def matching(gpus: Sequence[Gpu], item: int | str) -> list[Gpu]:
    """The GPUs of this index, UUID (or the first characters of one), MIG number or CDI name.

    The index or UUID of a GPU that MIG divides matches all its instances.
    """
    if isinstance(item, int):
        return [gpu for gpu in gpus if gpu.index == item]
    if CDI_NAME.fullmatch(item):
        return [
            gpu for gpu in gpus if item == gpu.cdi or (gpu.vendor == "nvidia" and item in nvidia_names(gpu))
        ]
    if ":" in item:
        return [gpu for gpu in gpus if gpu.instance is not None and gpu.number == item]
    return [gpu for gpu in gpus if gpu.uuid.startswith(item) or (gpu.parent or "").startswith(item)]


def nvidia_names(gpu: Gpu) -> list[str]:
    """What nvidia-ctk may call an NVIDIA GPU, the surest first: an index may be another GPU's by now."""
    if gpu.vendor != "nvidia":
        return []
    kind = "gpu" if gpu.instance is None else "mig"
    return [f"nvidia.com/gpu={name}" for name in (gpu.uuid, gpu.number, f"{kind}{gpu.number}")]


def _find(gpus: Sequence[Gpu], item: int | str, present_gpus: str) -> Gpu:
    hits = matching(gpus, item)
    if len(hits) == 1:
        return hits[0]
    if hits and len({gpu.parent for gpu in hits}) == 1 and hits[0].parent:
        divider = "MIG" if hits[0].vendor == "nvidia" else "its partition mode"
        raise GpuError(
            f"{item!r} is a GPU that {divider} divides into {plural(len(hits), 'instance')}",
            location=present(hits),
            fix=f"name one of them, such as --gpus {hits[0].number}",
        )
    matches = "no GPU" if not hits else "more than one GPU"
    raise GpuError(
        f"{matches} on this machine matches {item!r}",
        location=present_gpus,
        fix="see `lab doctor` for the GPUs present",
    )


def present(gpus: Sequence[Gpu]) -> str:
    """The GPUs in one line, for an error about one that is not among them."""
    return "present: " + (", ".join(f"{g.number} {g.name} {g.uuid}" for g in gpus) or "none")
