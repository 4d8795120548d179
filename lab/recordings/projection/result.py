"""The projection of a capture: which range launched which operation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.graphs.origins import Origins
from lab.recordings.owners import nearest_ancestor
from lab.recordings.phase_names import is_step, is_warmup
from lab.recordings.projection.sums import sums_by_group
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

    part: which rows of the whole recording this is about; None for all of them.
    """

    capture: Capture
    attribution: str
    ops: Table
    tree: Table
    instances: Table
    loose: Table
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
