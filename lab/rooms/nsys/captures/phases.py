"""What each range below a step cost the GPU, in every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lab.recordings.capture import OP, Capture
from lab.recordings.names import CLASSES
from lab.recordings.owners import nearest_ancestor
from lab.recordings.projection import PHASES, Projection
from lab.recordings.projection.sums import sums_by_group
from lab.recordings.views import gemm_flops, row_classes
from lab.stats import intervals

MAX_DEPTH = 4  # of ranges below a step
MAX_PHASES = 60

Path = tuple[str, ...]


@dataclass(frozen=True)
class Phase:
    """One path of ranges below a step, `()` being the step itself. Times are ms per step, mean and deviation.

    kernels: launches in each step (one number where all agree); share: of the step's kernel time,
    None without any.
    gemm_tflop: 10^12 operations of matrix products, from recorded shapes, and gemm_ms, the time of their
    kernels; None without shapes. gemm_uncounted_ms: of kernels that multiply in ops without a shape or model.
    """

    path: Path
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
    gemm_uncounted_ms: float = 0.0

    @property
    def launches(self) -> str:
        """`118`, or `117-118` where steps differ."""
        return "-".join(map(str, sorted({min(self.kernels), max(self.kernels)})))


def phases_of(
    projection: Projection, step_of_operation: np.ndarray, steps: np.ndarray
) -> dict[Path, tuple[Phase, np.ndarray]]:
    """Path -> its figures and the rows of its ranges: the step, then each parent before its children."""
    below, opens = _paths_below_step(projection, steps)
    used = [path for path, num_ops in zip(below, projection.tree.num_ops, strict=True) if path and num_ops]
    paths = sorted({path[:depth] for path in used for depth in range(1, min(len(path), MAX_DEPTH) + 1)})
    gemms = _gemm_flops(projection)
    phases: dict[Path, tuple[Phase, np.ndarray]] = {}
    for path in [(), *paths]:
        inside = np.array([node is not None and node[: len(path)] == path for node in below])
        group = np.where(inside[projection.ops.path], step_of_operation, -1)
        nodes = np.array(
            [*(is_open and node == path for node, is_open in zip(below, opens, strict=True)), False]
        )
        rows = _ranges_at(projection, nodes, steps) if path else steps
        step_ms = phases[()][0].kernel_ms if path else None
        phases[path] = _phase(projection, path, rows, group, max(len(steps), 1), gemms, step_ms), rows
    return {path: phases[path] for path in _by_time(phases, ())[:MAX_PHASES]}


def _by_time(phases: Mapping[Path, tuple[Phase, np.ndarray]], path: Path) -> list[Path]:
    """The path and all below it, the costliest child before the others."""
    children = [child for child in phases if len(child) == len(path) + 1 and child[:-1] == path]
    children.sort(key=lambda child: -phases[child][0].kernel_ms)
    return [path, *(below for child in children for below in _by_time(phases, child))]


def _paths_below_step(projection: Projection, steps: np.ndarray) -> tuple[list[Path | None], list[bool]]:
    """For each path of the tree the program's ranges in it below the step (None outside of steps), and
    whether it ends with the last of them.

    Operators that the framework records, and ranges with names in the style of libraries that are not a
    phase, are left out.
    """
    capture, tree, origins = projection.capture, projection.tree, projection.origins
    named = {
        capture.name(index)
        for index in np.unique(capture.ranges.name_id[capture.ranges.kind != OP])
        if index >= 0
    }
    named |= {name for path in origins.paths for name in path} if origins is not None else set()
    at_step = set(projection.instances.path[steps].tolist())
    below: list[Path | None] = [None if len(steps) else ()]
    opens = [False]
    for node in range(1, len(tree)):
        parent, name = below[tree.parent[node]], capture.name(int(tree.name_id[node]))
        of_program = name in named and (not ("::" in name or "#" in name) or PHASES.fullmatch(name))
        opens.append(bool(parent is not None and of_program and node not in at_step))
        path = (*parent, name) if parent is not None and of_program else parent
        below.append(() if node in at_step else path)
    return below, opens


def _ranges_at(projection: Projection, nodes: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Rows of the ranges at these nodes of the tree (a mask), among those that launched anything."""
    rows = np.flatnonzero(nodes[projection.instances.path])
    if projection.part is None:
        return rows
    left_out = np.zeros(len(projection.capture.ranges), dtype=bool)
    left_out[np.setdiff1d(projection.every_step, steps)] = True
    elsewhere = nearest_ancestor(projection.instances.parent, rows, left_out) >= 0
    return rows[projection.part.ranges[rows] & ~elsewhere]


