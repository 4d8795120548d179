"""What one trace yields: time, collectives and GEMMs of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import BadDataError, LabError
from lab.perfmodel.products import product_flops
from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import bound, busy_and_idle
from lab.recordings.lacks import Lack, verdict_of
from lab.recordings.load import load_torch_trace
from lab.recordings.pairing.kinds import kind_of
from lab.rooms.sweep.alike import about
from lab.rooms.sweep.layout import TraceFile
from lab.rooms.sweep.tables import GEMM_KEY
from lab.stats import robust
from lab.stats.columns import distinct, grouped_rows

UNKNOWN_RANK = -1


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


def read_rank(file: TraceFile) -> RankFigures:
    """Figures of one trace; raises LabError if it cannot be read."""
    return figures_of(file, load_torch_trace(file.path))


def figures_of(file: TraceFile, trace: Capture) -> RankFigures:
    """Figures of a trace that has been read. Raises BadDataError if it holds no events: that is no rank."""
    if not len(trace.ops) and not len(trace.operators):
        fix = "record this rank again, or leave its file out"
        raise BadDataError("the trace holds no events: it is no readable rank", location=file.path, fix=fix)
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
    names = ["collective", "in_nelems", "dtype", "msg_bytes", "grid_x", "block_x"]
    first_rows, group = grouped_rows([getattr(instances, name) for name in names])
    count = np.bincount(group, minlength=len(first_rows))
    largest = np.full(len(first_rows), np.iinfo(np.int64).min)
    np.maximum.at(largest, group, instances.group_size)
    columns = {name: getattr(instances, name)[first_rows].tolist() for name in names}
    rows = []
    for index, kernel in enumerate(instances.kernel[first_rows].tolist()):
        collective = columns["collective"][index]
        rows.append(
            {
                "collective": collective or "(no metadata)",
                "in_nelems": columns["in_nelems"][index],
                "dtype": columns["dtype"][index],
                "msg_bytes": columns["msg_bytes"][index],
                "effective_channels": columns["grid_x"][index],
                "effective_threads": columns["block_x"][index],
                "count": int(count[index]),
                "kernel": kernel,
                "group_size": int(largest[index]),
                "kind": kind_of(collective, kernel),
            }
        )
    return rows


def _gemm_rows(trace: Capture) -> list[dict[str, Any]]:
    instances = views.gemm_instances(trace)
    names = [*GEMM_KEY, "strides"]
    first_rows, group = grouped_rows([getattr(instances, name) for name in names])
    keys = zip(*(getattr(instances, name)[first_rows].tolist() for name in names), strict=True)
    dur_us = np.split(
        instances.dur_ns[np.argsort(group, kind="stable")] / 1000,
        np.cumsum(np.bincount(group, minlength=len(first_rows)))[:-1],
    )
    rows = []
    for key, mine_us in zip(keys, dur_us, strict=False):
        shape = dict(zip(names, key, strict=True))
        rows.append({**shape, **_spread(mine_us), "tflops_median": _tflops(shape, robust.median(mine_us))})
    return rows


def _spread(dur_us: np.ndarray) -> dict[str, float]:
    return {
        "n": len(dur_us),
        "mean_us": float(dur_us.mean()),
        "median_us": robust.median(dur_us),
        "mad_us": robust.mad(dur_us),
        "cv": robust.cv(dur_us),
        "min_us": float(dur_us.min()),
        "p95_us": robust.percentile(dur_us, 95),
        "max_us": float(dur_us.max()),
        "sum_us": float(dur_us.sum()),
    }


def _tflops(shape: Mapping[str, Any], dur_us: float) -> float:
    """2 B M N K floating point operations, and B M N more for a bias; NaN where a size is unknown."""
    b, m, n, k = (shape[name] for name in ("B", "M", "N", "K"))
    if min(b, m, n, k) < 0 or dur_us <= 0:
        return float("nan")
    return float(product_flops(b, m, n, k, bool(shape["bias"])) / dur_us / 1e6)
