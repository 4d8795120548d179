"""One schema for traces: columns of equal length, times in integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lab.recordings.lacks import Lack

KERNEL, MEMCPY, MEMSET = 0, 1, 2
NO_SYMBOL = (
    "(no symbol recorded)"  # at the end of what stands for a kernel's name that is not in the recording
)
GRAPH = 3  # a whole graph replay, recorded as one row without its kernels
Schema = Mapping[str, Any]

# Column names and types of each table. -1: not recorded; *_id columns index `strings`.
# A pid or tid that is a number stays that number; a text one becomes -2 minus its index in `strings`.
KERNEL_COLUMNS = {
    "ts_ns": np.int64,
    "dur_ns": np.int64,
    "pid": np.int64,  # of its row in the file: the GPU's number, or what a merge made of it
    "device": np.int32,
    "stream": np.int64,
    "correlation": np.int64,
    "external_id": np.int64,
    "name_id": np.int32,
    "kind": np.int8,
    "grid_x": np.int32,
    "grid_y": np.int32,
    "grid_z": np.int32,
    "block_x": np.int32,
    "block_y": np.int32,
    "block_z": np.int32,
    "bytes": np.int64,
    "smem_bytes": np.int32,
    "regs": np.int32,
    "graph": np.int64,
    "graph_node": np.int64,
}
OP_COLUMNS = {
    "ts_ns": np.int64,
    "dur_ns": np.int64,
    "pid": np.int64,
    "tid": np.int64,
    "external_id": np.int64,
    "rf_id": np.int64,
    "sequence": np.int64,
    "name_id": np.int32,
    "dims_id": np.int32,
    "types_id": np.int32,
    "strides_id": np.int32,
    "concrete_id": np.int32,
}
RUNTIME_COLUMNS = {
    "ts_ns": np.int64,
    "dur_ns": np.int64,
    "pid": np.int64,
    "tid": np.int64,
    "correlation": np.int64,
    "external_id": np.int64,
    "name_id": np.int32,
    "kernel_id": np.int32,  # the kernel that a launch names, as on ROCm
}
RANGE_COLUMNS = {
    "ts_ns": np.int64,
    "dur_ns": np.int64,
    "pid": np.int64,
    "tid": np.int64,
    "name_id": np.int32,
    "on_gpu": np.bool_,
    "dims_id": np.int32,
    "types_id": np.int32,
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
}
COLLECTIVE_COLUMNS = {"kernel": np.int64, **_COMM_COLUMNS}
COMM_OP_COLUMNS = {"op": np.int64, **_COMM_COLUMNS}
THREAD_COLUMNS = {"pid": np.int64, "tid": np.int64, "name_id": np.int32}
# Ends of the arrows from a forward operator to its backward one; `flow` pairs a start with its end.
FLOW_COLUMNS = {"ts_ns": np.int64, "pid": np.int64, "tid": np.int64, "flow": np.int64, "is_end": np.bool_}
# Calls of modules (with_modules, with_stack); the profiler's other Python calls are read by graphs.frames.
MODULE_COLUMNS = {
    "ts_ns": np.int64,
    "dur_ns": np.int64,
    "pid": np.int64,
    "tid": np.int64,
    "name_id": np.int32,
}
MODULE = "nn.Module: "  # before a module's name
# A stream waits for an event: `correlation` is that of the waiting call, `record` that of the call that
# recorded the event, on `on_stream`.
WAIT_COLUMNS = {
    "device": np.int32,
    "stream": np.int64,
    "correlation": np.int64,
    "on_stream": np.int64,
    "record": np.int64,
}
PROCESS_COLUMNS = {"pid": np.int64, "name_id": np.int32, "label_id": np.int32}

SCHEMAS: dict[str, Schema] = {
    "kernels": KERNEL_COLUMNS,
    "ops": OP_COLUMNS,
    "runtime": RUNTIME_COLUMNS,
    "ranges": RANGE_COLUMNS,
    "collectives": COLLECTIVE_COLUMNS,
    "comm_ops": COMM_OP_COLUMNS,
    "threads": THREAD_COLUMNS,
    "processes": PROCESS_COLUMNS,
    "flows": FLOW_COLUMNS,
    "modules": MODULE_COLUMNS,
    "waits": WAIT_COLUMNS,
}
# Ids of texts are 32 bits wide; `external_id` and `rf_id` are numbers of the recorder's, 64 bits wide.
TEXT_COLUMNS = {
    name
    for schema in SCHEMAS.values()
    for name, kind in schema.items()
    if name.endswith("_id") and kind is np.int32
}


class Table:
    """Immutable columns of equal length n, read as attributes: `table.ts_ns` is an array (n,).

    Raises ValueError when columns differ in length; AttributeError names the columns there are.
    """

    __slots__ = ("_columns", "_length")

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns differ in length: { ({k: len(v) for k, v in columns.items()}) }")
        self._columns = {name: _frozen(column) for name, column in columns.items()}
        self._length = lengths.pop() if lengths else 0

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._columns[name]
        except KeyError:
            raise AttributeError(f"no column {name!r}; there are {', '.join(self._columns)}") from None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self._columns,)

    def where(self, mask: np.ndarray) -> Table:
        """Rows whose boolean `mask` (n,) is true, as a new table."""
        return self.take(np.flatnonzero(mask))

    def take(self, index: np.ndarray) -> Table:
        """Rows at `index` (m,), in that order, as a new table of length m."""
        return Table({name: column[index] for name, column in self._columns.items()})

    def as_dict(self) -> dict[str, np.ndarray]:
        """The columns by name, in their order: what a DataFrame is made of."""
        return dict(self._columns)


def _frozen(column: np.ndarray) -> np.ndarray:
    view: np.ndarray = np.asarray(column).view()
    view.flags.writeable = False
    return view


class Growing:
    """A table built from chunks of its columns; each column is one block of memory that grows in place."""

    def __init__(self, schema: Schema) -> None:
        self._columns = {name: np.empty(0, dtype=kind) for name, kind in schema.items()}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, chunk: Mapping[str, np.ndarray]) -> None:
        """Add rows; `chunk` has every column of the schema."""
        end = self._length + len(chunk[next(iter(self._columns))])
        for name, column in self._columns.items():
            if end > len(column):
                column.resize(max(end, len(column) * 5 // 4, 1024), refcheck=False)
            column[self._length : end] = chunk[name]
        self._length = end

    def columns(self) -> dict[str, np.ndarray]:
        """The columns (n,), to be taken once; nothing can be added afterwards."""
        for column in self._columns.values():
            column.resize(self._length, refcheck=False)
        return self._columns


def concat(chunks: Sequence[Mapping[str, np.ndarray]], schema: Schema) -> Table:
    """One table of `schema` from chunks of its columns; an empty table from no chunks."""
    return Table(
        {
            name: np.concatenate([np.asarray(chunk[name], dtype=kind) for chunk in chunks])
            if chunks
            else np.empty(0, dtype=kind)
            for name, kind in schema.items()
        }
    )


def joined(parts: Sequence[Table], schema: Schema) -> Table:
    """One table of `schema` from tables that have its columns."""
    return concat([part.as_dict() for part in parts], schema)


@dataclass(frozen=True)
class ProcessGroup:
    """One process group as the recording describes it; `ranks` are global ranks."""

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class TraceMeta:
    """What the recording says about its process; None where it does not say.

    vendor is `nvidia`, `amd` or `none`; base_ns has been added to every time (0: times were absolute).
    num_sms counts the multiprocessors (compute units) of each of `devices`, 0 where it does not say.
    Versions are as written: CUDA and HIP as the integer of the runtime.
    """

    rank: int | None
    world_size: int | None
    backend: str | None
    vendor: str
    devices: tuple[str, ...]
    base_ns: int
    nccl_version: str | None
    torch_version: str | None
    cuda_version: int | None
    hip_version: int | None
    process_groups: tuple[ProcessGroup, ...]
    host: str | None = None
    num_sms: tuple[int, ...] = ()
    stacks: bool = False  # Python calls or modules were recorded


@dataclass(frozen=True)
class Trace:
    """One process's recording; the columns of each table are listed at the top of this module.

    kernels holds kernels, copies and fills (`kind`), collectives one row per kernel with NCCL metadata
    (`kernel` is its row), comm_ops the same for the ops that launched a collective (`op` is its row);
    threads and processes hold the names that the recording gives them, each once; flows the arrows from
    forward to backward; modules the calls of modules; waits the waits of streams for events, where the
    profiler recorded them.
    problems are sentences about what was odd; truncated says that the end is missing; lacks is what the
    recording itself is missing.
    """

    source: Path
    meta: TraceMeta
    kernels: Table
    ops: Table
    runtime: Table
    ranges: Table
    collectives: Table
    comm_ops: Table
    threads: Table
    processes: Table
    strings: list[str]
    problems: list[str]
    truncated: bool
    lacks: tuple[Lack, ...] = ()
    flows: Table = field(default_factory=lambda: concat([], FLOW_COLUMNS))
    modules: Table = field(default_factory=lambda: concat([], MODULE_COLUMNS))
    waits: Table = field(default_factory=lambda: concat([], WAIT_COLUMNS))
    _known: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def text(self, ids: np.ndarray) -> np.ndarray:
        """Texts (n,) of string ids (n,) as an object array; "" where the id is -1."""
        lookup: np.ndarray = np.array([*self.strings, ""], dtype=object)
        texts: np.ndarray = lookup[ids]
        return texts


View = TypeVar("View", np.ndarray, Table)


def once(view: Callable[[Trace], View]) -> Callable[[Trace], View]:
    """A view of a trace that is computed at the first call and kept, read-only, as long as the trace."""

    @wraps(view)
    def kept(trace: Trace) -> View:
        name = f"{view.__module__}.{view.__qualname__}"
        if name not in trace._known:
            found = view(trace)
            trace._known[name] = _frozen(found) if isinstance(found, np.ndarray) else found
        known: View = trace._known[name]
        return known

    return kept
