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
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lab.perfmodel.classes import CLASSES
from lab.recordings.capture import Capture
from lab.recordings.graphs import RULES as GRAPH_RULES
from lab.recordings.integrity.words import as_json, bound, idle_bound
from lab.recordings.lacks import Lack, verdict_of
from lab.recordings.processes import process_label
from lab.recordings.projection import PHASES, RULES, Offer, Projection, offers
from lab.recordings.views import row_classes
from lab.rooms.nsys.captures.hardware import (
    UNKNOWN_GPU,
    gpu_metrics,
    has_unknown_gpu,
    unified_memory,
)
from lab.rooms.nsys.captures.phases import Phase, phases_of, products
from lab.stats import intervals

TOP = 12
NO_KERNELS = "no kernels were recorded: kernel times, shares and idle time cannot be known"


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
    """One GPU: busy and idle time between its first and last operation, warm-up before them left out.

    warmup: how many operations that was.
    """

    device: int
    name: str
    busy_ms: float
    idle_ms: float
    longest_gap_ms: float
    warmup: int


@dataclass(frozen=True)
class Summary:
    """The figures of a capture; rules: operations and ms by rule of attribution, over the whole capture;
    replayed: kernels of graph replays by their operator at capture, replay_rules: how it was found;
    unknown: what was not recorded, and cannot be known therefore."""

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
    lacks: tuple[Lack, ...]
    num_processes: int
    process: int
    pid: int | None
    rank: int | None
    label: str
    part: str
    offers: tuple[Offer, ...]
    warmup_left_out: int
    gpu_metrics: dict[str, Any] | None
    unified_memory: dict[str, Any] | None
    unknown: tuple[str, ...]

    @property
    def has_bare_steps(self) -> bool:
        """Whether steps have no GPU operation, though some may be theirs: rows or their calls are missing."""
        has_doubt = self.rules["unattributed"][0] or verdict_of(self.lacks, "gpu") != "complete"
        return bool(self.steps and self.left_out[0] and has_doubt) and not self.classes

    def as_json(self) -> dict[str, Any]:
        """The figures; `bounds` says which of them are at least or at most what they say."""
        figures = {key: value for key, value in asdict(self).items() if key not in ("lacks", "num_processes")}
        times = dict.fromkeys(("kernels", "kernel_ms", "busy_ms"), bound(self.lacks, "gpu"))
        bounds = times | {"idle_ms": idle_bound(self.lacks).strip(), "phases": bound(self.lacks)}
        return figures | {"integrity": as_json(self.lacks), "bounds": bounds}


def summaries(
    projections: Sequence[tuple[int, Projection]], phases: re.Pattern[str] = PHASES
) -> list[Summary]:
    """One summary per process of a recording: (its index in the recording, its projection)."""
    return [summarise(projection, phases, index, len(projections)) for index, projection in projections]


def summarise(
    projection: Projection, phases: re.Pattern[str] = PHASES, index: int = 0, num_processes: int = 1
) -> Summary:
    """The figures of one process, the index-th of several, in time linear in its rows and paths."""
    capture, coverage = projection.capture, projection.coverage
    process = capture.processes[0]
    # Of backward's operations: the innermost range of the program around their forward operator.
    origin = projection.ops.origin
    step_of_operation, steps = _step_of_operations(projection)
    outside = step_of_operation < 0
    kernels = ~outside & capture.kernels
    num_steps = max(len(steps), 1)
    by_name = _shares(capture, capture.strings, capture.ops.name_id, kernels, num_steps)
    costs = phases_of(projection, step_of_operation, steps)
    rows_by_path = {path: rows for path, (_, rows) in costs.items()}
    names = capture.text(capture.ops.name_id) if capture.device_events else np.empty(0)
    top = {share.name: kernels & (names == share.name) for share in by_name[:TOP] if len(names)}
    return Summary(
        source=str(capture.source),
        collector=capture.collector,
        version=capture.version,
        schema=capture.schema,
        attribution=projection.attribution,
        steps=tuple(capture.name(int(name)) for name in capture.ranges.name_id[steps]),
        phases=tuple(phase for phase, _ in costs.values()),
        classes=_shares(capture, CLASSES, row_classes(capture), kernels, num_steps),
        top=by_name[:TOP],
        origins=_shares(
            capture, capture.strings, projection.tree.name_id[origin], kernels & (origin >= 0), num_steps
        ),
        matmul_share=_matmul_share(capture, kernels),
        gpus=_gpus(capture, projection.owners(projection.warmups) >= 0),
        replayed=_replayed(projection, kernels, num_steps),
        replay_rules=_replay_rules(projection),
        rules={
            rule: (int(count), int(ns) / 1e6)
            for rule, count, ns in zip(RULES, coverage.num_ops, coverage.op_ns, strict=True)
        },
        left_out=(int(outside.sum()), int(capture.ops.dur_ns[outside].sum()) / 1e6),
        problems=(*capture.problems, *projection.problems),
        lacks=capture.lacks,
        num_processes=num_processes,
        process=index,
        pid=process.pid,
        rank=process.rank,
        label=process_label(process, index),
        part=projection.part.text if projection.part else "",
        offers=offers(projection, phases),
        warmup_left_out=0 if len(steps) else int(outside.sum()),
        gpu_metrics=gpu_metrics(projection, rows_by_path, step_of_operation, top),
        unified_memory=unified_memory(projection, rows_by_path, num_steps),
        unknown=tuple(unknowns(capture)),
    )


