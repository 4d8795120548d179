"""Kernels, copies, fills and graph replays on the streams of one GPU."""

from __future__ import annotations

import re

import numpy as np

from lab.core.words import plural, printable
from lab.recordings.capture import GRAPH, KERNEL, MEMCPY, MEMORY_KINDS, MEMSET, OPS_COLUMNS, Device, filled
from lab.recordings.tables import Table
from lab.recordings.xplane.planes import Columns, Plane
from lab.stats.columns import per_distinct

_STREAM = re.compile(r"Stream #?\d+")  # other lines of a GPU repeat its rows by step, module or operation
# The stat with a GPU row's details, and the kind of such a row; -1: bookkeeping of memory.
_DETAILS = {
    "kernel_details": KERNEL,
    "memcpy_details": MEMCPY,
    "Memset_details": MEMSET,
    **dict.fromkeys(("memalloc_details", "MemFree_details", "MemoryResidency_details"), -1),
}
_SIZES = {
    "regs": "regs",
    "static_shared": "static_smem_bytes",
    "shm": "static_smem_bytes",
    "dynamic_shared": "dynamic_smem_bytes",
    "group_mem": "dynamic_smem_bytes",
    "size": "bytes",
    "num_bytes": "bytes",
}
_SIZE = re.compile(rf"\b({'|'.join(_SIZES)}):(\d{{1,18}})")
_AXES = re.compile(r"\b(grid|block):(\d{1,9}),(\d{1,9}),(\d{1,9})")
_DETAIL_COLUMNS = (
    *dict.fromkeys(_SIZES.values()),
    *(f"{size}_{axis}" for size in ("grid", "block") for axis in "xyz"),
    *("src_kind", "dst_kind"),
)
_MEMORY = re.compile(r"\b(?:kind_)?(src|dst):(\w+)")
_MEMORIES = {name.lower().replace(" ", "_"): kind for kind, name in MEMORY_KINDS.items()}
_COPIES = {"MemcpyH2D": 1, "MemcpyD2H": 2, "MemcpyD2D": 8, "MemcpyH2H": 9, "MemcpyP2P": 10}
HLO_OPS = OPS_COLUMNS | {"hlo_id": np.int64}


def gpu_rows(plane: Plane, device: int, profile_ns: int, problems: list[str]) -> Table:
    """Kernels, copies, fills and graph replays of one GPU, with the id of their operation as `hlo_id`."""
    streams = [row for row, (_, name) in enumerate(plane.lines) if not name or _STREAM.match(name)]
    on_stream = np.isin(plane.line, streams)
    if not on_stream.all():
        lines = sorted({plane.lines[row][1] for row in plane.line[~on_stream].tolist() if row >= 0})
        problems.append(
            f"{plural(int((~on_stream).sum()), 'row')} of {plane.name} outside its streams left out "
            f"({printable(', '.join(lines))[:200]})"
        )
    kind, details = _kinds_and_details(plane)
    graph_node = plane.numbers("cuda_graph_node_id")
    kind[(plane.numbers("cuda_graph_exec_id") >= 0) & (graph_node < 0)] = GRAPH
    rows = np.flatnonzero(on_stream & (kind >= 0))
    numbers = np.array([*(number for number, _ in plane.lines), -1])
    columns = {
        "process": np.zeros(len(plane.line)),
        "kind": kind,
        "name_id": plane.name_id,
        "device": np.full(len(plane.line), device),
        "stream": numbers[plane.line],
        "context": plane.by_text(plane.texts("context_id"), _digits),
        "corr": plane.numbers("correlation_id"),
        "graph": plane.numbers("cuda_graph_id"),
        "graph_node": graph_node,
        "copy_kind": plane.by_text(plane.name_id, lambda name: _COPIES.get(name, -1)),
        "hlo_id": plane.operators(),
        **_details(plane, details),
    }
    return filled(
        HLO_OPS,
        len(rows),
        {name: column[rows] for name, column in columns.items()} | plane.times(rows, profile_ns),
    )


def _kinds_and_details(plane: Plane) -> tuple[np.ndarray, np.ndarray]:
    """The kind (n,) of each GPU row, -1 for bookkeeping of memory, and the text id (n,) of its details."""
    kind = np.maximum(plane.by_text(plane.name_id, _kind_by_name), KERNEL)
    details = np.full(len(kind), -1, dtype=np.int64)
    for key, kind_of_key in _DETAILS.items():
        ids = plane.texts(key)
        kind[ids >= 0] = kind_of_key
        details = np.maximum(details, ids)
    return kind, details


def _kind_by_name(name: str) -> int:
    return MEMCPY if name.startswith("Memcpy") else MEMSET if name.startswith("Memset") else KERNEL


def _digits(text: str) -> int:
    digits = text.lstrip("$")
    return int(digits) if digits.isdecimal() and len(digits) < 19 else -1


def _details(plane: Plane, ids: np.ndarray) -> Columns:
    """Sizes (n,) out of texts such as `regs:32 static_shared:0 dynamic_shared:0 grid:8,1,1 block:128,1,1`."""
    texts = plane.strings.texts

    def sizes_of(text: int) -> list[int]:
        sizes = _parsed(texts[text]) if text >= 0 else {}
        return [sizes.get(name, -1) for name in _DETAIL_COLUMNS]

    columns = per_distinct(ids, sizes_of, width=len(_DETAIL_COLUMNS)).T
    return dict(zip(_DETAIL_COLUMNS, columns, strict=True))


def _parsed(details: str) -> dict[str, int]:
    numbers = _SIZE.findall(details)
    sizes = {_SIZES[key]: int(digits) for key, digits in numbers if key != "regs" or len(digits) < 10}
    for size, *lengths in _AXES.findall(details):
        sizes |= {f"{size}_{axis}": int(length) for axis, length in zip("xyz", lengths, strict=True)}
    for end, memory in _MEMORY.findall(details):
        sizes[f"{end}_kind"] = _MEMORIES.get(memory.lower(), -1)
    return sizes


def device_of(device: int, about: dict[str, int | str]) -> Device:
    numbers = {key: value for key, value in about.items() if isinstance(value, int) and value > 0}
    compute = (numbers.get("compute_cap_major"), about.get("compute_cap_minor"))
    clock_khz = numbers.get("clock_rate")
    return Device(
        device=device,
        name=str(about.get("gpu_device_name", "")),
        memory_bytes=numbers.get("memory_size"),
        bandwidth_bytes_per_s=numbers.get("memory_bandwidth"),
        clock_hz=clock_khz * 1000 if clock_khz else None,
        num_sms=numbers.get("core_count"),
        compute=compute if all(isinstance(part, int) for part in compute) else None,  # type: ignore[arg-type]
    )
