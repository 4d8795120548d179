"""What a profiler saw of one run, whichever profiler it was: GPU operations, API calls and ranges as columns.

`load_capture` recognises the file by its content; every reader fills the same tables, so that one analysis
serves all. Every table is keyed by `process`, an index of `processes`: correlations, devices and threads are
unique within a process only. `collector` says which tool recorded: two are never mixed in one table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lab.recordings.lacks import Lack, Verdict, verdict_of
from lab.recordings.tables import GRAPH, KERNEL, MEMCPY, MEMSET, Schema, Table, filled
from lab.stats.columns import distinct, per_distinct

__all__ = [
    "GRAPH",
    "KERNEL",
    "MEMCPY",
    "MEMSET",
    "OP",
    "PUSH_POP",
    "START_END",
    "Capture",
    "Device",
    "Meta",
    "Process",
    "by_process",
    "filled",
    "once",
]

PUSH_POP, START_END, OP = 0, 1, 2  # kinds of ranges; OP: an operator recorded by the framework

# -1: not recorded. *_id and domain index `strings`; times are integer ns on one clock.
OPS_COLUMNS = {
    "process": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "kind": np.int8,
    "name_id": np.int32,
    "device": np.int32,
    "context": np.int64,
    "stream": np.int64,
    "pid": np.int64,
    "corr": np.int64,
    "external_id": np.int64,  # of the operator that launched it, as the recorder wrote it
    "bytes": np.int64,
    "graph": np.int64,
    "graph_node": np.int64,
    "grid_x": np.int32,
    "grid_y": np.int32,
    "grid_z": np.int32,
    "block_x": np.int32,
    "block_y": np.int32,
    "block_z": np.int32,
    "regs": np.int32,
    "static_smem_bytes": np.int64,
    "dynamic_smem_bytes": np.int64,
    "copy_kind": np.int16,
    "src_kind": np.int16,
    "dst_kind": np.int16,
    "green_context": np.int64,
}
API_COLUMNS = {
    "process": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "pid": np.int64,
    "tid": np.int64,
    "corr": np.int64,
    "external_id": np.int64,  # of the operator around it, as the recorder wrote it
    "name_id": np.int32,
    "kernel_id": np.int32,  # the kernel that a launch names, as on ROCm
}
RANGE_COLUMNS = {
    "process": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "pid": np.int64,
    "tid": np.int64,
    "end_tid": np.int64,  # -1: not recorded
    "name_id": np.int32,  # without `, seq = N`, `, op_id = N`, `, sizes = [...]`
    "text_id": np.int32,  # as recorded
    "domain": np.int32,  # -1: the default domain
    "kind": np.int8,
    "seq": np.int64,
    "row": np.int64,  # nsys: rowid in NVTX_EVENTS
    "external_id": np.int64,  # of kind OP: what `ops.external_id` refers to
    "rf_id": np.int64,  # of kind OP: torch's number of the record function, as in an execution trace
    "dims_id": np.int32,
    "types_id": np.int32,
    "strides_id": np.int32,
    "concrete_id": np.int32,
}
NODE_COLUMNS = {
    "process": np.int32,
    "start_ns": np.int64,
    "pid": np.int64,
    "tid": np.int64,
    "node": np.int64,  # what `ops.graph_node` refers to
    "original": np.int64,  # the node that it is a copy of, as in an instantiated graph; -1: none
}
SYNC_COLUMNS = {
    "process": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "pid": np.int64,
    "corr": np.int64,
    "device": np.int32,
    "stream": np.int64,
}
# The tables that are keyed by process.
PROCESS_TABLES: dict[str, Schema] = {
    "ops": OPS_COLUMNS,
    "api": API_COLUMNS,
    "ranges": RANGE_COLUMNS,
    "sync": SYNC_COLUMNS,
    "osrt": API_COLUMNS,
    "nodes": NODE_COLUMNS,
}

_COMM_COLUMNS = {
    "collective_id": np.int32,
    "in_nelems": np.int64,
    "out_nelems": np.int64,
    "in_split_id": np.int32,
    "out_split_id": np.int32,
    "dtype_id": np.int32,
    "group_size": np.int64,
    "pg_name_id": np.int32,
    "pg_desc_id": np.int32,
    "pg_ranks_id": np.int32,
    "seq": np.int64,
    # Of a send or a receive, -1 otherwise: its partner in the job, and as the profiler's `Rank` has it.
    "dst_rank": np.int64,
    "src_rank": np.int64,
    "group_rank": np.int64,
}
COLLECTIVE_COLUMNS = {"kernel": np.int64, **_COMM_COLUMNS}  # kernel: a row of `ops`
COMM_OP_COLUMNS = {"op": np.int64, **_COMM_COLUMNS}  # op: a row of `operators`
THREAD_COLUMNS = {"pid": np.int64, "tid": np.int64, "name_id": np.int32}
PROCESS_COLUMNS = {"pid": np.int64, "name_id": np.int32, "label_id": np.int32}
# Ends of the arrows from a forward operator to its backward one; `flow` pairs a start with its end.
FLOW_COLUMNS = {"ts_ns": np.int64, "pid": np.int64, "tid": np.int64, "flow": np.int64, "is_end": np.bool_}
# Calls of modules (with_modules, with_stack), and the profiler's copies of annotations on the GPU's rows; its
# other Python calls are read by graphs.frames.
SLICE_COLUMNS = {
    "start_ns": np.int64,
    "end_ns": np.int64,
    "pid": np.int64,
    "tid": np.int64,
    "name_id": np.int32,
}
MODULE = "nn.Module: "  # before a module's name
# A stream waits for an event: `corr` is that of the waiting call, `record` that of the call that recorded the
# event, on `on_stream`.
WAIT_COLUMNS = {
    "device": np.int32,
    "stream": np.int64,
    "corr": np.int64,
    "on_stream": np.int64,
    "record": np.int64,
}

COPY_KINDS = {
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
MEMORY_KINDS = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}

_COPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")
_DIRECTIONS = {
    "HtoD": "Host-to-Device",
    "DtoH": "Device-to-Host",
    "DtoD": "Device-to-Device",
    "HtoH": "Host-to-Host",
    "PtoP": "Peer-to-Peer",
}
_SUFFIX = re.compile(r"(, (?:seq|op_id) = \d+|, sizes = \[.*\]|, input_op_ids = \[.*\])+$")
_SEQ = re.compile(r", seq = (\d+)")


@dataclass(frozen=True)
class Process:
    """One process of a recording; None where the recording does not say. Times on the recording's clock.

    label is what a merge of several ranks put before the names of this one's rows.
    """

    pid: int | None = None
    rank: int | None = None
    host: str | None = None
    name: str | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    label: str = ""


# Stands for the process of GPU rows that no process in the file launched, or of which several could have.
UNCLAIMED = Process(name="unknown process")


@dataclass(frozen=True)
class Device:
    """One GPU; None where the recording does not say.

    device is its id in `ops`, for process `pid` (-1: for all processes) of index `process` (-1: for all).
    """

    device: int
    name: str
    pid: int = -1
    memory_bytes: int | None = None
    bandwidth_bytes_per_s: int | None = None
    clock_hz: int | None = None
    num_sms: int | None = None
    compute: tuple[int, int] | None = None
    process: int = -1


@dataclass(frozen=True)
class Meta:
    """What a recording says about its job; None where it does not say.

    vendor is `nvidia`, `amd` or `none`; base_ns has been added to every time (0: times were absolute).
    num_sms counts the multiprocessors (compute units) of each of `devices`, 0 where it does not say.
    Versions are as written: CUDA and HIP as the integer of the runtime.
    """

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    vendor: str = "none"
    devices: tuple[str, ...] = ()
    base_ns: int = 0
    nccl_version: str | None = None
    torch_version: str | None = None
    cuda_version: int | None = None
    hip_version: int | None = None
    host: str | None = None
    num_sms: tuple[int, ...] = ()
    stacks: bool = False  # Python calls or modules were recorded


@dataclass(frozen=True)
class DeviceEvents:
    """What nsys alone records beside operations: sampled GPU metrics, and page faults of unified memory.

    samples: (GPU, metric) -> times (n,) in ns and percent of the peak (n,), by time; metrics are sm_active,
    tensor_active, dram_read and dram_write.
    gpus: (pid, CUDA device) -> GPU; {} where the recording does not say which GPU a device is.
    faults: `cpu`, `gpu` -> columns pid, start_ns and pages, each (m,); those without a table are absent.
    """

    samples: Mapping[tuple[int, str], tuple[np.ndarray, np.ndarray]]
    gpus: Mapping[tuple[int, int], int]
    faults: Mapping[str, Mapping[str, np.ndarray]]


# What torch.profiler alone records.
_TORCH_TABLES: dict[str, Schema] = {
    "collectives": COLLECTIVE_COLUMNS,
    "comm_ops": COMM_OP_COLUMNS,
    "thread_names": THREAD_COLUMNS,
    "process_names": PROCESS_COLUMNS,
    "flows": FLOW_COLUMNS,
    "modules": SLICE_COLUMNS,
    "gpu_ranges": SLICE_COLUMNS,
    "waits": WAIT_COLUMNS,
}
_NO_ROWS = {name: filled(schema) for name, schema in (PROCESS_TABLES | _TORCH_TABLES).items()}


@dataclass(frozen=True)
class Capture:
    """One recording. Columns of the tables stand at the top of this module; rows keep the recording's order.

    ops: kernels, copies, fills (`kind`), and graph replays of which the kernels were not recorded;
    api: calls that the CPU made; ranges: what the program named, and the framework's operators; sync: waits;
    osrt: calls of the operating system's libraries, with the columns of `api`;
    nodes: when, and by which thread, each node of a graph was made;
    device_events: of nsys, for all processes.
    collector is `nsys`, `kineto`, `rocpd`, `rpd`, `rocprofv3` or `xplane`, version the tool's (or
    torch's), schema that of the export. processes are what the tables' `process` refers to. problems are
    sentences about what was odd; whatever was left out is named there. lacks says what the recording itself
    is missing, truncated that its end is.

    torch.profiler alone records the rest: collectives have a row per kernel with NCCL metadata, comm_ops the
    same for the operators that launched a collective; flows are the arrows from forward to backward, modules
    the calls of modules, waits those of streams for events, gpu_ranges the annotations on a GPU's rows.
    """

    source: Path
    collector: str
    ops: Table
    api: Table
    ranges: Table
    strings: list[str]
    version: str | None = None
    schema: str | None = None
    devices: tuple[Device, ...] = ()
    problems: list[str] = field(default_factory=list)
    info: dict[str, str] = field(default_factory=dict)
    processes: tuple[Process, ...] = (Process(),)
    lacks: tuple[Lack, ...] = ()
    sync: Table = _NO_ROWS["sync"]
    osrt: Table = _NO_ROWS["osrt"]
    nodes: Table = _NO_ROWS["nodes"]
    device_events: DeviceEvents | None = None
    meta: Meta = Meta()
    truncated: bool = False
    collectives: Table = _NO_ROWS["collectives"]
    comm_ops: Table = _NO_ROWS["comm_ops"]
    thread_names: Table = _NO_ROWS["thread_names"]
    process_names: Table = _NO_ROWS["process_names"]
    flows: Table = _NO_ROWS["flows"]
    modules: Table = _NO_ROWS["modules"]
    gpu_ranges: Table = _NO_ROWS["gpu_ranges"]
    waits: Table = _NO_ROWS["waits"]
    _views: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def verdict(self) -> Verdict:
        """Whether everything that happened in the recorded window is here."""
        return verdict_of(self.lacks)

    def text(self, ids: np.ndarray) -> np.ndarray:
        """Texts (n,) of string ids (n,) as an object array; "" where the id is -1."""
        lookup: np.ndarray = np.array([*self.strings, ""], dtype=object)
        texts: np.ndarray = lookup[ids]
        return texts

    def name(self, index: int) -> str:
        """The text of one string id, "" for -1."""
        return self.strings[index] if index >= 0 else ""

    def by_text(self, value_of: Callable[[str], Any], ids: np.ndarray, missing: Any = False) -> np.ndarray:
        """value_of the text of each string id (n,), `missing` where the id is -1; each text is asked once."""
        values: np.ndarray = np.array([*map(value_of, self.strings), missing])[ids]
        return values

    @property
    def kernels(self) -> np.ndarray:
        """Mask (n,) of `ops`: kernels only."""
        mask: np.ndarray = self.ops.kind == KERNEL
        return mask

    @property
    def work(self) -> np.ndarray:
        """Mask (n,) of `ops`: kernels, and whole graph replays in one row, which compute as well."""
        mask: np.ndarray = (self.ops.kind == KERNEL) | (self.ops.kind == GRAPH)
        return mask

    @cached_property
    def operator_rows(self) -> np.ndarray:
        """The rows (m,) of `ranges` that are operators of the framework."""
        return np.flatnonzero(self.ranges.kind == OP)

    @cached_property
    def operators(self) -> Table:
        """The framework's operators, in the order of `ranges`."""
        rows = self.operator_rows
        begin = len(self.ranges) - len(rows)
        stand_last = len(rows) == 0 or rows[0] == begin
        return self.ranges.part(begin) if stand_last else self.ranges.take(rows)

    @cached_property
    def annotations(self) -> Table:
        """What the program named: `ranges` without the operators."""
        return self.ranges.where(self.ranges.kind != OP)


