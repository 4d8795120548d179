"""A capture on one screen: what each phase cost the GPU, which kernels it was, how busy the GPU was, what is uncertain.

Four times are told apart: kernel time (each kernel for itself, summed), busy (their union with copies and fills), span
(from the first operation's start to the last one's end) and host (the range itself, on the CPU). Figures are means over
the measured steps; warm-up ranges and what lies outside of steps are left out, and said so. A capture without steps is
taken as one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from lab.recordings.capture import OP, Capture
from lab.recordings.names import CLASSES, is_matmul, kernel_class, short_name
from lab.recordings.projection import RULES, Projection
from lab.stats import intervals

MAX_DEPTH = 4  # of ranges below a step
MAX_PHASES = 60
TOP = 12
_ONE = "the whole capture"


@dataclass(frozen=True)
class Phase:
    """One path of ranges below a step, `()` being the step itself. Times are ms a step, mean and deviation.

    kernels: launches in each step (one number where all agree); share: of the step's kernel time. gemm_tflop: 10^12
    operations of matrix products, from recorded shapes, and gemm_ms, the time of their kernels; None without shapes.
    """

    path: tuple[str, ...]
    instances_per_step: float
    kernels: tuple[int, ...]
    kernel_ms: float
    kernel_sd_ms: float
    busy_ms: float
    span_ms: float
    host_ms: float
    share: float
    gemm_tflop: float | None
    gemm_ms: float | None


@dataclass(frozen=True)
class Share:
    """Kernels of one class, or of one name, in the measured steps."""

    name: str
    kernels: int
    kernel_ms: float
    share: float
    per_step: float


@dataclass(frozen=True)
class Gpu:
    """One GPU over the measured steps: time with work, and without, between the first and the last operation."""

    device: int
    name: str
    busy_ms: float
    idle_ms: float
    longest_gap_ms: float


@dataclass(frozen=True)
class Summary:
    """See the module. rules: for each rule of attribution its operations and their ms, over the whole capture."""

    source: str
    collector: str
    version: str | None
    schema: str | None
    attribution: str
    steps: tuple[str, ...]
    phases: tuple[Phase, ...]
    classes: tuple[Share, ...]
    top: tuple[Share, ...]
    origins: tuple[Share, ...]
    matmul_share: float
    gpus: tuple[Gpu, ...]
    rules: dict[str, tuple[int, float]]
    left_out: tuple[int, float]
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in _lines(self)) + "\n"


def summarise(projection: Projection) -> Summary:
    """The figures of one projected capture, in time linear in its rows (and the paths shown)."""
    capture = projection.capture
    frame, steps = _frames(projection)
    measured = frame >= 0
    kernels = measured & capture.kernels
    num_steps = max(len(steps), 1)
    dur_ns = capture.ops.end_ns - capture.ops.start_ns
    lost = ~measured
    by_name = _shares(capture, capture.ops.name_id, kernels, num_steps)
    return Summary(
        source=str(capture.source),
        collector=capture.collector,
        version=capture.version,
        schema=capture.schema,
        attribution=projection.attribution,
        steps=tuple(capture.name(int(i)) for i in capture.ranges.name_id[steps]),
        phases=_phases(projection, frame, steps),
        classes=_by_class(by_name),
        top=tuple(by_name[:TOP]),
        origins=_origins(projection, kernels, num_steps),
        matmul_share=sum(one.share for one in by_name if is_matmul(one.name)),
        gpus=_gpus(capture, measured),
        rules=_rules(projection),
        left_out=(int(lost.sum()), int(dur_ns[lost].sum()) / 1e6),
        problems=(*capture.problems, *projection.problems),
    )


def _frames(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """The measured step (n,) of each operation, -1 for none, and the steps' rows; without steps all is one, 0."""
    steps = projection.steps
    if len(steps) == 0:
        return np.zeros(len(projection.capture.ops), dtype=np.int64), steps
    return projection.owners(steps), steps


