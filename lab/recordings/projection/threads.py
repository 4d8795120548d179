"""Phases of one thread that own what another thread launched."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import PUSH_POP, Capture
from lab.recordings.owners import nearest_ancestor
from lab.recordings.phase_names import PHASES, is_step, is_warmup
from lab.recordings.projection.nest import RangeForest, by_thread, innermost_around
from lab.recordings.projection.result import AMBIGUOUS, Projection


@dataclass(frozen=True)
class Offer:
    """Kernels that would belong to ranges whose name fits `pattern`, if these were a phase."""

    name: str
    pattern: str
    kernels: int
    kernel_ms: float

    @property
    def sentence(self) -> str:
        kernels = plural(self.kernels, "kernel")
        return f"{kernels} ran under `{self.name}`: --phase {shlex.quote(self.pattern)}"


def offers(projection: Projection, phases: re.Pattern[str] = PHASES) -> tuple[Offer, ...]:
    """What other ranges could own, costliest first; () for `attribution="nsys"`, which asks one thread only.

    Counted are kernels without a phase or a step around them on their own thread, and without an inherited
    phase, while exactly one other thread of the process had a range of the program open; it is the
    innermost that counts. Names that differ in numbers only are one offer.
    """
    capture = projection.capture
    if projection.attribution == "nsys" or not len(capture.ranges):
        return ()
    wanted, phase, step = _kinds(capture, phases)
    wanted[projection.instances.level < 0] = False
    has_phase = has_above(projection.instances.parent, projection.ops.range, phase | step)
    lent = has_above(projection.instances.parent, projection.ops.inherited, phase)
    open_ones = (projection.ops.api >= 0) & capture.kernels & (projection.ops.rule != AMBIGUOUS)
    lost = np.flatnonzero(open_ones & ~has_phase & ~lent)
    if not len(lost) or not wanted.any():
        return ()
    nest = RangeForest(capture)
    elsewhere, count = phase_elsewhere(capture, nest, projection.ops.api[lost], np.flatnonzero(wanted))
    elsewhere[count != 1] = -1
    return _by_name(capture, lost[elsewhere >= 0], elsewhere[elsewhere >= 0])


def _kinds(capture: Capture, phases: re.Pattern[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks of `ranges`: the program's own ranges that are neither phase nor step; phases; steps."""
    phase, step = _phases_and_steps(capture, phases)
    library = capture.by_text(lambda text: "::" in text or "#" in text, capture.ranges.name_id, True)
    return (capture.ranges.kind == PUSH_POP) & ~(phase | step | library), phase, step


def _phases_and_steps(capture: Capture, phases: re.Pattern[str]) -> tuple[np.ndarray, np.ndarray]:
    """Masks of `ranges`: phases; steps and warm-up."""
    names = capture.ranges.name_id
    phase = capture.by_text(lambda text: phases.fullmatch(text) is not None, names)
    return phase, capture.by_text(lambda text: is_step(text) or is_warmup(text), names)


def _by_name(capture: Capture, ops: np.ndarray, rows: np.ndarray) -> tuple[Offer, ...]:
    dur_ns = capture.ops.end_ns[ops] - capture.ops.start_ns[ops]
    groups: dict[str, list[int]] = {}
    used, name_index = np.unique(capture.ranges.name_id[rows], return_inverse=True)
    numbers = [re.sub(r"\d+", "0", capture.name(int(name))) for name in used]
    for index, text in enumerate(numbers):
        groups.setdefault(text, []).append(index)
    offers_by_name = []
    for members in groups.values():
        of_name = np.isin(name_index, members)
        example = capture.name(int(used[members[0]]))
        # The pattern is for a shell's command line: blanks and dashes need no escape there.
        pattern = re.escape(example).replace("\\ ", " ").replace("\\-", "-")
        if len(members) > 1:
            pattern = re.sub(r"\d+", r"\\d+", pattern)
        name = example if len(members) == 1 else f"{example} and the like"
        offers_by_name.append(Offer(name, pattern, int(of_name.sum()), float(dur_ns[of_name].sum()) / 1e6))
    return tuple(sorted(offers_by_name, key=lambda offer: (-offer.kernel_ms, offer.name)))


def phases_of_other_threads(
    capture: Capture, nest: RangeForest, call: np.ndarray, inner: np.ndarray, phases: re.Pattern[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The row of the phase that each operation (n,) inherits, or -1; and which operations are ambiguous (n,).

    Only calls without a phase or a step around them on their own thread inherit: a phase, or
    without one a step.
    """
    is_phase, in_step = _phases_and_steps(capture, phases)
    in_step &= ~is_phase
    is_phase[nest.loose] = in_step[nest.loose] = False
    orphans = np.flatnonzero((call >= 0) & ~has_above(nest.parent, inner, is_phase | in_step))
    inherited, ambiguous = np.full(len(call), -1, dtype=np.int64), np.zeros(len(call), dtype=bool)
    # A phase says more than a step: a step is inherited only where no thread had a phase open.
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
    """Find for each of `rows` its nearest ancestor that is one of them, or -1 (rows as `ranges`)."""
    chosen = np.zeros(num_ranges, dtype=bool)
    chosen[rows] = True
    parent = np.full(num_ranges, -1, dtype=np.int64)
    parent[rows] = nearest_ancestor(nest.parent, nest.parent[rows], chosen)
    return parent


def has_above(parent: np.ndarray, start: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Whether a wanted range is among each start row (n,) and its ancestors."""
    mask: np.ndarray = nearest_ancestor(parent, start, wanted) >= 0
    return mask
