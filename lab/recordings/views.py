"""Questions to a trace, as pure functions: who launched what, how busy was the GPU, which GEMMs ran.

A trace without GPU rows (gloo on a CPU) answers the same questions from its CPU ops; `device_of` says which.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lab.recordings.tables import KERNEL, MEMCPY, Table, Trace
from lab.stats.intervals import spans, subtract, total, union

COMP, COMM, MEMCOPY = 0, 1, 2

STEP_PREFIX = "ProfilerStep#"
GLOO_PREFIX = "gloo:"
NOT_COMPUTATION = ("c10d::", "autograd::", "profiler::")

# How many arguments stand before the two factors; linear and matmul count only where they are innermost.
GEMM_OPS = {
    "aten::mm": 0,
    "aten::_int_mm": 0,
    "aten::_scaled_mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::_addmm_activation": 1,
    "aten::baddbmm": 1,
    "aten::linear": 0,
    "aten::matmul": 0,
}
DTYPE_BYTES = {
    "double": 8,
    "long": 8,
    "long int": 8,
    "complexfloat": 8,
    "c10::complex<float>": 8,
    "float": 4,
    "int": 4,
    "uint32": 4,
    "half": 2,
    "c10::half": 2,
    "bfloat16": 2,
    "c10::bfloat16": 2,
    "short": 2,
    "short int": 2,
    "byte": 1,
    "unsigned char": 1,
    "char": 1,
    "signed char": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
    "c10::float8_e4m3fnuz": 1,
    "c10::float8_e5m2fnuz": 1,
}


def device_of(trace: Trace) -> str:
    """`gpu`, or `cpu` where CPU ops have to stand in for kernels."""
    return "gpu" if len(trace.kernels) else "cpu"


def gpu_timeline(
    trace: Trace, steps: Sequence[int] | None = None, *, linked_only: bool = False
) -> dict[str, float]:
    """Where the time went, in ms: computation, communication and copies as unions, and what is exposed.

    steps keeps only what ProfilerStep#N launched; linked_only leaves out kernels without a known op, as
    TraceLens does. Exposed communication is COMM minus COMP; exposed copies are MEMCPY minus COMP minus COMM.
    """
    by_class = _activity(trace, steps, linked_only)
    comp, comm, copy = (union(by_class[kind]) for kind in (COMP, COMM, MEMCOPY))
    busy = union(np.concatenate([comp, comm, copy]))
    total_ns = int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
    figures_ns = {
        "computation_time_ms": total(comp),
        "exposed_comm_time_ms": total(subtract(comm, comp)),
        "exposed_memcpy_time_ms": total(subtract(subtract(copy, comp), comm)),
        "busy_time_ms": total(busy),
        "idle_time_ms": total_ns - total(busy),
        "total_time_ms": total_ns,
        "total_comm_time_ms": total(comm),
        "total_memcpy_time_ms": total(copy),
    }
    return {name: ns / 1e6 for name, ns in figures_ns.items()}


def classify(trace: Trace) -> np.ndarray:
    """COMP, COMM or MEMCOPY (n,) for each row of `kernels`; fills count as computation."""
    names = [name.lower() for name in trace.strings]
    is_comm = np.array([*("nccl" in name or "rccl" in name for name in names), False])
    is_copy = np.array([*("rocclr_copy" in name for name in names), False])
    kernels = trace.kernels
    classes = np.full(len(kernels), COMP, dtype=np.int8)
    classes[(kernels.kind == MEMCPY) | is_copy[kernels.name_id]] = MEMCOPY
    classes[is_comm[kernels.name_id]] = COMM
    classes[trace.collectives.kernel] = COMM
    return classes


def link_ops(trace: Trace) -> np.ndarray:
    """Row of `ops` that launched each row of `kernels` (n,), -1 where the launch was not recorded.

    By External id; else by correlation to the runtime call, then the innermost op around it on its thread.
    """
    by_id = _match(trace.kernels.external_id, trace.ops.external_id)
    call = launch_calls(trace)
    todo = np.flatnonzero((by_id < 0) & (call >= 0))
    if len(todo):
        calls = trace.runtime.take(call[todo])
        by_id[todo] = innermost(trace.ops, calls.pid, calls.tid, calls.ts_ns)
    return by_id


def launch_calls(trace: Trace) -> np.ndarray:
    """Row of `runtime` that launched each row of `kernels` (n,), or -1."""
    return _match(trace.kernels.correlation, trace.runtime.correlation)


def kernel_steps(trace: Trace) -> np.ndarray:
    """Profiler step (n,) that launched each row of `kernels` (an unlinked one: in which it ran), or -1."""
    call = launch_calls(trace)
    when = trace.kernels.ts_ns.copy()
    when[call >= 0] = trace.runtime.ts_ns[call[call >= 0]]
    return steps_at(trace, when)


def steps_at(trace: Trace, ts_ns: np.ndarray) -> np.ndarray:
    """Number N of the ProfilerStep#N range around each time (n,), -1 outside all."""
    numbers = np.array([*(_step_number(text) for text in trace.strings), -1])
    found = trace.ranges.where((numbers[trace.ranges.name_id] >= 0) & ~trace.ranges.on_gpu)
    found = found.take(np.argsort(found.ts_ns, kind="stable"))
    if len(found) == 0:
        return np.full(len(ts_ns), -1)
    index = np.searchsorted(found.ts_ns, ts_ns, side="right") - 1
    inside = (index >= 0) & (ts_ns < found.ts_ns[index] + found.dur_ns[index])
    return np.where(inside, numbers[found.name_id[index]], -1)


