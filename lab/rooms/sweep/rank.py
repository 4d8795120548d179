"""What one trace yields: time, collectives and GEMMs of one rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.words import printable
from lab.errors import BadDataError, LabError
from lab.perfmodel.products import product_flops
from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import bound, busy_and_idle
from lab.recordings.lacks import Lack, verdict_of
from lab.recordings.pairing.rows import kind_of
from lab.recordings.ranks.explained import ranks_in_words
from lab.rooms.sweep.layout import TraceFile
from lab.rooms.sweep.tables import GEMM_KEY
from lab.stats.columns import distinct, grouped_rows
from lab.stats.robust import grouped

UNKNOWN_RANK = -1
About = Mapping[str, str]


@dataclass(frozen=True)
class RankFigures:
    """What one trace yields, small enough to cross processes. error: why it is unreadable, and the fix."""

    path: Path
    rank: int
    world_size: int | None = None
    timeline: dict[str, Any] | None = None
    collectives: tuple[dict[str, Any], ...] = ()
    gemm: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    lacks: tuple[Lack, ...] = ()
    error: tuple[str, str] | None = None
    about: Mapping[str, str] = field(default_factory=dict)


def figures_of(file: TraceFile, trace: Capture) -> RankFigures:
    """Figures of a trace that has been read. Raises BadDataError if it has no events."""
    if not len(trace.ops) and not len(trace.operators):
        fix = "record this rank again, or leave its file out"
        raise BadDataError("the trace has no events: not a readable rank", location=file.path, fix=fix)
    named = UNKNOWN_RANK if file.rank is None else file.rank
    problems = list(trace.problems)
    rank = trace.meta.rank if trace.meta.rank is not None else named
    if named >= 0 and rank != named:
        problems.append(f"the folder says rank {named}, the trace says rank {rank}: {rank} is used")
    return RankFigures(
        path=file.path,
        rank=rank,
        world_size=trace.meta.world_size,
        timeline=_timeline_row(trace),
        collectives=tuple(_collective_rows(trace)),
        gemm=tuple(_gemm_rows(trace)),
        problems=tuple(problems),
        lacks=trace.lacks,
        about=about(trace),
    )


def unread(file: TraceFile, error: LabError) -> RankFigures:
    """A trace that could not be read: the rank that its path names, and the reason."""
    place_text = f" ({error.location})" if error.location else ""
    rank = UNKNOWN_RANK if file.rank is None else file.rank
    return RankFigures(file.path, rank, error=(f"{error.problem}{place_text}", error.fix or ""))


def _timeline_row(trace: Capture) -> dict[str, Any]:
    on_gpu = views.device_of(trace) == "gpu"
    steps = views.steps_at(trace, trace.operators.start_ns)
    return {
        **views.gpu_timeline(trace),
        "steps": len(distinct(steps[steps >= 0])),
        "device": "gpu" if on_gpu else "cpu",
        "kernels": len(trace.ops),
        "unlinked_kernels": int((views.link_ops(trace) < 0).sum()) if on_gpu else 0,
        "recording": verdict_of(trace.lacks),
        "bound": _bounds(trace.lacks),
    }


def _bounds(lacks: Sequence[Lack]) -> str:
    """How a row's times are to be read where GPU rows are missing, or contradict themselves."""
    if bound(lacks, "gpu"):
        return busy_and_idle(lacks)
    return "not known" if verdict_of(lacks, "gpu") == "unknown" else "exact"


def _collective_rows(trace: Capture) -> list[dict[str, Any]]:
    instances = views.collective_instances(trace)
    keys = ["collective", "in_nelems", "dtype", "msg_bytes", "grid_x", "block_x"]
    first_rows, group = grouped_rows([getattr(instances, name) for name in keys])
    named, kernels = instances.collective[first_rows].tolist(), instances.kernel[first_rows].tolist()
    columns = {
        "collective": [name or "(no metadata)" for name in named],
        "in_nelems": instances.in_nelems[first_rows],
        "dtype": instances.dtype[first_rows],
        "msg_bytes": instances.msg_bytes[first_rows],
        "effective_channels": instances.grid_x[first_rows],
        "effective_threads": instances.block_x[first_rows],
        "count": np.bincount(group, minlength=len(first_rows)),
        "kernel": kernels,
        "group_size": grouped(instances.group_size, group, len(first_rows))["max"].astype(np.int64),
        "kind": [kind_of(name, kernel) for name, kernel in zip(named, kernels, strict=True)],
    }
    return _rows(columns)


def _gemm_rows(trace: Capture) -> list[dict[str, Any]]:
    instances = views.gemm_instances(trace)
    keys = [*GEMM_KEY, "strides"]
    first_rows, group = grouped_rows([getattr(instances, name) for name in keys])
    shape = {name: getattr(instances, name)[first_rows] for name in keys}
    stats = grouped(instances.dur_ns / 1000, group, len(first_rows), (95,))
    figures = ("mean", "median", "mad", "min", "p95", "max", "sum")
    sizes = zip(*(shape[name].tolist() for name in ("B", "M", "N", "K", "bias", "dtype")), strict=True)
    times_us = stats["median"].tolist()
    return _rows(
        {
            **shape,
            "n": stats["count"],
            **{f"{name}_us": stats[name] for name in figures},
            "cv": stats["cv"],
            "tflops_median": [
                _tflops(b, m, n, k, bias, dtype, us)
                for (b, m, n, k, bias, dtype), us in zip(sizes, times_us, strict=True)
            ],
        }
    )


def _rows(columns: dict[str, Any]) -> list[dict[str, Any]]:
    values = [value.tolist() if isinstance(value, np.ndarray) else value for value in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def _tflops(b: int, m: int, n: int, k: int, bias: bool, dtype: str, dur_us: float) -> float:
    """The rate of a product; NaN where a size is unknown."""
    is_known = min(b, m, n, k) >= 0 and dur_us > 0
    return product_flops(b, m, n, k, bool(bias), dtype) / dur_us / 1e6 if is_known else float("nan")


def about(trace: Capture) -> dict[str, str]:
    """What a recording says about its rank's GPU and libraries; nothing for what it does not say."""
    meta = trace.meta
    used = distinct(trace.ops.device)
    names = {meta.devices[index] for index in used.tolist() if 0 <= index < len(meta.devices)}
    facts = {
        "GPU": " and ".join(sorted(names)),
        "torch": meta.torch_version or "",
        "NCCL or RCCL": meta.nccl_version or "",
        "CUDA": str(meta.cuda_version or ""),
        "HIP": str(meta.hip_version or ""),
    }
    return {name: printable(value)[:80] for name, value in facts.items() if value}


def differences(ranks: Mapping[int, About]) -> list[str]:
    """One sentence per fact in which ranks differ: the few against the many."""
    sentences = []
    for name in dict.fromkeys(name for rank in ranks.values() for name in rank):
        values = {rank: facts[name] for rank, facts in ranks.items() if name in facts}
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        usual = counts.most_common(1)[0][0]
        minorities = [
            f"{ranks_in_words([rank for rank in values if values[rank] == value], 'has', 'have')} {value}"
            for value in counts
            if value != usual
        ]
        sentences.append(f"ranks differ in their {name}: {', '.join(minorities)}, the others {usual}")
    return sentences
