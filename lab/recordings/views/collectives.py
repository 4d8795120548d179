"""Which collectives ran, with their sizes and process groups, and the partners of sends and receives."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.perfmodel.calls import json_list
from lab.perfmodel.communication import OPS, communication, kind_in
from lab.perfmodel.dtypes import item_bytes
from lab.recordings.calls import launch_calls
from lab.recordings.capture import Capture, once
from lab.recordings.owners import first_index
from lab.recordings.tables import Table
from lab.recordings.views.launches import (
    COMM,
    GLOO_PREFIX,
    classify,
    device_of,
    is_gloo,
    kernel_steps,
    link_ops,
    steps_at,
)
from lab.stats.columns import objects, per_distinct


@once
def collective_instances(trace: Capture) -> Table:
    """One row per collective kernel (on a CPU per gloo call), in order of time.

    Columns: collective ("" where not recorded), in_nelems, out_nelems, dtype, group_size,
    msg_bytes (the total S of nccl-tests: the larger of both buffers), pg_name, pg_desc, pg_ranks, seq, ts_ns,
    dur_ns, stream, correlation, grid_x, block_x, step, kernel (name), row (of `ops`, or of `annotations`),
    in_split and out_split (JSON lists as text), exchanges (tuples of the legs of sends and receives).
    """
    columns = _collectives_on_gpu(trace) if device_of(trace) == "gpu" else _collectives_on_cpu(trace)
    nelems = np.maximum(columns["in_nelems"], columns["out_nelems"])
    sizes = np.array([item_bytes(dtype) or -1 for dtype in columns["dtype"]], dtype=np.int64)
    columns["msg_bytes"] = np.where((nelems >= 0) & (sizes > 0), nelems * sizes, -1)
    table = Table(columns)
    return table.take(np.argsort(table.ts_ns, kind="stable"))


def _collectives_on_gpu(trace: Capture) -> dict[str, np.ndarray]:
    rows = np.flatnonzero(classify(trace) == COMM)
    kernels = trace.ops.take(rows)
    # Older recordings have metadata only at the op that launched the collective.
    of_kernel = first_index(rows, trace.collectives.kernel)
    of_op = first_index(link_ops(trace)[rows], trace.comm_ops.op)
    exchanges, first_op = _exchanges(trace, rows, of_kernel, of_op)
    of_op = np.where(of_op < 0, first_op, of_op)

    def metadata(name: str) -> np.ndarray:
        by_kernel: np.ndarray = np.append(getattr(trace.collectives, name), -1)[of_kernel]
        return np.where(of_kernel >= 0, by_kernel, np.append(getattr(trace.comm_ops, name), -1)[of_op])

    columns = {name: metadata(name) for name in ("in_nelems", "out_nelems", "group_size", "seq")}
    texts = ("collective", "dtype", "pg_name", "pg_desc", "pg_ranks", "in_split", "out_split")
    columns |= {name: trace.text(metadata(f"{name}_id")) for name in texts}
    columns["collective"] = _named_by_ops(trace, rows, columns["collective"])
    columns |= {name: getattr(kernels, name) for name in ("dur_ns", "stream", "grid_x", "block_x")}
    return columns | {
        "ts_ns": kernels.start_ns,
        "correlation": kernels.corr,
        "step": kernel_steps(trace)[rows],
        "kernel": trace.text(kernels.name_id),
        "exchanges": exchanges,
        "row": rows,
    }


def _named_by_ops(trace: Capture, rows: np.ndarray, names: np.ndarray) -> np.ndarray:
    """`names` (n,) with the launching op's where there is none and the kernel's own does not say the kind.

    Without metadata an all-to-all and a send look alike (SendRecv), and RCCL's kernels all look alike.
    """
    unnamed = np.flatnonzero((names == "") & _is_vague(trace, rows))
    if not len(unnamed):
        return names
    named: np.ndarray = names.copy()
    link = link_ops(trace)[rows[unnamed]]
    for index, op in zip(unnamed[link >= 0].tolist(), link[link >= 0].tolist(), strict=True):
        named[index] = _telling_op(trace, op)
    return named


def _telling_op(trace: Capture, op: int) -> str:
    """The name of the innermost op around `op` that says a kind of collective; "" if none does."""
    ops = trace.operators
    around = (ops.pid == ops.pid[op]) & (ops.tid == ops.tid[op])
    around &= (ops.start_ns <= ops.start_ns[op]) & (ops.end_ns >= ops.end_ns[op])
    candidates = np.flatnonzero(around)
    for index in candidates[np.argsort(ops.dur_ns[candidates], kind="stable")].tolist():
        name: str = trace.strings[ops.name_id[index]]
        if name.startswith(OPS) and kind_in(name.partition(":")[2]):
            return name
    return ""


def _collectives_on_cpu(trace: Capture) -> dict[str, np.ndarray]:
    """gloo records a range per call with the shapes of its input; its worker threads carry them."""
    rows = np.flatnonzero(trace.by_text(is_gloo, trace.annotations.name_id))
    calls = trace.annotations.take(rows)
    names = [text.removeprefix(GLOO_PREFIX) for text in trace.text(calls.name_id)]
    nelems = [_num_elements(json_list(text)) for text in trace.text(calls.dims_id)]
    dtypes = [json_list(text)[:1] for text in trace.text(calls.types_id)]
    group_size = trace.meta.world_size or -1
    gathered = [
        n * group_size if "gather" in name and n >= 0 < group_size else n
        for n, name in zip(nelems, names, strict=True)
    ]
    unknown = np.full(len(rows), -1, dtype=np.int64)
    nothing = objects([""] * len(rows))
    return {
        "collective": objects(names),
        "in_nelems": np.array(nelems, dtype=np.int64),
        "out_nelems": np.array(gathered, dtype=np.int64),
        "dtype": objects([str(calls[0]) if calls else "" for calls in dtypes]),
        "group_size": np.full(len(rows), group_size),
        **dict.fromkeys(("pg_name", "pg_desc", "pg_ranks", "in_split", "out_split"), nothing),
        "exchanges": objects([()] * len(rows)),
        **dict.fromkeys(("seq", "stream", "correlation", "grid_x", "block_x"), unknown),
        "ts_ns": calls.start_ns,
        "dur_ns": calls.dur_ns,
        "step": steps_at(trace, calls.start_ns),
        "kernel": trace.text(calls.name_id),
        "row": rows,
    }


def _num_elements(dims: list[Any]) -> int:
    """Elements of the first tensor argument, or of the first list of tensors; -1 unknown."""
    head = dims[0] if dims else None
    if isinstance(head, list) and head and isinstance(head[0], list):
        return sum(math.prod(int_sizes(tensor)) for tensor in head)
    return math.prod(head) if isinstance(head, list) and int_sizes(head) else -1


def int_sizes(item: Any) -> list[int]:
    is_list = isinstance(item, list) and all(isinstance(size, int) for size in item)
    return item if is_list else []


# (1 for a send and 0 for a receive, rank of the partner in the job)
Leg = tuple[int, int]


def _exchanges(
    trace: Capture, rows: np.ndarray, of_kernel: np.ndarray, of_op: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The legs of each communication kernel (n,), () where none is known.

    of_kernel, of_op: a kernel's rows of `collectives` and of `comm_ops`, or -1. The second value: for kernels
    of several calls, the row of `comm_ops` of the first of them, -1 otherwise. A kernel of
    `batch_isend_irecv` has no metadata of its own: the calls since the launch before it on the same thread,
    which launched nothing themselves, are its legs.
    """
    legs: list[tuple[Leg, ...]] = [()] * len(rows)
    exchanging = _is_vague(trace, rows)
    legs_of_op, legs_of_kernel = _legs_of(trace, trace.comm_ops), _legs_of(trace, trace.collectives)
    bare, used = [], {*of_op[exchanging].tolist()}
    for index in np.flatnonzero(exchanging).tolist():
        leg = legs_of_op.get(int(of_op[index])) or legs_of_kernel.get(int(of_kernel[index]))
        if leg is not None:
            legs[index] = (leg,)
        elif of_op[index] < 0 and of_kernel[index] < 0:
            bare.append(index)
    batches = _batches(trace, rows, bare, [row for row in legs_of_op if row not in used])
    first_op = np.full(len(rows), -1, dtype=np.int64)
    for index, op_rows in batches.items():
        legs[index], first_op[index] = tuple(legs_of_op[row] for row in op_rows), op_rows[0]
    return objects(legs), first_op


