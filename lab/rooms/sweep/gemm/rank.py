"""Everything that the pipeline takes from one trace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from sys import intern
from typing import NamedTuple

import numpy as np

from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.load import load_torch_trace
from lab.recordings.names import gemm_library
from lab.recordings.processes import rank_captures
from lab.recordings.ranks import RankWork, work_of
from lab.recordings.tables import KERNEL, Table
from lab.rooms.sweep.gemm import report_name
from lab.rooms.sweep.gemm.sheets.launches import Launches, launches, of_op
from lab.rooms.sweep.gemm.sheets.workbook import coll_analysis, gemm_sheet, perf_sheets
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.layout import TraceFile
from lab.rooms.sweep.rank import RankFigures, figures_of
from lab.rooms.sweep.tables import FREE, FULL, NO_LAUNCH, PARTIAL
from lab.stats import robust
from lab.stats.columns import objects
from lab.stats.intervals import load, overlap, spans

FULL_SHARE = 0.9
UNFINISHED_SHARE = 0.9
FOUND_BY_KERNEL = ("GEMM", "triton", "other", "")


class RankJob(NamedTuple):
    """One trace to read, and its setting."""

    trace: TraceFile
    setting: Key


@dataclass(frozen=True)
class RankTables:
    """What one trace yields; all but figures are empty for a broken trace.

    gemm has one row per executed GEMM, groups one per shape: the GEMM sheet and, in columns _*, its key.
    sheets holds those that reports over ranks need, work what the account of the ranks is made from.
    """

    figures: RankFigures
    gemm: Table | None = None
    groups: Table | None = None
    base_ns: int = 0
    num_devices: int = 0
    sheets: dict[str, Table] = field(default_factory=dict)
    file: Path | None = None
    work: RankWork | None = None


def read_rank_tables(
    job: RankJob, *, workbooks: Path | None = None, salvage: bool = False, gpu_only: bool = False
) -> list[RankTables]:
    """Everything of each rank in one file, of one in most; raises LabError if it cannot be read.

    workbooks: where to write the workbook of each rank, if anywhere; gpu_only: of those that recorded a GPU.
    """
    traces = rank_captures(load_torch_trace(job.trace.path, salvage=salvage))
    if len(traces) > 1:  # the path's rank is that of a merged file as a whole
        job = job._replace(trace=replace(job.trace, rank=None))
    return [
        _tables_of(job, trace, None if gpu_only and views.device_of(trace) == "cpu" else workbooks)
        for trace in traces
    ]


def _tables_of(job: RankJob, trace: Capture, workbooks: Path | None) -> RankTables:
    figures = figures_of(job.trace, trace)
    launched = launches(trace)
    collectives = views.collective_instances(trace)
    gemm = gemm_table(launched, collectives)
    groups = gemm_sheet(launched, gemm)
    sheets = perf_sheets(launched, groups, coll_analysis(collectives, figures.rank))
    file = None
    if workbooks:
        from lab.report.excel import write_workbook

        ending = f"rank{max(figures.rank, 0)}"
        file = write_workbook(sheets, workbooks / report_name("individual", job.setting, ending))
    return RankTables(
        figures=figures,
        gemm=gemm,
        groups=groups,
        base_ns=trace.meta.base_ns,
        num_devices=len(trace.meta.devices),
        sheets={name: sheets[name] for name in ("gpu_timeline", "ops_summary", "coll_analysis")},
        file=file,
        work=work_of(trace, figures.rank),
    )


def gemm_table(launched: Launches, collectives: Table) -> Table:
    """One row per executed GEMM, in order of time: the columns of views.gemm_instances, and ours.

    end_ns ends the op's last kernel; [ts_ns, end_ns) is its window on the device. comm_ns and
    comm_share say how much of the window a collective of the same rank covers, overlap is free (nothing),
    full (90 % and more) or partial; other_ns is the time of other computing kernels inside the window. cold
    marks the first recorded step, unfinished a last one with fewer GEMMs. GEMM kernels without a GEMM op
    (compiled ones, and those launched before the window) are found by their name, with sizes -1 and the
    op's arguments in dims.
    """
    trace = launched.trace
    instances = views.gemm_instances(trace)
    end_ns, own_ns = _windows(launched, instances)
    # The arguments' sizes as written, where they could not be read as M, N, K.
    dims = np.where(instances.M < 0, trace.text(of_op(trace, "dims_id", instances.op_row)), "")
    instances = instances.with_columns(end_ns=end_ns, own_ns=own_ns, dims=dims)
    table = _concat(instances, _by_kernel(launched, instances))
    window = np.stack([table.ts_ns, table.end_ns], axis=1)
    comm_ns = overlap(window, spans(collectives.ts_ns, collectives.dur_ns))
    share = comm_ns / np.maximum(table.end_ns - table.ts_ns, 1)
    computing = (trace.ops.kind == KERNEL) & (views.classify(trace) == views.COMP)
    kernels = trace.ops.where(computing)
    other_ns = load(window, spans(kernels.start_ns, kernels.dur_ns)) - table.own_ns if len(kernels) else 0
    classes = np.where(comm_ns == 0, FREE, np.where(share >= FULL_SHARE, FULL, PARTIAL)).astype(object)
    cold, unfinished = _odd_steps(table.step)
    return table.with_columns(
        comm_ns=comm_ns,
        comm_share=share,
        other_ns=np.zeros(len(table), dtype=np.int64) + np.maximum(other_ns, 0),
        overlap=classes,
        cold=cold,
        unfinished=unfinished,
        family=_texts([gemm_library(name.split(" ; ")[0]) for name in table.kernels.tolist()]),
        kernels=_texts(table.kernels.tolist()),
        uid=of_op(trace, "external_id", table.op_row),
    )


def _windows(launched: Launches, gemm: Table) -> tuple[np.ndarray, np.ndarray]:
    """Where each GEMM's last kernel ends (n,), and the sum of its kernels' time (n,)."""
    trace = launched.trace
    if views.device_of(trace) == "cpu":  # the op stands in for its kernels
        return gemm.ts_ns + gemm.dur_ns, gemm.dur_ns
    rows = np.flatnonzero((launched.launcher >= 0) & (trace.ops.kind == KERNEL))
    end_ns = np.zeros(len(launched.launchers), dtype=np.int64)
    own_ns = np.zeros(len(launched.launchers), dtype=np.int64)
    kernels = trace.ops.take(rows)
    np.maximum.at(end_ns, launched.launcher[rows], kernels.end_ns)
    np.add.at(own_ns, launched.launcher[rows], kernels.dur_ns)
    position = np.searchsorted(launched.launchers, gemm.op_row)
    return end_ns[position], own_ns[position]


def _by_kernel(launched: Launches, instances: Table) -> Table:
    """GEMM kernels that no GEMM op launched, one row per kernel, with the columns of `known`."""
    trace = launched.trace
    is_gemm = np.zeros(len(trace.strings) + 1, dtype=bool)
    for name_id in set(trace.ops.name_id.tolist()):
        is_gemm[name_id] = name_id >= 0 and bool(gemm_library(trace.strings[name_id]))
    is_loose = np.isin(launched.kernel_category.astype(str), FOUND_BY_KERNEL)
    rows = np.flatnonzero(
        (trace.ops.kind == KERNEL)
        & is_gemm[trace.ops.name_id]
        & is_loose
        & ~np.isin(launched.link, instances.op_row)
    )
    kernels, link = trace.ops.take(rows), launched.link[rows]
    n = len(rows)
    unknown = np.full(n, -1, dtype=np.int64)
    columns: dict[str, np.ndarray] = dict.fromkeys(("M", "N", "K", "B"), unknown)
    columns |= dict.fromkeys(("dtype", "strides", "transpose"), _texts([""] * n))
    columns |= {
        "op": np.where(link >= 0, trace.text(of_op(trace, "name_id", link)), NO_LAUNCH),
        "dims": trace.text(of_op(trace, "dims_id", link)),
        "bias": np.zeros(n, dtype=bool),
        "ts_ns": kernels.start_ns,
        "dur_ns": kernels.dur_ns,
        "end_ns": kernels.end_ns,
        "own_ns": kernels.dur_ns,
        "rank": np.full(n, -1 if trace.meta.rank is None else trace.meta.rank),
        "step": views.kernel_steps(trace)[rows],
        "correlation": kernels.corr,
        "kernels": trace.text(kernels.name_id),
        "op_row": link,
        "tid": of_op(trace, "tid", link),
    }
    return Table({name: columns[name] for name in instances})


def _odd_steps(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Masks (n,): in the first of several steps; in a last step with fewer than 90 % of the usual GEMMs."""
    numbers, count = np.unique(step[step >= 0], return_counts=True)
    if len(numbers) < 2:
        return np.zeros(len(step), dtype=bool), np.zeros(len(step), dtype=bool)
    is_short = count[-1] < UNFINISHED_SHARE * robust.median(count[:-1])
    return step == numbers[0], (step == numbers[-1]) & is_short


def _concat(top: Table, second: Table) -> Table:
    joined = Table({name: np.concatenate([getattr(top, name), getattr(second, name)]) for name in top})
    return joined.take(np.argsort(joined.ts_ns, kind="stable"))


def _texts(values: list[str]) -> np.ndarray:
    """An object array (n,) in which equal texts are one object, so that it is small between processes."""
    return objects([*map(intern, values)])