def innermost(ops: Table, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """Row of the innermost op that runs at each (pid, tid, time) (n,), or -1."""
    result = np.full(len(ts_ns), -1, dtype=np.int64)
    for where in sorted(set(zip(pid.tolist(), tid.tolist(), strict=True))):
        rows, parents = _nesting(ops, *where)
        if len(rows) == 0:
            continue
        asked = np.flatnonzero((pid == where[0]) & (tid == where[1]))
        at = ts_ns[asked]
        ends = ops.ts_ns[rows] + ops.dur_ns[rows]
        place = np.searchsorted(ops.ts_ns[rows], at, side="right") - 1
        while (over := (place >= 0) & (ends[place] < at)).any():
            place[over] = parents[place[over]]
        result[asked] = np.where(place >= 0, rows[place], -1)
    return result


def gemm_instances(trace: Trace) -> Table:
    """One row per executed GEMM op, in order of time.

    Columns: op, M, N, K, B, bias, dtype, strides, transpose, ts_ns, dur_ns (union of its kernels, fills left
    out), rank, step, correlation (of its first kernel, -1 on a CPU), kernels (names joined by ` ; `), op_row,
    tid.
    transpose has a letter per factor: T where its last dimension is not the contiguous one. Sizes that the
    recording does not tell are -1.
    """
    found = _gemms_on_gpu(trace) if device_of(trace) == "gpu" else _gemms_on_cpu(trace)
    op_rows = found.pop("op_row")
    ops = trace.ops.take(op_rows)
    keys = np.stack([ops.name_id, ops.dims_id, ops.types_id, ops.strides_id], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    shapes = [_gemm_shape(*(_string(trace, i) for i in key)) for key in distinct.tolist()]
    columns = {name: _column([shape[name] for shape in shapes])[which.ravel()] for name in _UNKNOWN_SHAPE}
    columns |= found
    columns["rank"] = np.full(len(ops), -1 if trace.meta.rank is None else trace.meta.rank)
    columns["step"] = steps_at(trace, ops.ts_ns)
    table = Table({**columns, "op_row": op_rows, "tid": ops.tid})
    return table.take(np.argsort(table.ts_ns, kind="stable"))


def collective_instances(trace: Trace) -> Table:
    """One row per collective kernel (on a CPU per gloo call), in order of time.

    Columns: collective ("" where the recording does not tell), in_nelems, out_nelems, dtype, group_size,
    msg_bytes (the total S of nccl-tests: the larger of both buffers), pg_name, pg_desc, pg_ranks, seq, ts_ns,
    dur_ns, stream, correlation, grid_x, block_x, step, kernel (name), row (of `kernels`, or of `ranges`),
    in_split and out_split (JSON lists as text).
    """
    columns = _collectives_on_gpu(trace) if device_of(trace) == "gpu" else _collectives_on_cpu(trace)
    nelems = np.maximum(columns["in_nelems"], columns["out_nelems"])
    sizes = np.array([DTYPE_BYTES.get(dtype.lower(), -1) for dtype in columns["dtype"]], dtype=np.int64)
    columns["msg_bytes"] = np.where((nelems >= 0) & (sizes > 0), nelems * sizes, -1)
    table = Table(columns)
    return table.take(np.argsort(table.ts_ns, kind="stable"))


def _activity(trace: Trace, steps: Sequence[int] | None, linked_only: bool) -> dict[int, np.ndarray]:
    if device_of(trace) == "cpu":
        return _cpu_activity(trace, steps)
    keep = np.ones(len(trace.kernels), dtype=bool)
    if steps is not None:
        keep &= np.isin(kernel_steps(trace), list(steps))
    if linked_only:
        keep &= link_ops(trace) >= 0
    classes = classify(trace)
    every = spans(trace.kernels.ts_ns, trace.kernels.dur_ns)
    return {kind: every[keep & (classes == kind)] for kind in (COMP, COMM, MEMCOPY)}


def _cpu_activity(trace: Trace, steps: Sequence[int] | None) -> dict[int, np.ndarray]:
    def of(table: Table, rule: Callable[[str], bool]) -> np.ndarray:
        wanted = np.array([*(rule(text) for text in trace.strings), False])
        keep = wanted[table.name_id]
        if steps is not None:
            keep &= np.isin(steps_at(trace, table.ts_ns), list(steps))
        return spans(table.ts_ns[keep], table.dur_ns[keep])

    comm = np.concatenate([of(trace.ops, _is_comm_op), of(trace.ranges, _is_gloo)])
    return {COMP: of(trace.ops, _is_computation), COMM: comm, MEMCOPY: comm[:0]}


def _is_comm_op(name: str) -> bool:
    return name.startswith("c10d::") or name == "record_param_comms"


def _is_gloo(name: str) -> bool:
    return name.startswith(GLOO_PREFIX)


def _is_computation(name: str) -> bool:
    """Operators have a namespace; autograd's and the profiler's only wrap or wait."""
    return "::" in name and not name.startswith(NOT_COMPUTATION)


def _gemms_on_gpu(trace: Trace) -> dict[str, Any]:
    link = link_ops(trace)
    is_gemm = np.array([*(text in GEMM_OPS for text in trace.strings), False])
    linked = np.flatnonzero((link >= 0) & (trace.kernels.kind == KERNEL))
    rows = linked[is_gemm[trace.ops.name_id[link[linked]]]]
    rows = rows[np.lexsort((trace.kernels.ts_ns[rows], link[rows]))]
    op_rows, first = np.unique(link[rows], return_index=True)
    kernels = trace.kernels.take(rows)
    names = trace.text(kernels.name_id)
    joined = names[first]
    ends = np.append(first[1:], len(rows))
    for group in np.flatnonzero(ends - first > 1).tolist():
        joined[group] = " ; ".join(names[first[group] : ends[group]])
    return {
        "op_row": op_rows,
        "ts_ns": kernels.ts_ns[first],
        "dur_ns": _covered_per_group(kernels.ts_ns, kernels.dur_ns, first),
        "correlation": kernels.correlation[first],
        "kernels": joined,
    }


def _covered_per_group(ts_ns: np.ndarray, dur_ns: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Length (g,) of the union of each group's spans; group i is rows first[i] to first[i + 1], by start.

    The groups are laid side by side on one axis, so that one running maximum serves all of them.
    """
    if len(first) == 0:
        return np.empty(0, dtype=np.int64)
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(ts_ns))))
    start = ts_ns - ts_ns[first][group]
    room = int((start + dur_ns).max()) + 1
    if room > 2**62 // len(first):
        groups = np.split(spans(ts_ns, dur_ns), first[1:])
        return np.array([total(every) for every in groups], dtype=np.int64)
    start += group * room
    reach = np.maximum.accumulate(start + dur_ns)
    before = np.maximum(start, np.concatenate([[0], reach[:-1]]))
    covered: np.ndarray = np.add.reduceat(np.maximum(start + dur_ns - before, 0), first)
    return covered


def _gemms_on_cpu(trace: Trace) -> dict[str, Any]:
    is_gemm = np.array([*(text in GEMM_OPS for text in trace.strings), False])
    rows = np.flatnonzero(is_gemm[trace.ops.name_id])
    ops = trace.ops.take(rows)
    wraps = np.zeros(len(rows), dtype=bool)
    for where in sorted(set(zip(ops.pid.tolist(), ops.tid.tolist(), strict=True))):
        order, parents = _nesting(ops, *where)
        wraps[order[parents[parents >= 0]]] = True
    rows = rows[~wraps]
    return {
        "op_row": rows,
        "ts_ns": trace.ops.ts_ns[rows],
        "dur_ns": trace.ops.dur_ns[rows],
        "correlation": np.full(len(rows), -1, dtype=np.int64),
        "kernels": trace.text(trace.ops.name_id[rows]),
    }


def _collectives_on_gpu(trace: Trace) -> dict[str, np.ndarray]:
    rows = np.flatnonzero(classify(trace) == COMM)
    kernels, told = trace.kernels.take(rows), _comm_metadata(trace, rows)
    columns = {name: told(name) for name in ("in_nelems", "out_nelems", "group_size", "seq")}
    texts = ("collective", "dtype", "pg_name", "pg_desc", "pg_ranks", "in_split", "out_split")
    columns |= {name: trace.text(told(f"{name}_id")) for name in texts}
    copied = ("ts_ns", "dur_ns", "stream", "correlation", "grid_x", "block_x")
    columns |= {name: getattr(kernels, name) for name in copied}
    return columns | {
        "step": kernel_steps(trace)[rows],
        "kernel": trace.text(kernels.name_id),
        "row": rows,
    }


def _comm_metadata(trace: Trace, rows: np.ndarray) -> Callable[[str], np.ndarray]:
    """Columns of metadata for `rows` of `kernels`, -1 where nothing is told.

    Older recordings write them only at the op that asked for the collective.
    """
    of_kernel = _match(rows, trace.collectives.kernel)
    of_op = np.full(len(rows), -1)
    if len(trace.comm_ops) and (of_kernel < 0).any():
        of_op = _match(link_ops(trace)[rows], trace.comm_ops.op)

    def told(name: str) -> np.ndarray:
        found = np.full(len(rows), -1)
        for place, table in ((of_op, trace.comm_ops), (of_kernel, trace.collectives)):
            found[place >= 0] = getattr(table, name)[place[place >= 0]]
        return found

    return told


def _collectives_on_cpu(trace: Trace) -> dict[str, np.ndarray]:
    """gloo records a range per call with the shapes of its input; its worker threads carry them."""
    is_gloo = np.array([*(_is_gloo(text) for text in trace.strings), False])
    rows = np.flatnonzero(is_gloo[trace.ranges.name_id])
    found = trace.ranges.take(rows)
    names = [text.removeprefix(GLOO_PREFIX) for text in trace.text(found.name_id)]
    nelems = [_num_elements(_json_list(text)) for text in trace.text(found.dims_id)]
    dtypes = [_json_list(text)[:1] for text in trace.text(found.types_id)]
    group_size = trace.meta.world_size or -1
    gathered = [
        n * group_size if "gather" in name and n >= 0 < group_size else n
        for n, name in zip(nelems, names, strict=True)
    ]
    unknown = np.full(len(rows), -1, dtype=np.int64)
    nothing = _column([""] * len(rows))
    return {
        "collective": _column(names),
        "in_nelems": np.array(nelems, dtype=np.int64),
        "out_nelems": np.array(gathered, dtype=np.int64),
        "dtype": _column([str(found[0]) if found else "" for found in dtypes]),
        "group_size": np.full(len(rows), group_size),
        **dict.fromkeys(("pg_name", "pg_desc", "pg_ranks", "in_split", "out_split"), nothing),
        **dict.fromkeys(("seq", "stream", "correlation", "grid_x", "block_x"), unknown),
        "ts_ns": found.ts_ns,
        "dur_ns": found.dur_ns,
        "step": steps_at(trace, found.ts_ns),
        "kernel": trace.text(found.name_id),
        "row": rows,
    }


_UNKNOWN_SHAPE: dict[str, Any] = {
    "op": "",
    "M": -1,
    "N": -1,
    "K": -1,
    "B": -1,
    "bias": False,
    "dtype": "",
    "strides": "",
    "transpose": "",
}


def _gemm_shape(op: str, dims: str, types: str, strides: str) -> dict[str, Any]:
    """Sizes of one GEMM from what the profiler wrote about its arguments; unknown ones stay -1."""
    first = GEMM_OPS[op]
    shape = {**_UNKNOWN_SHAPE, "op": op, "bias": first == 1}
    a, b = (_sizes(item) for item in _pair(dims, first))
    a_stride, b_stride = (_sizes(item) for item in _pair(strides, first))
    shape["dtype"] = str(_pair(types, first)[0] or "")
    shape["strides"] = " ".join(str(tuple(stride)) for stride in (a_stride, b_stride) if stride)
    shape["transpose"] = _letter(a_stride) + _letter(b_stride)
    if op == "aten::linear":
        b = b[::-1]
        shape["bias"] = bool(_sizes((_json_list(dims) + [None] * 3)[2]))
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return shape
    rows_are_batch = op == "aten::linear" or (op == "aten::matmul" and len(b) == 2)
    batch = 1 if rows_are_batch else math.prod(max(a[:-2], b[:-2], key=math.prod))
    return shape | {"M": math.prod(a[:-1]) if rows_are_batch else a[-2], "N": b[-1], "K": a[-1], "B": batch}


def _letter(stride: list[int]) -> str:
    if len(stride) < 2:
        return "?"
    return "T" if stride[-1] != 1 and stride[-2] == 1 else "N"


def _pair(text: str, first: int) -> list[Any]:
    items = _json_list(text)[first : first + 2]
    return items + [None] * (2 - len(items))


def _sizes(item: Any) -> list[int]:
    is_list = isinstance(item, list) and all(isinstance(size, int) for size in item)
    return item if is_list else []


def _num_elements(dims: list[Any]) -> int:
    """Elements of the first tensor argument, or of the first list of tensors; -1 unknown."""
    first = dims[0] if dims else None
    if isinstance(first, list) and first and isinstance(first[0], list):
        return sum(math.prod(_sizes(tensor)) for tensor in first)
    return math.prod(first) if isinstance(first, list) and _sizes(first) else -1


def _json_list(text: str) -> list[Any]:
    found = json.loads(text) if text else []
    return found if isinstance(found, list) else []


def _step_number(text: str) -> int:
    digits = text.removeprefix(STEP_PREFIX)
    return int(digits) if digits != text and digits.isdecimal() and len(digits) < 10 else -1


def _string(trace: Trace, index: int) -> str:
    return trace.strings[index] if index >= 0 else ""


def _column(values: list[Any]) -> np.ndarray:
    if values and not isinstance(values[0], str):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _match(wanted: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Index in `among` (m,) of each `wanted` (n,): the first of equals; -1 for none and for negative ids."""
    if len(among) == 0:
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(among, kind="stable")
    place = np.minimum(np.searchsorted(among[order], wanted), len(among) - 1)
    found = order[place]
    return np.where((among[found] == wanted) & (wanted >= 0), found, -1)


def _nesting(ops: Table, pid: int, tid: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (m,) of one thread by start, longest first, and the place of each one's parent in them, or -1."""
    rows = np.flatnonzero((ops.pid == pid) & (ops.tid == tid))
    rows = rows[np.lexsort((-ops.dur_ns[rows], ops.ts_ns[rows]))]
    ends = (ops.ts_ns[rows] + ops.dur_ns[rows]).tolist()
    parents = np.full(len(rows), -1, dtype=np.int64)
    open_places: list[int] = []
    for place, end in enumerate(ends):
        while open_places and ends[open_places[-1]] < end:
            open_places.pop()
        parents[place] = open_places[-1] if open_places else -1
        open_places.append(place)
    return rows, parents
