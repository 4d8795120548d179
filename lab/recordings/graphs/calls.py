"""What API calls do to graphs, by their names: launch one, begin or end a capture, or launch work."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from lab.recordings.capture import GRAPH, PUSH_POP, Capture
from lab.recordings.graphs import calls
from lab.recordings.owners import first_index, operators_of_launches
from lab.recordings.views.launches import launches_graph

_EXECUTED = re.compile(r"execute_(\d{1,9})_context")


def executed_batches(capture: Capture) -> list[int | None]:
    """The batch size of each graph launch (`execute_32_context_...`), each once; None if unknown."""
    call = np.flatnonzero(calls.calls_that(capture, launches_graph))
    return sorted(set(batches_of(capture, call)), key=lambda batch: -1 if batch is None else batch)


def batches_of(capture: Capture, call: np.ndarray) -> list[int | None]:
    """The batch of each graph launch (r,): of the `execute_<n>_context` range around it, None without one."""
    sizes = [_EXECUTED.match(text) for text in capture.strings]
    size = np.array([*(int(match[1]) if match else -1 for match in sizes), -1])[capture.ranges.name_id]
    rows = np.flatnonzero(size >= 0)
    range_rows = _around(capture, call, rows)
    return [int(size[row]) if row >= 0 else None for row in range_rows.tolist()]


def steps_of(capture: Capture, call: np.ndarray) -> list[object]:
    """The outermost range of the program around each graph launch (r,); None for none."""
    ranges = capture.ranges
    rows = np.flatnonzero(ranges.kind == PUSH_POP)
    order = rows[np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows]))]
    outer, latest = [], -(1 << 62)
    for row in order.tolist():
        if ranges.end_ns[row] > latest:
            outer.append(row)
            latest = int(ranges.end_ns[row])
    return [
        row if row >= 0 else None for row in _around(capture, call, np.array(outer, dtype=np.int64)).tolist()
    ]


def _around(capture: Capture, call: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which of `rows` (of `ranges`, not nested in each other) lies around each call (r,), or -1."""
    if not len(rows) or not len(call):
        return np.full(len(call), -1, dtype=np.int64)
    rows = rows[np.argsort(capture.ranges.start_ns[rows], kind="stable")]
    at_ns = np.where(call >= 0, np.append(capture.api.start_ns, -1)[call], -1)
    index = np.searchsorted(capture.ranges.start_ns[rows], at_ns, side="right") - 1
    inside = (index >= 0) & (at_ns <= capture.ranges.end_ns[rows[index]]) & (call >= 0)
    return np.where(inside, rows[index], -1)


BEGINS_CAPTURE = re.compile(r"(cuda|hip|cu)StreamBeginCapture")
ENDS_CAPTURE = re.compile(r"(cuda|hip|cu)StreamEndCapture")
# A host function makes no GPU row; a graph's launch is no node of another graph.
LAUNCHES_WORK = re.compile(r"(cuda|hip|cu)(?!GraphLaunch|LaunchHostFunc)\w*(Launch|Memcpy|Memset)")
COPIES, FILLS = re.compile(r"\w*Memcpy"), re.compile(r"\w*Memset")


def calls_that(capture: Capture, rule: Callable[[str], object]) -> np.ndarray:
    """Mask (n,) of `api`: calls whose name the rule accepts."""
    mask: np.ndarray = np.array([*(bool(rule(text)) for text in capture.strings), False])[capture.api.name_id]
    return mask


def call_of(capture: Capture) -> np.ndarray:
    """Row of `api` (n,) that made each GPU operation, by process and correlation; -1 where it is missing."""
    return first_index(*correlation_keys(capture))


def correlation_keys(capture: Capture) -> list[np.ndarray]:
    """One number per process and correlation id, of each row of `ops` (n,) and `api` (m,); -1 if unknown."""
    ops, api = capture.ops, capture.api
    return pair_keys((ops.process, ops.corr), (api.process, api.corr))


def pair_keys(*columns: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
    """One number for equal (process, id) in all of these columns; -1 for an id below zero."""
    process, number = (np.concatenate(parts).astype(np.int64) for parts in zip(*columns, strict=True))
    distinct_numbers, dense = np.unique(number, return_inverse=True)
    keys = np.where(number < 0, -1, process * len(distinct_numbers) + dense.ravel())
    return np.split(keys, np.cumsum([len(part) for part, _ in columns])[:-1])


def in_graph(capture: Capture, call: np.ndarray) -> np.ndarray:
    """Mask (n,) of `ops`: rows that a graph replay made; call (n,) as of `call_of`."""
    if not len(capture.api):
        return capture.ops.graph_node > 0
    by_call = np.append(calls_that(capture, launches_graph), False)[call]
    mask: np.ndarray = (by_call | (capture.ops.graph_node > 0)) & (capture.ops.kind != GRAPH)
    return mask


def replays_graphs(capture: Capture) -> bool:
    """Whether any GPU row of a recording was made by a graph, or any call launched one."""
    return bool(calls_that(capture, launches_graph).any() or (capture.ops.graph_node > 0).any())


def operators(capture: Capture, external_id: np.ndarray, call: np.ndarray) -> np.ndarray:
    """Row of `ranges` (n,) of the operator that made each call (row of `api`, or -1); -1 for none."""
    rows = capture.operator_rows
    owner = np.full(len(call), -1, dtype=np.int64)
    called = np.flatnonzero(call >= 0)
    if not len(rows) or not len(called):
        return owner
    calls = capture.api.take(call[called])
    op, _ = operators_of_launches(
        capture.operators, external_id[called], calls.pid, calls.tid, calls.start_ns
    )
    owner[called] = np.where(op >= 0, rows[op], -1)
    return owner
