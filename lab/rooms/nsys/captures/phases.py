"""What each range below a step cost the GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lab.recordings.capture import OP
from lab.recordings.projection import PHASES, Projection
from lab.recordings.projection.nest import nearest_ancestor
from lab.recordings.views import gemm_flops
from lab.rooms.nsys.steps import sample_sd, step_figures

MAX_DEPTH = 4  # of ranges below a step

MAX_PHASES = 60


@dataclass(frozen=True)
class Phase:
    """One path of ranges below a step, `()` being the step itself. Times are ms per step, mean and deviation.

    kernels: launches in each step (one number where all agree); share: of the step's kernel time,
    None without any.
    gemm_tflop: 10^12 operations of matrix products, from recorded shapes, and gemm_ms, the time of their
    kernels; None without shapes.
    """

    path: tuple[str, ...]
    instances_per_step: float
    kernels: tuple[int, ...]
    kernel_ms: float
    kernel_sd_ms: float
    busy_ms: float
    span_ms: float
    host_ms: float
    share: float | None
    gemm_tflop: float | None
    gemm_ms: float | None


def phases_of(projection: Projection, frame: np.ndarray, steps: np.ndarray) -> tuple[Phase, ...]:
    """The step itself, then the ranges in it by path: a parent before its children, those by time."""
    below = _paths_below_step(projection, steps)
    used = [path for path, num_ops in zip(below, projection.tree.num_ops, strict=True) if path and num_ops]
    shown = sorted({path[:depth] for path in used for depth in range(1, min(len(path), MAX_DEPTH) + 1)})
    gemms = _gemm_flops(projection)
    found: dict[tuple[str, ...], Phase] = {}
    for path in [(), *shown]:
        inside = np.array([one is not None and one[: len(path)] == path for one in below])
        group = np.where(inside[projection.ops.path], frame, -1)
        rows = _ranges_at_path(projection, below, path, steps)
        found[path] = _phase(projection, path, rows, group, max(len(steps), 1), gemms)
    total = found[()].kernel_ms
    found = {
        path: replace(one, share=one.kernel_ms / total if total else None) for path, one in found.items()
    }
    ordered: list[Phase] = []
    _unfold((), found, ordered)
    return tuple(ordered[:MAX_PHASES])


def _paths_below_step(projection: Projection, steps: np.ndarray) -> list[tuple[str, ...] | None]:
    """For each path of the tree the program's ranges in it below the step; None outside of steps.

    Operators that the framework records, and ranges with names in the style of libraries that are no phase,
    are left out.
    """
    capture, tree = projection.capture, projection.tree
    ranges = capture.ranges
    own = np.zeros(len(capture.strings) + 1, dtype=bool)
    own[ranges.name_id[ranges.kind != OP]] = True
    if projection.origins is not None:
        at_capture = {name for path in projection.origins.paths for name in path}
        own |= np.array([*(text in at_capture for text in capture.strings), False])
    own &= np.array([*(_of_the_program(text) for text in capture.strings), False])
    at_step = set(projection.instances.path[steps].tolist())
    below: list[tuple[str, ...] | None] = [None if len(steps) else ()]
    for node in range(1, len(tree)):
        above, name = below[tree.parent[node]], int(tree.name_id[node])
        if node in at_step:
            below.append(())
        else:
            below.append((*above, capture.name(name)) if above is not None and own[name] else above)
    return below


def _of_the_program(text: str) -> bool:
    return ("::" not in text and "#" not in text) or PHASES.fullmatch(text) is not None


def _ranges_at_path(
    projection: Projection, below: list[tuple[str, ...] | None], path: tuple[str, ...], steps: np.ndarray
) -> np.ndarray:
    """Rows of the ranges that are this path themselves, among those that launched anything."""
    if not path:
        return steps
    tree, capture = projection.tree, projection.capture
    ends = [
        one == path and capture.name(int(tree.name_id[node])) == path[-1] for node, one in enumerate(below)
    ]
    # An operator below has the same path.
    starts = [below[tree.parent[node]] != path for node in range(len(tree))]
    nodes = np.append(np.array(ends) & np.array(starts), False)
    rows = np.flatnonzero(nodes[projection.instances.path])
    if projection.part is None:
        return rows
    left_out = np.zeros(len(capture.ranges), dtype=bool)
    left_out[np.setdiff1d(projection.every_step, steps)] = True
    elsewhere = nearest_ancestor(projection.instances.parent, rows, left_out) >= 0
    return rows[projection.part.ranges[rows] & ~elsewhere]


def _unfold(path: tuple[str, ...], found: dict[tuple[str, ...], Phase], into: list[Phase]) -> None:
    if path in found:
        into.append(found[path])
    children = [one for one in found if len(one) == len(path) + 1 and one[:-1] == path]
    for child in sorted(children, key=lambda one: -found[one].kernel_ms):
        _unfold(child, found, into)


def _phase(
    projection: Projection,
    path: tuple[str, ...],
    rows: np.ndarray,
    group: np.ndarray,
    num_steps: int,
    gemms: tuple[np.ndarray, np.ndarray],
) -> Phase:
    """Figures of the ranges `rows`, without the share; group (n,): the step of each operation, or -1."""
    capture = projection.capture
    ops, inside = capture.ops, group >= 0
    found = step_figures(ops.start_ns, ops.end_ns, capture.kernels, group, num_steps)
    host_ns = (capture.ranges.end_ns - capture.ranges.start_ns)[rows]
    counts = found.kernels
    flops, gemm_ns = gemms
    shapes = bool(len(flops))
    return Phase(
        path=path,
        instances_per_step=len(rows) / num_steps,
        kernels=tuple(counts[:1].tolist() if found.same_launches else counts.tolist()),
        kernel_ms=float(found.kernel_ns.mean()) / 1e6,
        kernel_sd_ms=sample_sd(found.kernel_ns) / 1e6,
        busy_ms=float(found.busy_ns.mean()) / 1e6,
        span_ms=float(found.span_ns.mean()) / 1e6,
        host_ms=float(host_ns.sum()) / num_steps / 1e6,
        share=None,
        gemm_tflop=float(flops[inside].sum()) / num_steps / 1e12 if shapes else None,
        gemm_ms=float(gemm_ns[inside].sum()) / num_steps / 1e6 if shapes else None,
    )


def _gemm_flops(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """FLOPs of GEMMs (n,), at each one's first kernel, and ns (n,) of their kernels; empty without shapes."""
    flops = gemm_flops(projection.capture)
    if not (flops > 0).any():
        return np.empty(0), np.empty(0)
    ops = projection.capture.ops
    product = projection.nearest(flops > 0)
    rows = np.flatnonzero((product >= 0) & projection.capture.kernels)
    flop, spent_ns = np.zeros(len(ops)), np.zeros(len(ops), dtype=np.int64)
    spent_ns[rows] = ops.end_ns[rows] - ops.start_ns[rows]
    used, first = np.unique(product[rows], return_index=True)
    flop[rows[first]] = flops[used]
    return flop, spent_ns