def _phases(projection: Projection, frame: np.ndarray, steps: np.ndarray) -> tuple[Phase, ...]:
    """The step itself, then the ranges in it by path: a parent before its children, those by time."""
    below = _below_the_step(projection, steps)
    shown = sorted(
        {path[:depth] for path in below if path for depth in range(1, min(len(path), MAX_DEPTH) + 1)}
    )
    work = _work(projection)
    found: dict[tuple[str, ...], Phase] = {}
    for path in [(), *shown]:
        inside = np.array([one is not None and one[: len(path)] == path for one in below])
        group = np.where(inside[projection.ops.path], frame, -1)
        rows = _ranges_at(projection, below, path, steps)
        found[path] = _phase(projection, path, rows, group, max(len(steps), 1), work)
    total = found[()].kernel_ms
    found = {path: replace(one, share=one.kernel_ms / total if total else 1.0) for path, one in found.items()}
    ordered: list[Phase] = []
    _unfold((), found, ordered)
    return tuple(ordered[:MAX_PHASES])


def _below_the_step(projection: Projection, steps: np.ndarray) -> list[tuple[str, ...] | None]:
    """For each path of the tree the program's ranges in it below the step; None outside of steps.

    Operators that the framework records, and ranges named as libraries name theirs, are left out.
    """
    capture, tree = projection.capture, projection.tree
    ranges = capture.ranges
    own = np.zeros(len(capture.strings) + 1, dtype=bool)
    own[ranges.name_id[(ranges.kind != OP) & (ranges.name_id == ranges.text_id)]] = True
    own &= np.array([*("::" not in text and "#" not in text for text in capture.strings), False])
    at_step = set(projection.instances.path[steps].tolist())
    below: list[tuple[str, ...] | None] = [None if len(steps) else ()]
    for node in range(1, len(tree)):
        above, name = below[tree.parent[node]], int(tree.name_id[node])
        if node in at_step:
            below.append(())
        else:
            below.append((*above, capture.name(name)) if above is not None and own[name] else above)
    return below


def _ranges_at(
    projection: Projection, below: list[tuple[str, ...] | None], path: tuple[str, ...], steps: np.ndarray
) -> np.ndarray:
    """Rows of the ranges that are this path themselves, among those that launched anything."""
    if not path:
        return steps
    tree, capture = projection.tree, projection.capture
    ends = [
        one == path and capture.name(int(tree.name_id[node])) == path[-1] for node, one in enumerate(below)
    ]
    starts = [
        below[tree.parent[node]] != path for node in range(len(tree))
    ]  # an operator below has the same path
    nodes = np.append(np.array(ends) & np.array(starts), False)
    return np.flatnonzero(nodes[projection.instances.path])


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
    work: tuple[np.ndarray, np.ndarray],
) -> Phase:
    """Figures of the ranges `rows`; group (n,): the step in which an operation counts, -1 for none. No share yet."""
    capture = projection.capture
    ops, inside = capture.ops, group >= 0
    kernels = inside & capture.kernels
    dur_ns = ops.end_ns - ops.start_ns
    kernel_ms = np.bincount(group[kernels], dur_ns[kernels], minlength=num_steps) / 1e6
    spans = np.stack([ops.start_ns[inside], ops.end_ns[inside]], axis=1)
    first = np.full(num_steps, np.iinfo(np.int64).max)
    last = np.zeros(num_steps, dtype=np.int64)
    np.minimum.at(first, group[inside], ops.start_ns[inside])
    np.maximum.at(last, group[inside], ops.end_ns[inside])
    host_ns = (capture.ranges.end_ns - capture.ranges.start_ns)[rows]
    counts = np.bincount(group[kernels], minlength=num_steps)
    flops, gemm_ns = work
    shapes = bool(len(flops))
    return Phase(
        path=path,
        instances_per_step=len(rows) / num_steps,
        kernels=tuple(int(n) for n in (counts[:1] if (counts == counts[0]).all() else counts)),
        kernel_ms=float(kernel_ms.mean()),
        kernel_sd_ms=float(kernel_ms.std(ddof=1)) if num_steps > 1 else 0.0,
        busy_ms=float(intervals.totals(spans, group[inside], num_steps).mean()) / 1e6,
        span_ms=float(np.where(last > 0, last - np.minimum(first, last), 0).mean()) / 1e6,
        host_ms=float(host_ns.sum()) / num_steps / 1e6,
        share=1.0,
        gemm_tflop=float(flops[inside].sum()) / num_steps / 1e12 if shapes else None,
        gemm_ms=float(gemm_ns[inside].sum()) / num_steps / 1e6 if shapes else None,
    )


