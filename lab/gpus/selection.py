"""Which GPUs a --gpus value means, and how a process is given them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lab.core.gpu import Gpu
from lab.core.words import plural
from lab.errors import GpuError, UsageError

SPEC_HELP = "use all, none, a count (4), indices (0,2 or 0-3), or UUIDs"


def select(gpus: Sequence[Gpu], spec: str) -> list[Gpu]:
    """Choose GPUs by `all`, `none`, a count `N`, indices `0,2` or `0-3`, or UUIDs (unique prefixes will do).

    Raises UsageError for an invalid value, GpuError for a GPU that is not present.
    """
    wanted = parse_spec(spec)
    if wanted == "all":
        return list(gpus)
    if isinstance(wanted, int):
        if wanted > len(gpus):
            raise GpuError(
                f"--gpus {wanted}: this machine has {plural(len(gpus), 'GPU')}",
                where=_present(gpus),
                fix="ask for fewer with --gpus",
            )
        return list(gpus[:wanted])
    return [_find(gpus, item) for item in wanted]


def parse_spec(spec: str) -> str | int | list[int | str]:
    """A --gpus value as "all", a count, or a list of indices and UUIDs without repeats."""
    text = spec.strip()
    if text in ("all", "none"):
        return "all" if text == "all" else []
    if text.isdigit():
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
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > 1023:
            raise UsageError(f"--gpus {spec!r}: {part!r} is not a valid range", fix=SPEC_HELP)
        return list(range(first, last + 1))
    if re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]+", part):
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
    """The environment in which a process sees these GPUs and no others."""
    if vendor == "amd":
        return {"ROCR_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in gpus)}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}


def _find(gpus: Sequence[Gpu], item: int | str) -> Gpu:
    hits = [g for g in gpus if (g.index == item if isinstance(item, int) else g.uuid.startswith(item))]
    if len(hits) == 1:
        return hits[0]
    found = "no GPU" if not hits else "more than one GPU"
    raise GpuError(
        f"{found} on this machine matches {item!r}",
        where=_present(gpus),
        fix="see `lab doctor` for the GPUs present",
    )


def _present(gpus: Sequence[Gpu]) -> str:
    return "present: " + (", ".join(f"{g.index} {g.name} {g.uuid}" for g in gpus) or "none")
