"""Everything that the pipeline takes from one trace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lab.recordings import views
from lab.recordings.capture import Capture, Meta
from lab.recordings.load import load_torch_trace
from lab.recordings.processes import rank_captures
from lab.recordings.ranks import RankWork, work_of
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.places import report_name
from lab.rooms.sweep.gemm.reading.instances import gemm_table, with_columns
from lab.rooms.sweep.gemm.sheets.collectives import coll_analysis
from lab.rooms.sweep.gemm.sheets.gemms import gemm_sheet
from lab.rooms.sweep.gemm.sheets.launches import launches
from lab.rooms.sweep.gemm.sheets.workbook import perf_sheets
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.layout import TraceFile
from lab.rooms.sweep.rank import RankFigures, figures_of


@dataclass(frozen=True)
class RankJob:
    """One trace to read: number and setting of its configuration, and the folder for its workbook, if any."""

    trace: TraceFile
    config: int
    setting: Key
    workbooks: Path | None = None
    salvage: bool = False

    @property
    def path(self) -> Path:
        return self.trace.path


@dataclass(frozen=True)
class RankTables:
    """What one trace yields; all but figures are empty for a broken trace.

    gemm has one row per executed GEMM, groups one per shape: the GEMM sheet and, in columns _*, its key.
    sheets holds those that reports over ranks need, work what the account of the ranks is made from.
    """

    figures: RankFigures
    gemm: Table | None = None
    groups: Table | None = None
    collectives: Table | None = None
    base_ns: int = 0
    num_devices: int = 0
    sheets: dict[str, Table] = field(default_factory=dict)
    file: Path | None = None
    work: RankWork | None = None
    meta: Meta = field(default_factory=Meta)


def read_rank_tables(job: RankJob) -> list[RankTables]:
    """Everything of each rank in one file, of one in most; raises LabError if it cannot be read."""
    traces = rank_captures(load_torch_trace(job.path, salvage=job.salvage))
    if len(traces) > 1:  # the path's rank is that of a merged file as a whole
        job = replace(job, trace=replace(job.trace, rank=None))
    return [_tables_of(job, trace) for trace in traces]


def _tables_of(job: RankJob, trace: Capture) -> RankTables:
    figures = figures_of(job.trace, trace)
    launched = launches(trace)
    collectives = views.collective_instances(trace)
    gemm = gemm_table(launched, collectives)
    groups = gemm_sheet(launched, gemm)
    sheets = perf_sheets(launched, groups, coll_analysis(collectives, figures.rank))
    file = None
    if job.workbooks:
        from lab.report.excel import write_workbook

        ending = f"rank{max(figures.rank, 0)}"
        file = write_workbook(sheets, job.workbooks / report_name("individual", job.setting, ending))
    return RankTables(
        figures=figures,
        gemm=gemm,
        groups=groups,
        collectives=with_columns(collectives, rank=np.full(len(collectives), figures.rank)),
        base_ns=trace.meta.base_ns,
        num_devices=len(trace.meta.devices),
        sheets={name: sheets[name] for name in ("gpu_timeline", "ops_summary", "coll_analysis")},
        file=file,
        work=work_of(trace, figures.rank),
        meta=trace.meta,
    )
