"""A capture on one screen: the cost of each phase, which kernels make it up, how busy the GPU was.

Four times are kept apart: kernel time (each kernel for itself, summed), busy (their union with copies and
fills), span (from the first operation's start to the last one's end) and host (the range itself, on the
CPU). Figures are means over the measured steps; warm-up ranges and what lies outside of steps are left out
and counted. A capture without steps is taken as a whole, without its warm-up. Several processes are never
added up: each has a summary of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.graphs import RULES as GRAPH_RULES
from lab.recordings.integrity.words import as_json, bound, idle_bound
from lab.recordings.lacks import Lack
from lab.recordings.names import CLASSES, is_matmul, kernel_class
from lab.recordings.processes import process_label
from lab.recordings.projection import PHASES, RULES, Offer, Projection, offers
from lab.rooms.nsys.captures.phases import Phase, phases_of
from lab.stats import intervals

TOP = 12


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
    """One GPU over the measured steps: busy and idle time between its first and last operation."""

    device: int
    name: str
    busy_ms: float
    idle_ms: float
    longest_gap_ms: float


@dataclass(frozen=True)
class Summary:
    """The figures of a capture; rules: operations and ms by rule of attribution, over the whole capture;
    replayed: kernels of graph replays by their operator at capture, replay_rules: how it was found."""

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
    matmul_share: float | None
    gpus: tuple[Gpu, ...]
    replayed: tuple[Share, ...]
    replay_rules: dict[str, tuple[int, float]]
    rules: dict[str, tuple[int, float]]
    left_out: tuple[int, float]
    problems: tuple[str, ...]
    lacks: tuple[Lack, ...] = ()
    num_processes: int = 1
    process: int = 0
    pid: int | None = None
    rank: int | None = None
    label: str = ""
    part: str = ""
    offers: tuple[Offer, ...] = ()
    warmup_left_out: int = 0

    @property
    def has_bare_steps(self) -> bool:
        """Whether none of the GPU's operations is known to belong to any of the steps."""
        return bool(self.steps and self.left_out[0]) and not self.classes

    def as_json(self) -> dict[str, Any]:
        """The figures; `bounds` says which of them are at least or at most what they say."""
        found = {key: value for key, value in asdict(self).items() if key not in ("lacks", "num_processes")}
        times, attributed = bound(self.lacks, "gpu"), bound(self.lacks)
        idle = idle_bound(self.lacks).strip()
        bounds = {
            "kernels": times,
            "kernel_ms": times,
            "busy_ms": times,
            "idle_ms": idle,
            "phases": attributed,
        }
        return found | {"integrity": as_json(self.lacks), "bounds": bounds}


def summaries(
    projections: Sequence[tuple[int, Projection]], phases: re.Pattern[str] = PHASES
) -> list[Summary]:
    """One summary per process of a recording: (its index in the recording, its projection)."""
    found = []
    for index, projection in projections:
        process = projection.capture.processes[0]
        found.append(
            replace(
                summarise(projection, phases),
                num_processes=len(projections),
                process=index,
                pid=process.pid,
                rank=process.rank,
                label=process_label(process, index),
            )
        )
    return found


