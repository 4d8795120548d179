"""Find the partners of each send and receive, also where several calls share one kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from lab.perfmodel.communication import communication, kind_in
from lab.recordings.calls import launch_calls
from lab.recordings.capture import Capture
from lab.recordings.views.launches import link_ops
from lab.stats.columns import objects

# (1 for a send and 0 for a receive, rank of the partner in the job)
Leg = tuple[int, int]


def exchanges_of(trace: Capture, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The legs of each communication kernel (n,) as JSON `[[1, 3], [0, 1]]`; "" where none is known.

    The second value: for kernels of several calls, the row of `comm_ops` of the first of them, -1 otherwise.
    A kernel of `batch_isend_irecv` has no metadata of its own: the calls since the launch before it on the
    same thread, which launched nothing themselves, are its legs.
    """
    legs: list[list[Leg]] = [[] for _ in range(len(rows))]
    names = trace.text(trace.ops.name_id[rows])
    exchanging = {name for name in set(names.tolist()) if is_exchange(name)}
    candidates = np.flatnonzero([name in exchanging for name in names.tolist()])
    of_op = _legs_of(trace, trace.comm_ops)
    row_of_op = {op: row for row, op in enumerate(trace.comm_ops.op.tolist())}
    of_kernel = _legs_of(trace, trace.collectives)
    row_of_kernel = {kernel: row for row, kernel in enumerate(trace.collectives.kernel.tolist())}
    links, bare, used = link_ops(trace), [], set()
    for index in candidates.tolist():
        kernel = int(rows[index])
        op_row = row_of_op.get(int(links[kernel]), -1)
        kernel_row = row_of_kernel.get(kernel, -1)
        used.add(op_row)
        leg = of_op.get(op_row) or of_kernel.get(kernel_row)
        if leg is not None:
            legs[index] = [leg]
        elif op_row < 0 and kernel_row < 0:
            bare.append(index)
    batches = _batches(trace, rows, bare, [row for row in of_op if row not in used])
    first_op = np.full(len(rows), -1, dtype=np.int64)
    for index, op_rows in batches.items():
        legs[index], first_op[index] = [of_op[row] for row in op_rows], op_rows[0]
    texts = [msgspec.json.encode(parts).decode() if parts else "" for parts in legs]
    return objects(texts), first_op


def parse(text: str) -> list[Leg]:
    """The legs of one kernel."""
    return [(sends, peer) for sends, peer in msgspec.json.decode(text, type=list[tuple[int, int]])]


def is_exchange(kernel: str) -> bool:
    """Whether its name does not tell what it exchanges: a send looks like an all-to-all there."""
    kind = communication(kernel)
    return kind is not None and kind.kind in ("", "p2p")


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
