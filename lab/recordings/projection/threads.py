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
        found, count = phase_elsewhere(capture, nest, call[orphans], np.flatnonzero(candidates))
        inherited[orphans] = np.where(count == 1, found, -1)
        ambiguous[orphans] = count > 1
        orphans = orphans[count == 0]
    return inherited, ambiguous


def phase_elsewhere(
    capture: Capture, nest: RangeForest, call: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The innermost of `rows` around each call (n,) on other threads of its process; on how many threads."""
    ranges, api = capture.ranges, capture.api
    found, count = np.full(len(call), -1, dtype=np.int64), np.zeros(len(call), dtype=np.int64)
    parent = _parents_among(nest, rows, len(ranges))
    for (process, tid), mine in by_thread(ranges, rows):
        mine = mine[np.lexsort((-ranges.end_ns[mine], ranges.start_ns[mine]))]
        asked = np.flatnonzero((api.process[call] == process) & (api.tid[call] != tid))
        at = innermost_around(capture, mine, parent, call[asked])
        found[asked] = np.where(at >= 0, at, found[asked])
        count[asked] += at >= 0
    return found, count


def _parents_among(nest: RangeForest, rows: np.ndarray, num_ranges: int) -> np.ndarray:
    """For each of `rows` its nearest ancestor that is one of them, or -1 (rows as `ranges`)."""
    chosen = np.zeros(num_ranges, dtype=bool)
    chosen[rows] = True
    parent = np.full(num_ranges, -1, dtype=np.int64)
    parent[rows] = nearest_ancestor(nest.parent, nest.parent[rows], chosen)
    return parent


def has_above(parent: np.ndarray, start: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Whether a wanted range is among each start row (n,) and its ancestors."""
    found: np.ndarray = nearest_ancestor(parent, start, wanted) >= 0
    return found