def summarise(projection: Projection, phases: re.Pattern[str] = PHASES) -> Summary:
    """The figures of one projected capture, in time linear in its rows (and the paths shown)."""
    capture = projection.capture
    frame, steps = _step_of_operations(projection)
    measured = frame >= 0
    kernels = measured & capture.kernels
    num_steps = max(len(steps), 1)
    dur_ns = capture.ops.end_ns - capture.ops.start_ns
    outside = ~measured
    by_name = _shares(capture, capture.ops.name_id, kernels, num_steps)
    return Summary(
        source=str(capture.source),
        collector=capture.collector,
        version=capture.version,
        schema=capture.schema,
        attribution=projection.attribution,
        steps=tuple(capture.name(int(i)) for i in capture.ranges.name_id[steps]),
        phases=phases_of(projection, frame, steps),
        classes=_by_class(by_name),
        top=tuple(by_name[:TOP]),
        origins=_origins(projection, kernels, num_steps),
        matmul_share=_matmul_share(by_name),
        gpus=_gpus(capture, projection.owners(projection.warmups) >= 0),
        replayed=_replayed(projection, kernels, num_steps),
        replay_rules=_replay_rules(projection),
        rules=_rules(projection),
        left_out=(int(outside.sum()), int(dur_ns[outside].sum()) / 1e6),
        problems=(*capture.problems, *projection.problems),
        lacks=capture.lacks,
        num_processes=len(capture.processes),
        part=projection.part.text if projection.part else "",
        offers=offers(projection, phases),
        warmup_left_out=0 if len(steps) else int(outside.sum()),
    )


def _step_of_operations(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """The measured step (n,) of each operation, or -1, and the rows of the steps.

    Without steps every operation is in step 0, except those of warm-up.
    """
    steps = projection.steps
    if len(steps) == 0:
        warmup = projection.owners(projection.warmups) >= 0
        whole = warmup.all()  # a warm-up by itself is what was asked for
        return np.where(warmup & ~whole, -1, 0), steps
    return projection.owners(steps), steps


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


def _matmul_share(by_name: Sequence[Share]) -> float | None:
    """None where no kernel, or no kernel's name, was recorded: nobody knows which multiply."""
    if not any(one.name for one in by_name):
        return None
    return sum(one.share for one in by_name if is_matmul(one.name))


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


def _replayed(projection: Projection, kernels: np.ndarray, num_steps: int) -> tuple[Share, ...]:
    """Kernels of graph replays by their operator at capture, "" for none."""
    origins = projection.origins
    if origins is None or not (origins.op > 0).any():
        return ()
    named = replace(projection.capture, strings=origins.op_names)
    return tuple(_shares(named, origins.op, kernels & origins.inside, num_steps))


def _replay_rules(projection: Projection) -> dict[str, tuple[int, float]]:
    """Operations of graph replays and ms, by how range or operator at capture were found."""
    origins, ops = projection.origins, projection.capture.ops
    if origins is None:
        return {}
    found = {}
    for index, rule in enumerate(GRAPH_RULES):
        mine = origins.inside & (origins.rule == index)
        if mine.any():
            found[rule] = (int(mine.sum()), int((ops.end_ns - ops.start_ns)[mine].sum()) / 1e6)
    return found


def _gpus(capture: Capture, warmup: np.ndarray) -> tuple[Gpu, ...]:
    """Each GPU from its first to its last row after any warm-up: busy while any row runs, whoever launched
    it, and whether its call was recorded or not. warmup (n,): rows of warm-up."""
    names = {device.device: device.name for device in capture.devices}
    gpus = []
    for device in np.unique(capture.ops.device).tolist():
        on_gpu = capture.ops.device == device
        counted = capture.ops.where(on_gpu & ~warmup if (on_gpu & ~warmup).any() else on_gpu)
        rows = capture.ops.where(on_gpu)
        window_ns = int(counted.start_ns.min()), int(counted.end_ns.max())
        spans = np.clip(np.stack([rows.start_ns, rows.end_ns], axis=1), *window_ns)
        busy = intervals.union(spans[spans[:, 0] < spans[:, 1]])
        gaps = busy[1:, 0] - busy[:-1, 1]
        busy_ms, idle_ms = intervals.total(busy) / 1e6, int(gaps.sum()) / 1e6
        gpus.append(Gpu(device, names.get(device, "GPU"), busy_ms, idle_ms, int(gaps.max(initial=0)) / 1e6))
    return tuple(gpus)


def _rules(projection: Projection) -> dict[str, tuple[int, float]]:
    table = projection.coverage
    return {name: (int(table.num_ops[i]), int(table.op_ns[i]) / 1e6) for i, name in enumerate(RULES)}