View = TypeVar("View", np.ndarray, Table)


def once(view: Callable[[Capture], View]) -> Callable[[Capture], View]:
    """Compute a view of a capture at the first call, and keep it, read-only, as long as the capture."""

    @wraps(view)
    def cached(capture: Capture) -> View:
        name = f"{view.__module__}.{view.__qualname__}"
        if name not in capture._views:
            value = view(capture)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            capture._views[name] = value
        result: View = capture._views[name]
        return result

    return cached


class Strings(dict[str, int]):
    """Distinct texts by number, assigned when first seen; `texts` given at the start keep their indices."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        super().__init__((text, index) for index, text in reversed(list(enumerate(texts))))
        self.texts = list(texts)

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self.texts)
        self.texts.append(text)
        return number

    def id(self, text: str) -> int:
        return self[text]

    def stripped(self, text_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids (n,) of the names without operator numbers and sizes, and the sequence numbers (n,), or -1."""
        names, seqs = per_distinct(text_ids, self._split, width=2).T
        return names, seqs

    def _split(self, index: int) -> tuple[int, int]:
        if index < 0:
            return -1, -1
        text = self.texts[index]
        bare = _SUFFIX.sub("", text)
        if bare == text:
            return index, -1
        seq = _SEQ.search(text)
        return self.id(bare), min(int(seq.group(1)), 2**62) if seq else -1