def unknowns(capture: Capture) -> list[str]:
    """Sentences about the tables that are not there, and what cannot be known therefore."""
    names_known = not len(capture.ops) or (capture.ops.name_id >= 0).any()
    is_known = {
        NO_KERNELS: capture.kernels.any(),
        "no ranges and no operators were recorded: phases cannot be known": len(capture.ranges),
        "no API calls were recorded: who launched what cannot be known": len(capture.api),
        UNKNOWN_GPU: not has_unknown_gpu(capture),
        "no names were recorded (no StringIds): classes and kernels cannot be told apart": names_known,
    }
    return [sentence for sentence, is_there in is_known.items() if not is_there]


def _step_of_operations(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """The measured step (n,) of each operation, or -1, and the rows of the steps.

    Without steps every operation is in step 0, except those of warm-up.
    """
    steps = projection.steps
    if len(steps) == 0:
        warmup = projection.owners(projection.warmups) >= 0
        is_all_warmup = warmup.all()  # a warm-up by itself is what was asked for
        return np.where(warmup & ~is_all_warmup, -1, 0), steps
    return projection.owners(steps), steps


def _shares(
    capture: Capture, names: Sequence[str], key: np.ndarray, mask: np.ndarray, num_steps: int
) -> tuple[Share, ...]:
    """Kernels in `mask` by the name at `key` ("" for -1), costliest first."""
    used, group = np.unique(key[mask], return_inverse=True)
    total_ns = np.bincount(group, capture.ops.dur_ns[mask], minlength=len(used))
    counts = np.bincount(group, minlength=len(used))
    share = total_ns / (total_ns.sum() or 1)
    columns = zip(used.tolist(), counts.tolist(), (total_ns / 1e6).tolist(), share.tolist(), strict=True)
    texts = [*names, ""]
    shares = [Share(texts[name], n, ms, part, n / num_steps) for name, n, ms, part in columns]
    return tuple(sorted(shares, key=lambda share: (-share.kernel_ms, share.name)))


def _matmul_share(capture: Capture, kernels: np.ndarray) -> float | None:
    """None where no kernel, or no kernel's name, was recorded: which multiply is unknown."""
    if not (kernels & capture.by_text(bool, capture.ops.name_id)).any():
        return None
    dur_ns = capture.ops.dur_ns
    return float(dur_ns[kernels & products(capture)].sum() / (dur_ns[kernels].sum() or 1))


def _replayed(projection: Projection, kernels: np.ndarray, num_steps: int) -> tuple[Share, ...]:
    """Kernels of graph replays by their operator at capture, "" for none."""
    origins = projection.origins
    if origins is None or not (origins.op > 0).any():
        return ()
    return _shares(projection.capture, origins.op_names, origins.op, kernels & origins.inside, num_steps)


def _replay_rules(projection: Projection) -> dict[str, tuple[int, float]]:
    """Operations of graph replays and ms, by how range or operator at capture were found."""
    origins, ops = projection.origins, projection.capture.ops
    if origins is None:
        return {}
    masks = {rule: origins.inside & (origins.rule == index) for index, rule in enumerate(GRAPH_RULES)}
    return {
        rule: (int(mask.sum()), int(ops.dur_ns[mask].sum()) / 1e6)
        for rule, mask in masks.items()
        if mask.any()
    }


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
        longest_ms, left_out = int(gaps.max(initial=0)) / 1e6, len(rows) - len(counted)
        gpus.append(Gpu(device, names.get(device, "GPU"), busy_ms, idle_ms, longest_ms, left_out))
    return tuple(gpus)
