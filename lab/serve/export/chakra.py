"""Chakra execution traces (mlcommons/chakra, schema/protobuf/et_def.proto): one file per rank.

A file is a list of messages, each after its length: GlobalMetadata, then Nodes by start. Operators of the
host that launched something depend on the operator before them on their thread (ctrl_deps); a GPU operation
depends on the operator that launched it and on the operation before it on its stream (data_deps). What
streams wait for through events is not recorded by profilers, and not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.core.files import replacing
from lab.recordings.communication import kind_in
from lab.recordings.merge.pftrace.packets import bytes_field, int_field, text_field
from lab.recordings.tables import KERNEL, Table, Trace
from lab.recordings.views.collectives import collective_instances
from lab.recordings.views.launches import link_ops
from lab.serve.export.ranks import read_ranks

VERSION = "0.0.4"
COMP_NODE, COMM_COLL_NODE = 4, 7
# Field numbers of the public schema.
ID, NAME, TYPE, CTRL_DEPS, DATA_DEPS, START_US, DURATION_US, INPUTS, ATTR = 1, 2, 3, 4, 5, 6, 7, 8, 10
ATTR_NAME, ATTR_INT64, ATTR_UINT64, ATTR_BOOL, ATTR_TEXT = 1, 9, 13, 27, 29
IO_SHAPES, IO_TYPES = 2, 3
TYPES = {
    "allreduce": 0,
    "reduce": 1,
    "allgather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "alltoall": 6,
    "reducescatter": 7,
    "barrier": 9,
}


def write_chakra(paths: Sequence[Path], stem: Path) -> tuple[list[Path], list[str]]:
    """`stem`.RANK.et for each rank, and sentences about what they do not hold."""
    ranks = read_ranks(paths)
    notes, written = list(ranks.notes), []
    for rank, trace in sorted(ranks.traces.items()):
        target = stem.with_name(f"{stem.name}.{rank}.et")
        messages, unknown = nodes(trace, ranks.offsets_ns.get(rank, 0))
        if unknown:
            notes.append(f"rank {rank}: {unknown} collectives of unknown kind or size are compute nodes")
        with replacing(target) as file:
            file.writelines(_with_length(one) for one in (text_field(1, VERSION), *messages))
        written.append(target)
    return written, notes


def nodes(trace: Trace, offset_ns: int = 0) -> tuple[list[bytes], int]:
    """The Node messages by start, and how many collectives could not be told."""
    kernels, ops = trace.kernels, trace.ops
    owner = link_ops(trace)
    used = np.unique(owner[owner >= 0])
    node_of_op = np.full(len(ops) + 1, -1)
    starts = np.concatenate([ops.ts_ns[used], kernels.ts_ns])
    order = np.argsort(starts, kind="stable")
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    node_of_op[used] = number[: len(used)]
    node_of_kernel = number[len(used) :]
    before_op = _before(np.stack([ops.pid[used], ops.tid[used]], axis=1), ops.ts_ns[used])
    before_kernel = _before(np.stack([kernels.device, kernels.stream], axis=1), kernels.ts_ns)
    known = _collectives(trace)
    first_ns = int(starts.min()) if len(starts) else 0
    found: list[tuple[int, bytes]] = []
    for at, row in enumerate(used.tolist()):
        earlier = before_op[at]
        deps = [(CTRL_DEPS, int(number[earlier]))] if earlier >= 0 else []
        mine = int(number[at])
        found.append((mine, _op_node(trace, ops, row, mine, deps, first_ns - offset_ns)))
    unknown = 0
    names = trace.text(kernels.name_id).tolist()
    for row, name in enumerate(names):
        deps = []
        if (op := int(node_of_op[owner[row]])) >= 0:
            deps.append((DATA_DEPS, op))
        if before_kernel[row] >= 0:
            deps.append((DATA_DEPS, int(node_of_kernel[before_kernel[row]])))
        collective = known.get(row)
        unknown += collective is None and kernels.kind[row] == KERNEL and "nccl" in name.lower()
        mine = int(node_of_kernel[row])
        found.append((mine, _kernel_node(kernels, row, name, mine, deps, collective, first_ns - offset_ns)))
    return [message for _, message in sorted(found, key=lambda one: one[0])], unknown


def _before(key: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """Row (n,) of the one before on the same key (n, 2), by start; -1 for the first."""
    order = np.lexsort((ts_ns, key[:, 1], key[:, 0]))
    found = np.full(len(ts_ns), -1)
    if len(order) > 1:
        same = (key[order[1:]] == key[order[:-1]]).all(axis=1)
        found[order[1:]] = np.where(same, order[:-1], -1)
    return found


def _collectives(trace: Trace) -> dict[int, tuple[int, int, str]]:
    """Row of `kernels` -> (kind, bytes, process group) of collectives whose kind and size are recorded."""
    table = collective_instances(trace)
    if not len(trace.kernels):
        return {}
    return {
        row: (TYPES[kind], size, group)
        for row, name, kernel, size, group in zip(
            table.row.tolist(),
            table.collective.tolist(),
            table.kernel.tolist(),
            table.msg_bytes.tolist(),
            table.pg_name.tolist(),
            strict=True,
        )
        if (kind := _kind(name, kernel)) in TYPES and size >= 0
    }


def _kind(collective: str, kernel: str) -> str:
    letters = "".join(filter(str.isalpha, (collective or kind_in(kernel) or "").lower()))
    return next((kind for kind in sorted(TYPES, key=len, reverse=True) if kind in letters), "")


def _op_node(
    trace: Trace, ops: Table, row: int, mine: int, deps: list[tuple[int, int]], zero_ns: int
) -> bytes:
    text = trace.text
    shapes, types = (str(text(column[row : row + 1])[0]) for column in (ops.dims_id, ops.types_id))
    body = _head(mine, str(text(ops.name_id[row : row + 1])[0]), COMP_NODE, deps)
    body += _times(int(ops.ts_ns[row]) - zero_ns, int(ops.dur_ns[row]))
    if shapes or types:
        body += bytes_field(INPUTS, text_field(IO_SHAPES, shapes) + text_field(IO_TYPES, types))
    return body + _bool("is_cpu_op", True) + _int("tid", int(ops.tid[row]))


def _kernel_node(
    kernels: Table,
    row: int,
    name: str,
    mine: int,
    deps: list[tuple[int, int]],
    collective: tuple[int, int, str] | None,
    zero_ns: int,
) -> bytes:
    body = _head(mine, name, COMM_COLL_NODE if collective else COMP_NODE, deps)
    body += _times(int(kernels.ts_ns[row]) - zero_ns, int(kernels.dur_ns[row]))
    body += _bool("is_cpu_op", False) + _int("stream", int(kernels.stream[row]))
    if collective:
        kind, size, group = collective
        body += _int("comm_type", kind) + _int("comm_size", size) + _text("pg_name", group)
    elif kernels.bytes[row] >= 0:
        body += _int("tensor_size", int(kernels.bytes[row]), ATTR_UINT64)
    return body


def _head(mine: int, name: str, kind: int, deps: list[tuple[int, int]]) -> bytes:
    by_field: dict[int, list[int]] = {}
    for field, other in deps:
        by_field.setdefault(field, []).append(other)
    packed = b"".join(
        bytes_field(field, b"".join(_varint(other) for other in sorted(set(others))))
        for field, others in sorted(by_field.items())
    )
    return int_field(ID, mine) + text_field(NAME, name) + int_field(TYPE, kind) + packed


def _times(start_ns: int, dur_ns: int) -> bytes:
    """The schema has whole microseconds; nanoseconds stand in attributes, for short kernels."""
    start_ns = max(start_ns, 0)
    times = int_field(START_US, start_ns // 1000) + int_field(DURATION_US, (dur_ns + 500) // 1000)
    return times + _int("start_ns", start_ns) + _int("duration_ns", dur_ns)


def _int(name: str, value: int, kind: int = ATTR_INT64) -> bytes:
    """An attribute, by the type in which Chakra's feeder reads the one of this name."""
    return bytes_field(ATTR, text_field(ATTR_NAME, name) + int_field(kind, value))


def _bool(name: str, value: bool) -> bytes:
    return bytes_field(ATTR, text_field(ATTR_NAME, name) + int_field(ATTR_BOOL, int(value)))


def _text(name: str, value: str) -> bytes:
    return bytes_field(ATTR, text_field(ATTR_NAME, name) + text_field(ATTR_TEXT, value))


def _varint(value: int) -> bytes:
    return int_field(0, value)[1:]  # less the one byte of field 0


def _with_length(message: bytes) -> bytes:
    return _varint(len(message)) + message
