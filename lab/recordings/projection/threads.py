"""Phases of one thread that own what another thread launched."""

from __future__ import annotations

import re

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.phase_names import is_step, is_warmup
from lab.recordings.projection.nest import RangeForest, by_thread, innermost_around, nearest_ancestor


def phases_of_other_threads(
    capture: Capture, nest: RangeForest, call: np.ndarray, inner: np.ndarray, phases: re.Pattern[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The row of the phase that each operation (n,) inherits, or -1; and which operations are ambiguous (n,).

    Only calls without a phase or a step around them on their own thread inherit: a phase, or
    without one a step.
    """
    texts = capture.strings
    is_phase = np.array([*(bool(phases.fullmatch(text)) for text in texts), False])[capture.ranges.name_id]
    in_step = np.array([*(is_step(text) or is_warmup(text) for text in texts), False])
    in_step = in_step[capture.ranges.name_id] & ~is_phase
    is_phase[nest.loose] = in_step[nest.loose] = False
    orphans = np.flatnonzero((call >= 0) & ~has_above(nest.parent, inner, is_phase | in_step))
    inherited, ambiguous = np.full(len(call), -1, dtype=np.int64), np.zeros(len(call), dtype=bool)
    for candidates in (is_phase, in_step):
        phase_rows, count = phase_elsewhere(capture, nest, call[orphans], np.flatnonzero(candidates))
        inherited[orphans] = np.where(count == 1, phase_rows, -1)
        ambiguous[orphans] = count > 1
        orphans = orphans[count == 0]
    return inherited, ambiguous


def phase_elsewhere(
    capture: Capture, nest: RangeForest, call: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The innermost of `rows` around each call (n,) on other threads of its process; on how many threads."""
    ranges, api = capture.ranges, capture.api
    phase_rows, count = np.full(len(call), -1, dtype=np.int64), np.zeros(len(call), dtype=np.int64)
    parent = _parents_among(nest, rows, len(ranges))
    for (process, tid), thread_rows in by_thread(ranges, rows):
        thread_rows = thread_rows[np.lexsort((-ranges.end_ns[thread_rows], ranges.start_ns[thread_rows]))]
        asked = np.flatnonzero((api.process[call] == process) & (api.tid[call] != tid))
        phase_row = innermost_around(capture, thread_rows, parent, call[asked])
        phase_rows[asked] = np.where(phase_row >= 0, phase_row, phase_rows[asked])
        count[asked] += phase_row >= 0
    return phase_rows, count


def _parents_among(nest: RangeForest, rows: np.ndarray, num_ranges: int) -> np.ndarray:
    """For each of `rows` its nearest ancestor that is one of them, or -1 (rows as `ranges`)."""
    chosen = np.zeros(num_ranges, dtype=bool)
    chosen[rows] = True
    parent = np.full(num_ranges, -1, dtype=np.int64)
    parent[rows] = nearest_ancestor(nest.parent, nest.parent[rows], chosen)
    return parent


def has_above(parent: np.ndarray, start: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Whether a wanted range is among each start row (n,) and its ancestors."""
    mask: np.ndarray = nearest_ancestor(parent, start, wanted) >= 0
    return mask
