"""Reader of XPlane files (`.xplane.pb`), what the profilers of JAX, XLA and TensorFlow write.

One protobuf message: planes (a GPU, the host), in them lines (a stream, a thread), in them events, whose
names and stats are interned per plane (openxla/xla, third_party/tsl/tsl/profiler/protobuf/xplane.proto). A
GPU row names the HLO operation that it belongs to; the calls of the driver stand on the host's lines. What
the recorder dropped it says in warnings alone (xla/backends/profiler/gpu/cupti_collector.cc).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.core.words import plural, printable
from lab.errors import BadDataError
from lab.recordings.capture import (
    API_COLUMNS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMORY_KINDS,
    MEMSET,
    OP,
    OPS_COLUMNS,
    PUSH_POP,
    RANGE_COLUMNS,
    Capture,
    Device,
    Process,
    Strings,
    filled,
)
from lab.recordings.lacks import Axis, Lack, doubt
from lab.recordings.sqlite import lookup
from lab.recordings.tables import Columns, Table
from lab.recordings.xplane.planes import Plane, Space, read_space
from lab.stats.columns import per_distinct

_STREAM = re.compile(r"Stream #?\d+")  # other lines of a GPU repeat its rows by step, module or operation
_KINDS = {"Memcpy": MEMCPY, "Memset": MEMSET}  # by the begin of a name
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
        {name: column[rows] for name, column in columns.items()} | plane.times(rows, profile_ns),
    )


def _kinds_and_details(plane: Plane) -> tuple[np.ndarray, np.ndarray]:
    """The kind (n,) of each GPU row, -1 for bookkeeping of memory, and the text id (n,) of its details."""
    kind = np.maximum(plane.by_text(plane.name_id, lambda name: _KINDS.get(name[:6], KERNEL)), KERNEL)
    details = np.full(len(kind), -1, dtype=np.int64)
    for key, kind_of_key in _DETAILS.items():
        ids = plane.texts(key)
        kind[ids >= 0] = kind_of_key
        details = np.maximum(details, ids)
    return kind, details


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


_GPU = re.compile(r"/device:GPU:(\d{1,4})")
_HOST = "/host:"
_MOST_THREAD = (1 << 63) - 1
_FRAME = "$"  # before a frame of Python's stack
_GRAPH_OF_CALL = re.compile(r" \(CudaGraph:\d+\)\Z")
_DROPPED = re.compile(r"(\d{1,18}) events dropped because ([^;.]*)")


def load(path: Path | str) -> Capture:
    """Read the GPUs and the host of one file."""
    path, strings = Path(path), Strings()
    space = read_space(path, strings)
    if not space.planes:
        raise BadDataError("an XPlane file without planes", location=path, fix="record it again")
    problems, profile_ns = list[str](), _profile_start_ns(space)
    gpus = [(int(match[1]), plane) for plane in space.planes if (match := _GPU.fullmatch(plane.name))]
    hosts = [plane for plane in space.planes if plane.name.startswith(_HOST)]
    pids = [pid for plane in hosts if isinstance(pid := plane.about().get("process_id"), int)]
    api, ranges = _host_tables(hosts, profile_ns)
    parts = [gpu_rows(plane, device, profile_ns, problems) for device, plane in gpus]
    ops, operators = _with_operators(filled(HLO_OPS, *parts), api)
    devices = tuple(device_of(device, plane.about()) for device, plane in gpus)
    is_amd = any(plane.about().get("device_vendor") == "AMD" for _, plane in gpus)
    return Capture(
        source=path,
        collector="xplane",
        ops=ops,
        api=api,
        ranges=filled(RANGE_COLUMNS, ranges, operators),
        strings=strings.texts,
        devices=devices,
        problems=problems,
        info={"vendor": "amd" if is_amd else "nvidia" if gpus else "none"},
        processes=(Process(pid=next(iter(pids), None), host=next(iter(space.hosts), None)),),
        lacks=(*_unread(space, len(ops)), *_words(space, len(ops), len(api))),
    )


def _profile_start_ns(space: Space) -> int:
    """When the profile began; the lines of newer files count from then."""
    starts = [plane.about().get("profile_start_time", 0) for plane in space.planes]
    return max((start for start in starts if isinstance(start, int)), default=0)


def _host_tables(hosts: Sequence[Plane], profile_ns: int) -> tuple[Table, Table]:
    """The driver's calls, and what the program and its runtime named: ranges, steps, operations on the CPU.

    Frames of Python's stack and events without a duration are left out.
    """
    calls, ranges = list[Table](), list[Table]()
    for plane in hosts:
        # Threads that are hashes may be below 0, which stands for a name elsewhere.
        threads = np.array([*(number & _MOST_THREAD for number, _ in plane.lines), -1])
        corr = plane.numbers("correlation_id")
        operator = np.where(plane.texts("hlo_op") >= 0, plane.operators(), -1)
        frames = [row for row, text in enumerate(plane.strings.texts) if text.startswith(_FRAME)]
        is_call = (plane.line >= 0) & (corr >= 0)
        is_range = (
            (plane.line >= 0) & (corr < 0) & (plane.end_ns > plane.start_ns) & ~np.isin(plane.name_id, frames)
        )
        for mask, schema, parts in ((is_call, API_COLUMNS, calls), (is_range, RANGE_COLUMNS, ranges)):
            rows = np.flatnonzero(mask)
            columns = plane.times(rows, profile_ns) | {
                "process": np.zeros(len(rows)),
                "tid": threads[plane.line[rows]],
                "corr": corr[rows],
                "kind": np.where(operator[rows] >= 0, OP, PUSH_POP),
                "name_id": _range_names(plane, rows, operator),
            }
            columns["text_id"] = columns["name_id"]
            parts.append(filled(schema, columns))
    return filled(API_COLUMNS, *calls), filled(RANGE_COLUMNS, *ranges)


def _range_names(plane: Plane, rows: np.ndarray, operator: np.ndarray) -> np.ndarray:
    """The names (n,) of host events: a step with its number, an operation with its module."""
    strings = plane.strings
    bare = plane.by_text(plane.name_id[rows], lambda name: strings.id(_GRAPH_OF_CALL.sub("", name)))
    step = np.where(plane.numbers("_r") == 1, plane.numbers("step_num"), -1)[rows]
    for row in np.flatnonzero(step >= 0).tolist():
        name = strings.texts[bare[row]]
        bare[row] = strings.id(f"{name}{'' if 'step' in name.lower() else ' step'} {step[row]}")
    return np.where(operator[rows] >= 0, operator[rows], bare)


def _with_operators(ops: Table, api: Table) -> tuple[Table, Table]:
    """The rows with an external id, and the operations that it names as ranges.

    XLA times no operation on the host: each lasts as long as the call that launched its rows; without the
    call it is an instant of no thread.
    """
    calls = lookup(api.corr, np.arange(len(api)), ops.corr)
    named = np.flatnonzero(ops.hlo_id >= 0)
    call = calls[named]
    keys = np.stack([call, ops.hlo_id[named], np.where(call < 0, named, -1)], axis=1)
    _, heads, index = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    # Beyond every correlation id: an external id that equals its row's own proves nothing.
    ids = np.arange(len(heads)) + 1 + max(ops.corr.max(initial=0), 0)
    external = np.full(len(ops), -1, dtype=np.int64)
    external[named] = ids[index.reshape(-1)]
    rows, launch = named[heads], call[heads]
    on_thread = {name: np.append(getattr(api, name), -1)[launch] for name in ("start_ns", "end_ns", "tid")}
    for name in ("start_ns", "end_ns"):
        on_thread[name] = np.where(launch < 0, ops.start_ns[rows], on_thread[name])
    names = ops.hlo_id[rows]
    fixed = {"process": np.zeros(len(rows)), "kind": np.full(len(rows), OP)}
    operators = on_thread | fixed | {"name_id": names, "text_id": names, "external_id": ids}
    ops = filled(OPS_COLUMNS, ops.with_columns(external_id=external))
    return ops, filled(RANGE_COLUMNS, operators)


def _unread(space: Space, num_ops: int) -> Iterator[Lack]:
    """Rows that no rule looks at: of TPUs and other accelerators; GPUs without a row."""
    for plane in space.planes:
        count, is_gpu = len(plane.line), _GPU.fullmatch(plane.name) is not None
        if count and not is_gpu and not plane.name.startswith(_HOST):
            text = f"{plural(count, 'row')} of {printable(plane.name)[:80]} not read: lab reads GPUs"
            yield doubt("gpu", "N", text, n=count, of=num_ops + count)
    if not num_ops and any(_GPU.fullmatch(plane.name) for plane in space.planes):
        yield doubt("gpu", "N", "GPUs are named, but none of their rows")


def _words(space: Space, num_ops: int, num_calls: int) -> Iterator[Lack]:
    """What the profiler itself says: events that it dropped are lost, anything else may matter."""
    for plane in space.planes:
        dropped = plane.about().get("dropped_traces")
        if isinstance(dropped, int) and dropped > 0:
            text = f"the profiler dropped {plural(dropped, 'trace')} of {printable(plane.name)[:80]}"
            yield Lack("gpu", "all", "N", -1, dropped, num_ops + dropped, None, text)
    for words in (*space.errors, *space.warnings):
        for digits, reason in _DROPPED.findall(words):
            count = int(digits)
            axis: Axis = "host" if "driver" in reason or "callback" in reason else "gpu"
            of = count + (num_calls if axis == "host" else num_ops)
            text = f"the profiler dropped {plural(count, 'event')}: {printable(reason)[:200]}"
            yield Lack(axis, "all", "N", -1, count, of, None, text)
        if not _DROPPED.search(words):
            yield doubt("gpu", "N", f"the profiler says: {printable(words.strip())[:300]}")
