"""The projection of a capture: which range launched which operation, also from another thread."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import PUSH_POP, Capture
from lab.recordings.graphs.origins import Origins
from lab.recordings.owners import nearest_ancestor
from lab.recordings.phase_names import PHASES, is_step, is_warmup
from lab.recordings.projection.sums import RangeForest, by_thread, innermost_around, sums_by_group
from lab.recordings.tables import Table

# How an operation was attributed.
RULES = ("same", "cross", "graph", "ambiguous", "outside", "unattributed")
AMBIGUOUS = RULES.index("ambiguous")


@dataclass(frozen=True)
class Part:
    """A part of a recording, as `select` made it.

    `capture.ops` holds its operations alone; ops is their mask in the whole recording. api and ranges
    (masks as those tables, which stay whole, because operations refer to them) mark the calls and ranges in
    it, osrt the calls of the operating system; steps are rows of ranges. text says what was asked for.
    """

    text: str
    ops: np.ndarray
    api: np.ndarray
    ranges: np.ndarray
    osrt: np.ndarray
    steps: np.ndarray


@dataclass(frozen=True)
class Projection:
    """Every operation of `capture.ops` with its call, range and path; every range with its operations.

    ops, a row per row of `capture.ops`:
      - api: the row of its call in `capture.api`, or -1
      - range: the row of the innermost range in `capture.ranges` around the call on its own thread, or -1
      - inherited: the row of the innermost phase of another thread, or -1
      - path: a row of `tree`
      - rule: one of RULES
      - origin: for a backward operation the path (a row of `tree`) of its forward operator, or -1

    tree, a row per distinct path of names; row 0 is the root, with all operations:
      - parent (-1 for the root), name_id, depth
      - self_ops, self_kernels, self_op_ns, self_kernel_ns: of operations with exactly this path
      - num_ops, num_kernels, op_ns, kernel_ns: of these and of all below; each operation counts once

    instances, a row per row of `capture.ranges`:
      - parent: the row of the range around it on its thread, or -1
      - level and path
      - num_ops, num_kernels, op_ns, kernel_ns: of what was launched in it, inherited operations included
      - first_ns, last_ns: earliest start and latest end of its operations, or -1 (the projected span)

    loose: pairs of rows of ops and ranges, for ranges without a path (level -1): start/end ranges, which
    overlap freely, and ranges that cross others.

    nest: the ranges as trees. part: which rows of the whole recording this is about; None for all of them.
    """

    capture: Capture
    attribution: str
    ops: Table
    tree: Table
    instances: Table
    loose: Table
    nest: RangeForest
    problems: list[str]
    part: Part | None = None
    origins: Origins | None = None

    def path(self, index: int) -> tuple[str, ...]:
        """The names along a path of the tree, outermost first; () for the root."""
        names = []
        while index > 0:
            names.append(self.capture.name(int(self.tree.name_id[index])))
            index = int(self.tree.parent[index])
        return tuple(reversed(names))

    def owners(self, rows: np.ndarray) -> np.ndarray:
        """The index in `rows` (m,) of the innermost of these ranges around each operation (n,), or -1.

        A range on the operation's own thread takes precedence over an inherited one.
        """
        index = np.full(len(self.capture.ranges) + 1, -1, dtype=np.int64)
        index[rows] = np.arange(len(rows))
        on_thread = self._nearest_index(self.ops.range, index)
        return np.where(on_thread >= 0, on_thread, self._nearest_index(self.ops.inherited, index))

    def nearest(self, wanted: np.ndarray) -> np.ndarray:
        """The innermost range of the mask `wanted` on each operation's own thread (n,), or -1."""
        return nearest_ancestor(self.instances.parent, self.ops.range, wanted)

    def _nearest_index(self, start: np.ndarray, index: np.ndarray) -> np.ndarray:
        ancestor = nearest_ancestor(self.instances.parent, start, index[:-1] >= 0)
        return np.where(ancestor >= 0, index[ancestor], -1)

    @cached_property
    def steps(self) -> np.ndarray:
        """Rows of `capture.ranges` that are measured steps (`step_0`, `ProfilerStep#3`), by start."""
        return self.part.steps if self.part is not None else _steps(self.capture, self.instances.parent)

    @cached_property
    def every_step(self) -> np.ndarray:
        """The measured steps of the whole recording, also those that are not in `part`."""
        return _steps(self.capture, self.instances.parent)

    @cached_property
    def warmups(self) -> np.ndarray:
        """Rows of `capture.ranges` that are warm-up."""
        return np.flatnonzero(self.capture.by_text(is_warmup, self.capture.ranges.name_id))

    @cached_property
    def coverage(self) -> Table:
        """One row per rule: num_ops, num_kernels, op_ns, kernel_ns."""
        return Table(sums_by_group(self.capture, self.ops.rule.astype(np.int64), len(RULES)))


