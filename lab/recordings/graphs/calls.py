"""What API calls do to graphs, by their names: launch one, begin or end a capture, or launch work."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from lab.recordings.capture import GRAPH, Capture
from lab.recordings.owners import first_index, operators_of_launches
from lab.recordings.views.launches import launches_graph

_BEGIN = re.compile(r"(cuda|hip|cu)StreamBeginCapture")
_END = re.compile(r"(cuda|hip|cu)StreamEndCapture")
# A host function makes no GPU row; a graph's launch is no node of another graph.
_WORK = re.compile(r"(cuda|hip|cu)(?!GraphLaunch|LaunchHostFunc)\w*(Launch|Memcpy|Memset)")
_COPY, _FILL = re.compile(r"\w*Memcpy"), re.compile(r"\w*Memset")


def begins_capture(name: str) -> bool:
    return bool(_BEGIN.match(name))


def ends_capture(name: str) -> bool:
    return bool(_END.match(name))


def launches_work(name: str) -> bool:
    return bool(_WORK.match(name))


def copies(name: str) -> bool:
    return bool(_COPY.match(name))


def fills(name: str) -> bool:
    return bool(_FILL.match(name))


def calls_that(capture: Capture, rule: Callable[[str], bool]) -> np.ndarray:
    """Mask (n,) of `api`: calls whose name the rule accepts."""
    return _fits(capture, capture.api.name_id, rule)


def _fits(capture: Capture, name_id: np.ndarray, rule: Callable[[str], bool]) -> np.ndarray:
    used, which = np.unique(name_id, return_inverse=True)
    fits = np.array([rule(capture.name(int(index))) for index in used], dtype=bool)
    found: np.ndarray = fits[which.ravel()] if len(used) else np.zeros(0, dtype=bool)
    return found


def call_of(capture: Capture) -> np.ndarray:
    """Row of `api` (n,) that made each GPU operation, by process and correlation; -1 where it is missing."""
    ops, api = capture.ops, capture.api
    return first_index(process_keys(ops.process, ops.corr), process_keys(api.process, api.corr))


def process_keys(process: np.ndarray, number: np.ndarray) -> np.ndarray:
    """One number (n,) of two: below zero where the second is unknown."""
    within = np.bitwise_and(number, (1 << 44) - 1)
    return np.where(number < 0, -1, process.astype(np.int64) << 44 | within)


def in_graph(capture: Capture, call: np.ndarray) -> np.ndarray:
    """Mask (n,) of `ops`: rows that a graph replay made; call (n,) as of `call_of`."""
    if not len(capture.api):
        return capture.ops.graph_node > 0
    by_call = np.append(calls_that(capture, launches_graph), False)[call]
    found: np.ndarray = (by_call | (capture.ops.graph_node > 0)) & (capture.ops.kind != GRAPH)
    return found


def replays_graphs(capture: Capture) -> bool:
    """Whether any GPU row of a recording was made by a graph, or any call launched one."""
    fits = np.array([*map(launches_graph, capture.strings), False])
    return bool(fits[capture.api.name_id].any() or (capture.ops.graph_node > 0).any())


def operators(capture: Capture, external_id: np.ndarray, call: np.ndarray) -> np.ndarray:
    """Row of `ranges` (n,) of the operator that made each call (row of `api`, or -1); -1 for none."""
    rows = capture.operator_rows
    owner = np.full(len(call), -1, dtype=np.int64)
    made = np.flatnonzero(call >= 0)
    if not len(rows) or not len(made):
        return owner
    calls = capture.api.take(call[made])
    op, _ = operators_of_launches(capture.operators, external_id[made], calls.pid, calls.tid, calls.start_ns)
    owner[made] = np.where(op >= 0, rows[op], -1)
    return owner