def _work(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Operations of matrix products (n,), each at its first kernel, and ns (n,) of their kernels; empty without shapes."""
    flops = projection.capture.ranges.flops
    if not (flops > 0).any():
        return np.empty(0), np.empty(0)
    ops = projection.capture.ops
    product = projection.nearest(flops > 0)
    rows = np.flatnonzero((product >= 0) & projection.capture.kernels)
    work, spent_ns = np.zeros(len(ops)), np.zeros(len(ops), dtype=np.int64)
    spent_ns[rows] = ops.end_ns[rows] - ops.start_ns[rows]
    used, first = np.unique(product[rows], return_index=True)
    work[rows[first]] = flops[used]
    return work, spent_ns


def _shares(capture: Capture, key: np.ndarray, mask: np.ndarray, num_steps: int) -> list[Share]:
    """Kernels in `mask` by the text of `key`, costliest first."""
    dur_ns = capture.ops.end_ns - capture.ops.start_ns
    used, which = np.unique(key[mask], return_inverse=True)
    total_ns = np.bincount(which, dur_ns[mask], minlength=len(used))
    counts = np.bincount(which, minlength=len(used))
    whole = total_ns.sum()
    found = [
        Share(
            capture.name(int(name)),
            int(n),
            float(ns) / 1e6,
            float(ns / whole) if whole else 0.0,
            n / num_steps,
        )
        for name, n, ns in zip(used, counts, total_ns, strict=True)
    ]
    return sorted(found, key=lambda one: (-one.kernel_ms, one.name))


def _by_class(by_name: list[Share]) -> tuple[Share, ...]:
    found = []
    for kind in CLASSES:
        members = [one for one in by_name if kernel_class(one.name) == kind]
        if members:
            sums = {
                key: sum(getattr(one, key) for one in members)
                for key in ("kernels", "kernel_ms", "share", "per_step")
            }
            found.append(Share(name=kind, **sums))
    return tuple(sorted(found, key=lambda one: -one.kernel_ms))


def _origins(projection: Projection, kernels: np.ndarray, num_steps: int) -> tuple[Share, ...]:
    """Backward kernels by the innermost range of the program around their forward operator."""
    origin = projection.ops.origin
    linked = kernels & (origin >= 0)
    if not linked.any():
        return ()
    return tuple(_shares(projection.capture, projection.tree.name_id[origin], linked, num_steps))


def _gpus(capture: Capture, measured: np.ndarray) -> tuple[Gpu, ...]:
    ops = capture.ops.where(measured)
    known = {device.device: device.name for device in capture.devices}
    found = []
    for device in np.unique(ops.device).tolist():
        mine = ops.where(ops.device == device)
        busy = intervals.union(np.stack([mine.start_ns, mine.end_ns], axis=1))
        gaps = busy[1:, 0] - busy[:-1, 1]
        busy_ms, idle_ms = intervals.total(busy) / 1e6, int(gaps.sum()) / 1e6
        found.append(Gpu(device, known.get(device, "GPU"), busy_ms, idle_ms, int(gaps.max(initial=0)) / 1e6))
    return tuple(found)


def _rules(projection: Projection) -> dict[str, tuple[int, float]]:
    table = projection.coverage
    return {name: (int(table.num_ops[i]), int(table.op_ns[i]) / 1e6) for i, name in enumerate(RULES)}


def _lines(one: Summary) -> list[str]:
    tool = {"nsys": "Nsight Systems", "kineto": "torch.profiler"}[one.collector]
    schema = f", schema {one.schema}" if one.schema else ""
    lines = [
        f"{one.source}",
        f"recorded by {tool} {one.version or '(version not said)'}{schema}; attribution: {one.attribution}",
        f"measured: {_steps_said(one)}",
        "",
        *_phase_lines(one),
        "",
        *_share_lines("kernel classes", one.classes),
        f"  matrix products: {one.matmul_share:.1%} of kernel time",
        "",
        *_share_lines("costliest kernels", one.top, short=True),
    ]
    if one.origins:
        lines += ["", *_share_lines("backward kernels by the forward range they belong to", one.origins)]
    lines += ["", *_gpu_lines(one), "", *_rule_lines(one)]
    return lines + [f"note: {said}" for said in one.problems]


def _steps_said(one: Summary) -> str:
    if not one.steps:
        return f"{_ONE} (no range in it is a step)"
    left = (
        f"; {one.left_out[0]} operations, {one.left_out[1]:.3f} ms outside of them" if one.left_out[0] else ""
    )
    which = one.steps[0] if len(one.steps) == 1 else f"{one.steps[0]} to {one.steps[-1]}"
    return f"{len(one.steps)} step{'s' if len(one.steps) > 1 else ''} ({which}){left}"


def _phase_lines(one: Summary) -> list[str]:
    head = f"{'per step, ms':<44}{'kernels':>10}{'kernel':>10}{'± sd':>8}{'busy':>10}{'span':>10}{'host':>10}{'share':>8}"
    shapes = one.phases[0].gemm_tflop is not None
    lines = [head + (f"{'TFLOP':>9}{'TFLOP/s':>9}" if shapes else "")]
    for phase in one.phases:
        name = "  " * len(phase.path) + (phase.path[-1] if phase.path else ("step" if one.steps else _ONE))
        times = (
            f"{phase.kernel_ms:>10.3f}{phase.kernel_sd_ms:>8.3f}{phase.busy_ms:>10.3f}{phase.span_ms:>10.3f}"
        )
        host = f"{phase.host_ms:>10.3f}" if phase.host_ms else f"{'':>10}"
        rate = _rate(phase) if shapes else ""
        lines.append(f"{name[:43]:<44}{_launches(phase.kernels):>10}{times}{host}{phase.share:>8.1%}{rate}")
    uneven = [phase for phase in one.phases if len(phase.kernels) > 1]
    for phase in uneven[:3]:
        said = ", ".join(map(str, phase.kernels[:10]))
        lines.append(f"  launches of {'/'.join(phase.path) or 'the step'} differ between steps: {said}")
    return lines


def _rate(phase: Phase) -> str:
    if not phase.gemm_tflop or not phase.gemm_ms:
        return ""
    return f"{phase.gemm_tflop:>9.3g}{phase.gemm_tflop / phase.gemm_ms * 1000:>9.1f}"


def _launches(counts: tuple[int, ...]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"


def _share_lines(title: str, shares: tuple[Share, ...], *, short: bool = False) -> list[str]:
    lines = [f"{title + ', a step':<70}{'kernels':>10}{'ms':>12}{'share':>8}"]
    for one in shares:
        name = _cut(short_name(one.name) if short else one.name)
        count = f"{one.per_step:g}" if one.per_step == int(one.per_step) else f"{one.per_step:.2f}"
        ms = one.kernel_ms * one.per_step / one.kernels
        lines.append(f"  {name:<68}{count:>10}{ms:>12.3f}{one.share:>8.1%}")
    return lines


def _cut(name: str, width: int = 66) -> str:
    """Long names differ at their ends: the middle goes."""
    return name if len(name) <= width else f"{name[: width - 30]}...{name[-27:]}"


def _gpu_lines(one: Summary) -> list[str]:
    return [
        f"GPU {gpu.device} ({gpu.name}): busy {gpu.busy_ms:.3f} ms, idle {gpu.idle_ms:.3f} ms between operations "
        f"({_percent(gpu.idle_ms, gpu.busy_ms + gpu.idle_ms)}), longest gap {gpu.longest_gap_ms:.3f} ms"
        for gpu in one.gpus
    ]


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0 %"


def _rule_lines(one: Summary) -> list[str]:
    said = {
        "same": "launched inside a range of its own thread",
        "cross": "launched by a thread without a phase while one other thread was in one",
        "graph": "launched by a CUDA graph inside a range",
        "ambiguous": "several threads were in a phase: given to none",
        "outside": "launched outside of all ranges",
        "unattributed": "its API call is not in the recording",
    }
    total = sum(ops for ops, _ in one.rules.values())
    lines = [f"{'how operations found their range (whole capture)':<88}{'ops':>8}{'ms':>12}"]
    lines += [
        f"  {name:<14}{said[name]:<72}{ops:>8}{ms:>12.3f}"
        for name, (ops, ms) in one.rules.items()
        if ops or total == 0
    ]
    return lines