def _is_vague(trace: Capture, rows: np.ndarray) -> np.ndarray:
    """Mask (n,) of kernels whose names do not tell what they exchange: a send looks like an all-to-all."""

    def is_vague(name_id: int) -> bool:
        kind = communication(trace.name(name_id))
        return kind is not None and kind.kind in ("", "p2p")

    return per_distinct(trace.ops.name_id[rows], is_vague).astype(bool)


def _legs_of(trace: Capture, table: object) -> dict[int, Leg]:
    """Row of a table with NCCL metadata -> its leg, for sends and receives whose partner is named."""
    columns = ("collective_id", "pg_ranks_id", "dst_rank", "src_rank", "group_rank")
    legs = {}
    for row, (name_id, ranks_id, dst, src, in_group) in enumerate(
        zip(*(getattr(table, column).tolist() for column in columns), strict=True)
    ):
        name = trace.name(name_id)
        if kind_in(name) != "p2p":
            continue
        sends = dst >= 0 if dst >= 0 or src >= 0 else "send" in name.lower()
        members = _members(trace.name(ranks_id))
        peer = _partner(max(dst, src), in_group, members, trace.meta.rank)
        if peer >= 0:
            legs[row] = (int(sends), peer)
    return legs


def _partner(named: int, in_group: int, members: Sequence[int], own_rank: int | None) -> int:
    """The partner's rank in the job, -1 unknown.

    `Rank` of a send or a receive is the partner's number within the group; `Dst Rank` and `Src Rank` are
    ranks of the job in what torch's main branch writes, and numbers within the group in other releases.
    """
    if 0 <= in_group < len(members) and members[in_group] != own_rank:
        return members[in_group]
    if named >= 0 and 0 <= named < len(members) and (named not in members or named == own_rank):
        return members[named]
    if named >= 0:
        return named
    partners = [rank for rank in members if rank != own_rank]
    return partners[0] if len(members) == 2 and len(partners) == 1 else -1


def _members(text: str) -> list[int]:
    return [] if "..." in text else [int(digits) for digits in re.findall(r"\d{1,7}", text)]


def _batches(
    trace: Capture, rows: np.ndarray, bare: Sequence[int], free: Sequence[int]
) -> dict[int, list[int]]:
    """Find for each kernel without metadata the calls (rows of `comm_ops`) since the launch before it."""
    calls, ops = launch_calls(trace), trace.operators
    launched = sorted(
        (int(trace.api.tid[call]), int(trace.api.start_ns[call]), index)
        for index in bare
        if (call := int(calls[rows[index]])) >= 0
    )
    waiting = sorted(
        (int(ops.tid[op]), int(ops.start_ns[op]), row)
        for row in free
        if (op := int(trace.comm_ops.op[row])) >= 0
    )
    batches: dict[int, list[int]] = {}
    previous, position = (-1, -1), 0
    for tid, start_ns, index in launched:
        while position < len(waiting) and waiting[position][:2] < (tid, start_ns):
            op_tid, op_start_ns, row = waiting[position]
            if op_tid == tid and (previous[0] != tid or op_start_ns > previous[1]):
                batches.setdefault(index, []).append(row)
            position += 1
        previous = (tid, start_ns)
    return batches
