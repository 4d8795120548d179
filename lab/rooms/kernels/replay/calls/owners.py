"""Which op owns each launch.

A launch belongs to the innermost op around it: by External id; on torch 1.12 by correlation, then the op
around the runtime call.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from lab.recordings.compiled import is_inductor
from lab.recordings.names import kernel_class
from lab.recordings.views.launches import launches_graph
from lab.rooms.kernels.replay.calls.trace import Event, Op, TraceArgs

# Ops that cannot be called by themselves: the op around them is replayed instead.
INTERNAL = re.compile(r"aten::_(flash|efficient|cudnn)_attention_(forward|backward)\Z")
COLLECTIVE = "a collective: it needs the other ranks, and a replay is one process"


def nest(ops: list[Op]) -> None:
    """Set each op's parent: the innermost one of its thread that contains it."""
    open_by_thread: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        stack = open_by_thread[(op.event.pid, op.event.tid)]
        while stack and _end(ops[stack[-1]]) < _end(op) - 1e-6:
            stack.pop()
        if stack:
            op.parent = stack[-1]
        stack.append(index)


def _end(op: Op) -> float:
    return op.event.ts + op.event.dur


def find_owners(
    ops: list[Op], gpu: Sequence[tuple[Event, TraceArgs]], runtime: dict[int, Event]
) -> dict[int, int]:
    """Index in `gpu` -> index in `ops`; launches that no op owns are absent."""
    by_id = {op.args.external_id: index for index, op in enumerate(ops) if op.args.external_id >= 0}
    threads: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        threads[(op.event.pid, op.event.tid)].append(index)
    found = {}
    of_graphs = graph_rows(gpu, runtime)
    for index, (_, args) in enumerate(gpu):
        if index in of_graphs:
            continue  # its External id is that of the op around the graph's launch
        owner = by_id.get(args.external_id, -1)
        if owner < 0 and args.correlation in runtime:
            owner = _around(ops, threads, runtime[args.correlation])
        if owner >= 0:
            found[index] = _callable(ops, owner)
    return found


def graph_rows(gpu: Sequence[tuple[Event, TraceArgs]], runtime: dict[int, Event]) -> set[int]:
    """Indices in `gpu` of what a graph replayed."""
    launched = {number for number, call in runtime.items() if launches_graph(call.name)}
    return {index for index, (_, args) in enumerate(gpu) if args.correlation in launched}


def _around(ops: list[Op], threads: dict[tuple[Any, Any], list[int]], call: Event) -> int:
    """The innermost op of the call's thread that runs when the call begins, or -1."""
    indices = threads.get((call.pid, call.tid), [])
    last = bisect_right(indices, call.ts, key=lambda index: ops[index].event.ts) - 1
    op = indices[last] if last >= 0 else -1
    while op >= 0 and _end(ops[op]) < call.ts:
        op = ops[op].parent
    return op


def _callable(ops: list[Op], op: int) -> int:
    """The nearest op, from `op` upwards, that can be called by itself."""
    while (
        ops[op].parent >= 0
        and not is_inductor(ops[op].event.name)
        and (INTERNAL.match(ops[op].event.name) or "::" not in ops[op].event.name)
    ):
        op = ops[op].parent
    return op


def gather(ops: list[Op], owners: dict[int, int]) -> dict[int, int]:
    """Each launch goes to the outermost op that launches: calling it calls its inner ops too."""
    launching, outermost = set(owners.values()), {}
    for owner in launching:
        best, above = owner, ops[owner].parent
        while above >= 0:
            callable_ = above in launching and "::" in ops[above].event.name
            best, above = (above if callable_ else best), ops[above].parent
        outermost[owner] = best
    return {launch: outermost[owner] for launch, owner in owners.items()}


def why_orphan(name: str, op: Op | None) -> str:
    """Why a launch cannot be replayed through its op; "" if it can."""
    if kernel_class(name) == "comm":
        return COLLECTIVE
    if op is None:
        return "no op owns it"
    return (
        ""
        if "::" in op.event.name or is_inductor(op.event.name)
        else f"launched by {op.event.name!r}, which is no registered op"
    )