def _steps(capture: Capture, parent: np.ndarray) -> np.ndarray:
    """Rows of step ranges, outermost ones, by start; without those inside a warm-up range."""
    steps, warmups = (capture.by_text(rule, capture.ranges.name_id) for rule in (is_step, is_warmup))
    rows = np.flatnonzero(steps)
    # A step inside another one (a micro-batch) would count its work twice; one of a warm-up is not measured.
    above = nearest_ancestor(parent, parent[rows], steps | warmups)
    rows = rows[above < 0]
    return rows[np.argsort(capture.ranges.start_ns[rows], kind="stable")]


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
    phase, step = _phases_and_steps(capture, phases)
    library = capture.by_text(lambda text: "::" in text or "#" in text, capture.ranges.name_id, True)
    wanted = (capture.ranges.kind == PUSH_POP) & ~(phase | step | library) & (projection.instances.level >= 0)
    ops, parent = projection.ops, projection.instances.parent
    owned = has_above(parent, ops.range, phase | step) | has_above(parent, ops.inherited, phase)
    lost = np.flatnonzero((ops.api >= 0) & capture.kernels & (ops.rule != AMBIGUOUS) & ~owned)
    if not len(lost) or not wanted.any():
        return ()
    elsewhere, count = phase_elsewhere(capture, projection.nest, ops.api[lost], np.flatnonzero(wanted))
    elsewhere[count != 1] = -1
    return _by_name(capture, lost[elsewhere >= 0], elsewhere[elsewhere >= 0])


def _phases_and_steps(capture: Capture, phases: re.Pattern[str]) -> tuple[np.ndarray, np.ndarray]:
    """Masks of `ranges`: phases; steps and warm-up."""
    names = capture.ranges.name_id
    phase = capture.by_text(lambda text: phases.fullmatch(text) is not None, names)
    return phase, capture.by_text(lambda text: is_step(text) or is_warmup(text), names)


def _by_name(capture: Capture, ops: np.ndarray, rows: np.ndarray) -> tuple[Offer, ...]:
    dur_ns = capture.ops.end_ns[ops] - capture.ops.start_ns[ops]
    groups: dict[str, list[int]] = {}
    used, name_index = np.unique(capture.ranges.name_id[rows], return_inverse=True)
    for index, name_id in enumerate(used.tolist()):
        groups.setdefault(re.sub(r"\d+", "0", capture.name(name_id)), []).append(index)
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
    chosen = np.zeros(len(ranges), dtype=bool)
    chosen[rows] = True
    parent = np.full(len(ranges), -1, dtype=np.int64)
    parent[rows] = nearest_ancestor(nest.parent, nest.parent[rows], chosen)
    for (process, tid), thread_rows in by_thread(ranges, rows):
        thread_rows = thread_rows[np.lexsort((-ranges.end_ns[thread_rows], ranges.start_ns[thread_rows]))]
        asked = np.flatnonzero((api.process[call] == process) & (api.tid[call] != tid))
        phase_row = innermost_around(capture, thread_rows, parent, call[asked])
        phase_rows[asked] = np.where(phase_row >= 0, phase_row, phase_rows[asked])
        count[asked] += phase_row >= 0
    return phase_rows, count


def has_above(parent: np.ndarray, start: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Whether a wanted range is among each start row (n,) and its ancestors."""
    mask: np.ndarray = nearest_ancestor(parent, start, wanted) >= 0
    return mask