def _phase(
    projection: Projection,
    path: Path,
    rows: np.ndarray,
    group: np.ndarray,
    num_steps: int,
    gemms: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
    step_ms: float | None,
) -> Phase:
    """Figures of the ranges `rows`; group (n,): the step of each operation, or -1; step_ms: of the step, None
    for the step itself."""
    inside, figures = group >= 0, step_figures(projection.capture, group, num_steps)
    counts, kernel_ms = figures["num_kernels"], float(figures["kernel_ns"].mean()) / 1e6
    whole_ms = kernel_ms if step_ms is None else step_ms
    tflop, gemm_ms, uncounted_ms = (
        (
            float(values[inside].sum()) / num_steps / unit
            for values, unit in zip(gemms, (1e12, 1e6, 1e6), strict=True)
        )
        if gemms
        else (None, None, 0.0)
    )
    return Phase(
        path=path,
        instances_per_step=len(rows) / num_steps,
        kernels=tuple(counts[: 1 if (counts == counts[0]).all() else None].tolist()),
        kernel_ms=kernel_ms,
        kernel_sd_ms=sample_sd(figures["kernel_ns"]) / 1e6,
        busy_ms=float(figures["busy_ns"].mean()) / 1e6,
        span_ms=float(figures["span_ns"].mean()) / 1e6,
        host_ms=float(projection.capture.ranges.dur_ns[rows].sum()) / num_steps / 1e6,
        share=kernel_ms / whole_ms if whole_ms else None,
        gemm_tflop=tflop,
        gemm_ms=gemm_ms,
        gemm_uncounted_ms=uncounted_ms,
    )


def products(capture: Capture) -> np.ndarray:
    """Mask (n,) of the kernels that multiply matrices, by their op where it is known.

    bitsandbytes' kgemm_4bit multiplies and dequantizes in one: its class is `quant`, and it counts.
    """
    gemm_classes = [CLASSES.index("gemm"), CLASSES.index("gemv")]
    dequantizes = capture.by_text(lambda text: "kgemm_4bit" in text, capture.ops.name_id)
    mask: np.ndarray = (np.isin(row_classes(capture), gemm_classes) | dequantizes) & capture.kernels
    return mask


def _gemm_flops(projection: Projection) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """FLOPs of GEMMs (n,), at each one's first kernel, ns (n,) of their kernels, and ns (n,) of other kernels
    that multiply; None without shapes."""
    flops = gemm_flops(projection.capture)
    if not (flops > 0).any():
        return None
    ops = projection.capture.ops
    # An op's FLOPs stand at its first kernel, so that sums over any set of rows count them once.
    product = projection.nearest(flops > 0)
    counted = (product >= 0) & projection.capture.kernels
    uncounted = products(projection.capture) & ~counted
    rows, flop = np.flatnonzero(counted), np.zeros(len(ops))
    used, first_rows = np.unique(product[rows], return_index=True)
    flop[rows[first_rows]] = flops[used]
    return flop, np.where(counted, ops.dur_ns, 0), np.where(uncounted, ops.dur_ns, 0)


def step_figures(capture: Capture, step: np.ndarray, num_steps: int) -> dict[str, np.ndarray]:
    """Arrays (steps,): num_ops, num_kernels, kernel_ns, busy_ns, span_ns; step (n,): that of each operation,
    or -1."""
    figures = sums_by_group(capture, step, num_steps, with_span=True)
    rows = np.flatnonzero(step >= 0)
    spans = np.stack([capture.ops.start_ns[rows], capture.ops.end_ns[rows]], axis=1)
    figures["busy_ns"] = intervals.totals(spans, step[rows], num_steps)
    figures["span_ns"] = np.where(figures["num_ops"], figures["last_ns"] - figures["first_ns"], 0)
    return figures


def sample_sd(values: np.ndarray) -> float:
    """Sample standard deviation; 0 for a single value, as nsys writes it."""
    return float(np.asarray(values, dtype=float).std(ddof=1)) if len(values) > 1 else 0.0