def by_process(tables: Sequence[Table]) -> tuple[list[Table], tuple[Process, ...]]:
    """The tables with `process` filled in from their pids, and the processes by pid; -1 (not recorded) joins
    the only process there is, or becomes one of its own."""
    pids = distinct(np.concatenate([distinct(table.pid) for table in tables]))
    if len(pids) > 1 and len(pids[pids >= 0]) == 1:
        pids = pids[pids >= 0]
    processes = tuple(Process(pid=int(pid) if pid != -1 else None) for pid in pids) or (Process(),)
    indices = [
        np.searchsorted(pids, np.maximum(table.pid, pids[0])) if len(pids) else table.pid for table in tables
    ]
    return [
        table.with_columns(process=index.astype(np.int32))
        for table, index in zip(tables, indices, strict=True)
    ], processes


def copy_kinds(names: Sequence[str]) -> dict[str, np.ndarray]:
    """nsys' numbers for what Kineto writes into a name such as `Memcpy HtoD (Pageable -> Device)`.

    Columns (n + 1,) copy_kind, src_kind and dst_kind by name; -1 for other names, and at the end.
    """
    matches = [_COPY.match(text) for text in names]
    columns = {}
    for name, group, texts in (
        ("copy_kind", 1, COPY_KINDS),
        ("src_kind", 2, MEMORY_KINDS),
        ("dst_kind", 3, MEMORY_KINDS),
    ):
        numbers = {text: number for number, text in texts.items()}
        codes = [
            numbers.get(_DIRECTIONS.get(match[group], match[group]), -1) if match else -1 for match in matches
        ]
        columns[name] = np.array([*codes, -1], dtype=np.int16)
    return columns


def shared_memory_bytes(ops: Table) -> np.ndarray:
    """Shared memory (n,) of each GPU row, static and dynamic together; -1 where neither is recorded."""
    static, dynamic = ops.static_smem_bytes, ops.dynamic_smem_bytes
    total: np.ndarray = np.where(dynamic >= 0, dynamic + np.maximum(static, 0), static)
    smem_bytes: np.ndarray = np.minimum(total, np.iinfo(np.int32).max)
    return smem_bytes
