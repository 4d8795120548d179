"""What AMD's formats have in common: work items, copies, dispatch ids, agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError
from lab.recordings.capture import Device
from lab.recordings.lacks import Lack
from lab.stats.columns import distinct

# Numbers of `capture.COPY_KINDS`; rocprofv3 writes MEMORY_COPY_HOST_TO_DEVICE, .rpd CopyHostToDevice.
_COPY_KINDS = {"hosttodevice": 1, "devicetohost": 2, "devicetodevice": 8, "hosttohost": 9}
_DEVICE_MEMORY = 2
# 146 years in ns: a time beyond it would overflow where durations are added up.
LATEST_NS = 1 << 62
_LARGEST = np.iinfo(np.int32).max
API_CATEGORIES = ("HIP_", "HSA_", "RCCL_", "ROCDECODE_", "ROCJPEG_", "MARKER_CONTROL_", "MARKER_NAME_")
MARKERS = ("MARKER_CORE_API", "MARKER_CORE_RANGE_API")
# Of roctx, those that another thread may end; the others nest within their thread.
START_STOP = ("roctxProcessRangeA", "roctxRangeStartA")
NO_TEXT = ("roctxGetThreadId",)


def narrow(column: np.ndarray) -> np.ndarray:
    """The column (n,) with -1 (not recorded) for what no int32 holds, instead of its lowest bits."""
    found: np.ndarray = np.where(np.abs(column) > _LARGEST, -1, column)
    return found


def sound_times(
    where: Path, what: str, start: np.ndarray, end: np.ndarray, problems: list[str]
) -> dict[str, np.ndarray]:
    """start_ns and end_ns (n,), equal where the end is missing or before the start; a problem counts those.

    Raises BadDataError for times that nobody could have recorded.
    """
    if ((start < 0) | (start > LATEST_NS) | (end > LATEST_NS)).any():
        raise BadDataError(f"{what} with impossible times (below 0 or above 2^62 ns)", location=where)
    if backward := int((end < start).sum()):
        problems.append(f"{what}: {plural(backward, 'row')} without a valid end, counted as 0 ns long")
    return {"start_ns": start, "end_ns": np.maximum(start, end)}


def blocks(items: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Blocks (n,) of a grid that counts work items; -1 where either is not recorded."""
    known = (items >= 0) & (block > 0)
    found: np.ndarray = np.where(known, -(-items // np.where(known, block, 1)), -1)
    return narrow(found)


def copy_columns(texts: list[str], name_ids: np.ndarray) -> dict[str, np.ndarray]:
    """copy_kind, src_kind and dst_kind (n,) of copies by their names."""
    bare = [text.lower().replace("_", "").removeprefix("memorycopy").removeprefix("copy") for text in texts]
    kinds = np.array([*(_COPY_KINDS.get(text, -1) for text in bare), -1], dtype=np.int16)[name_ids]
    return {
        "copy_kind": kinds,
        "src_kind": np.where(np.isin(kinds, (2, 8)), _DEVICE_MEMORY, -1),
        "dst_kind": np.where(np.isin(kinds, (1, 8)), _DEVICE_MEMORY, -1),
    }


def dispatch_lacks(process: int, ids: np.ndarray, *, calls: bool) -> list[Lack]:
    """What the ids of a process' dispatches (n,) prove: they count 1, 2, 3, ...

    calls: whether API calls were recorded, which show a missing end; the ids alone cannot.
    """
    seen = distinct(ids[ids > 0])
    if not len(seen):
        return []
    first, last = int(seen[0]), int(seen[-1])
    found = []
    if first > 1:
        text = f"the first {plural(first - 1, 'dispatch')} of the process, up to id {first - 1}, are not here"
        found.append(Lack("gpu", "head", "D", process, first - 1, last, (first - 1) / last, text))
    if missing := last - first + 1 - len(seen):
        text = f"{missing:,} of {plural(last, 'dispatch')} are missing between others: {_gaps(seen)}"
        found.append(Lack("gpu", "hole", "D", process, missing, last, missing / last, text))
    if not calls:
        text = (
            f"dispatch ids end at {last:,}; without API calls nobody can say whether later ones are missing"
        )
        found.append(Lack("gpu", "tail", "D", process, 0, last, None, text, unknown=True))
    return found


def _gaps(seen: np.ndarray, most: int = 3) -> str:
    at = np.flatnonzero(np.diff(seen) > 1)
    spans = [(int(seen[one]) + 1, int(seen[one + 1]) - 1) for one in at[:most]]
    words = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in spans]
    return (
        "ids " + ", ".join(words) + (f" and {plural(len(at) - most, 'more gap')}" if len(at) > most else "")
    )


def repeated_dispatches(ids: np.ndarray) -> list[str]:
    """One sentence where several rows have one dispatch id: passes of a replay for counters."""
    known = ids[ids > 0]
    repeated = len(known) - len(distinct(known))
    if not repeated:
        return []
    return [
        f"{plural(repeated, 'row')} repeat the id of another dispatch (kernels replayed for counters): "
        "counts and times include every pass"
    ]


def device_of_agent(agent: dict[str, Any], ordinal: int, name: str, process: int) -> Device:
    """A GPU from what rocprofiler-sdk writes about its agent; the clock is the highest it can have."""
    clock_mhz, units = (_whole(agent.get(key)) for key in ("max_engine_clk_fcompute", "cu_count"))
    return Device(
        device=ordinal,
        name=name,
        process=process,
        memory_bytes=_memory_bytes(agent),
        clock_hz=clock_mhz * 1_000_000 if clock_mhz else None,
        num_sms=units,
    )


def _memory_bytes(agent: dict[str, Any]) -> int | None:
    banks = agent.get("mem_banks")
    sizes = (
        [_whole(bank.get("size_in_bytes")) for bank in banks if isinstance(bank, dict)]
        if isinstance(banks, list)
        else []
    )
    return sum(size or 0 for size in sizes) or None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and 0 < value < 1 << 50 else None
