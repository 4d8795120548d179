"""A sweep's traces -> every GEMM and every collective as rows, each trace read once, in parallel.

What cannot be read is a row with its reason; the rest is analysed all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.errors import LabError, MissingError
from lab.recordings import views
from lab.recordings.cache import load_trace
from lab.recordings.pool import map_traces
from lab.recordings.tables import KERNEL, Table, Trace
from lab.rooms.sweep.analyze import RankFigures, SweepTables, figures_of, put_together
from lab.rooms.sweep.gemm import families
from lab.rooms.sweep.gemm.sheets import Launches, coll_analysis, gemm_sheet, launches, perf_sheets
from lab.rooms.sweep.layout import ConfigDir, TraceFile, find_configs
from lab.stats.intervals import load, overlap, spans

Progress = Callable[[int, int, Path], None]

SETTING = ["threads", "channel", "repeat"]
# What makes two GEMMs the same: never the kernel's name, which a library chooses anew for a tile or a clock.
GROUP = ["op", "B", "M", "N", "K", "bias", "strides", "dtype", "dims"]
FREE, PARTIAL, FULL = "free", "partial", "full"
FULL_SHARE = 0.9
UNFINISHED_SHARE = 0.9
NO_LAUNCH = "(launched before the window)"
FOUND_BY_KERNEL = ("GEMM", "triton", "other", "")
INSTANCES = [
    *SETTING,
    "rank",
    *GROUP,
    "transpose",
    "step",
    "correlation",
    "uid",
    "ts_ns",
    "dur_ns",
    "end_ns",
    "overlap",
    "comm_ns",
    "comm_share",
    "other_ns",
    "cold",
    "unfinished",
    "family",
    "kernels",
    "file",
]
_TEXTS = ("op", "strides", "dtype", "dims", "transpose", "overlap", "family", "kernels", "file")


@dataclass(frozen=True)
class Report:
    """What one step of the pipeline wrote, and what it could not.

    lacking: what was asked for, or was there, and is not in the result (an exit code of 1); problems: what
    was odd in the input; findings: what the figures say, the most important first.
    """

    files: list[Path] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RankJob:
    """One trace to read, with the workbook to write from it (None: no workbook)."""

    trace: TraceFile
    config: int
    cache: Path | None = None
    workbook: Callable[[int], Path] | None = None
    salvage: bool = False

    @property
    def path(self) -> Path:
        return self.trace.path


@dataclass(frozen=True)
class RankTables:
    """What one trace yields. gemm has a row per executed GEMM, groups one per shape (the GEMM sheet and, in columns _*, its key).

    sheets holds those that reports over ranks need. All but figures are empty where the trace is broken.
    """

    figures: RankFigures
    gemm: Table | None = None
    groups: pd.DataFrame = field(default_factory=pd.DataFrame)
    collectives: Table | None = None
    base_ns: int = 0
    num_devices: int = 0
    sheets: dict[str, pd.DataFrame] = field(default_factory=dict)
    file: Path | None = None


@dataclass(frozen=True)
class SweepData:
    """A sweep in memory. gemm has the columns INSTANCES; groups the GEMM sheets below SETTING and rank.

    ranks holds for (threads, channel, repeat) what each readable rank gave; tables are those of the sweep's
    page; lacking says what is missing. memo keeps what several steps of the pipeline compute from it.
    """

    folder: Path
    tables: SweepTables
    gemm: pd.DataFrame
    groups: pd.DataFrame
    ranks: dict[tuple[int, int, int], dict[int, RankTables]]
    files: list[Path]
    lacking: list[str]
    problems: list[str]
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


def read_sweep(
    sweep: Path,
    *,
    cache: Path | None,
    workers: int = 2,
    workbooks: Path | None = None,
    salvage: bool = False,
    expected: Sequence[Mapping[str, Any]] = (),
    progress: Progress | None = None,
) -> SweepData:
    """Read every trace below `sweep` (a sweep, a folder of ranks, or one trace) once.

    workbooks: the folder below which each rank's Excel report is written on the way. expected: rows of the
    run's manifest, as in `analyze`. progress gets (done, total, path). Raises MissingError without traces.
    """
    configs = _configs(sweep, expected)
    jobs = [
        RankJob(trace, number, cache, _namer(config, workbooks), salvage)
        for number, config in enumerate(configs)
        for trace in config.traces
    ]
    tell = None if progress is None else lambda done, total, job: progress(done, total, job.path)
    results = map_traces(read_rank_tables, jobs, workers=workers, progress=tell)
    read: list[list[RankTables]] = [[] for _ in configs]
    for job, result in zip(jobs, results, strict=True):
        read[job.config].append(_failed(job, result) if isinstance(result, LabError) else result)
    return _together(sweep, configs, read, expected)


def read_rank_tables(job: RankJob) -> RankTables:
    """Everything of one trace; raises LabError if it cannot be read."""
    trace = load_trace(job.path, cache=job.cache, salvage=job.salvage)
    figures = figures_of(job.trace, trace)
    found = launches(trace)
    collectives = views.collective_instances(trace)
    gemm = gemm_table(found, collectives)
    groups = gemm_sheet(found, gemm)
    sheets = perf_sheets(found, groups, coll_analysis(collectives, figures.rank))
    file = None
    if job.workbook:
        from lab.report.excel import write_workbook

        file = write_workbook(sheets, job.workbook(figures.rank))
    return RankTables(
        figures=figures,
        gemm=gemm,
        groups=groups,
        collectives=_with(collectives, rank=np.full(len(collectives), figures.rank)),
        base_ns=trace.meta.base_ns,
        num_devices=len(trace.meta.devices),
        sheets={name: sheets[name] for name in ("gpu_timeline", "ops_summary", "coll_analysis")},
        file=file,
    )


def gemm_table(found: Launches, collectives: Table) -> Table:
    """One row per executed GEMM, in order of time: the columns of views.gemm_instances, and ours.

    end_ns ends the op's last kernel; [ts_ns, end_ns) is its window on the device. comm_ns and comm_share say
    how much of the window a collective of the same rank covers, overlap is free (nothing), full (90 % and
    more) or partial; other_ns is the time of other computing kernels inside the window. cold marks the first
    recorded step, unfinished a last one with fewer GEMMs. GEMM kernels without a GEMM op (compiled ones, and
    those launched before the window) are told by their name, with sizes -1 and the op's arguments in dims.
    """
    trace = found.trace
    known = views.gemm_instances(trace)
    end_ns, own_ns = _windows(found, known)
    known = _with(known, end_ns=end_ns, own_ns=own_ns, dims=_unknown_dims(trace, known))
    table = _concat(known, _by_kernel(found, known))
    window = np.stack([table.ts_ns, table.end_ns], axis=1)
    comm_ns = overlap(window, spans(collectives.ts_ns, collectives.dur_ns))
    share = comm_ns / np.maximum(table.end_ns - table.ts_ns, 1)
    computing = (trace.kernels.kind == KERNEL) & (views.classify(trace) == views.COMP)
    kernels = trace.kernels.where(computing)
    other_ns = load(window, spans(kernels.ts_ns, kernels.dur_ns)) - table.own_ns if len(kernels) else 0
    classes = np.where(comm_ns == 0, FREE, np.where(share >= FULL_SHARE, FULL, PARTIAL)).astype(object)
    cold, unfinished = _odd_steps(table.step)
    return _with(
        table,
        comm_ns=comm_ns,
        comm_share=share,
        other_ns=np.zeros(len(table), dtype=np.int64) + np.maximum(other_ns, 0),
        overlap=classes,
        cold=cold,
        unfinished=unfinished,
        family=_texts([families.family(name.split(" ; ")[0]) for name in table.kernels.tolist()]),
        kernels=_texts(table.kernels.tolist()),
        uid=np.where(table.op_row >= 0, trace.ops.external_id[table.op_row], -1)
        if len(trace.ops)
        else table.op_row,
    )


def _windows(found: Launches, gemm: Table) -> tuple[np.ndarray, np.ndarray]:
    """Where each GEMM's last kernel ends (n,), and the sum of its kernels' time (n,)."""
    trace = found.trace
    if views.device_of(trace) == "cpu":
        return gemm.ts_ns + gemm.dur_ns, gemm.dur_ns
    rows = np.flatnonzero((found.launcher >= 0) & (trace.kernels.kind == KERNEL))
    end_ns = np.zeros(len(found.launchers), dtype=np.int64)
    own_ns = np.zeros(len(found.launchers), dtype=np.int64)
    kernels = trace.kernels.take(rows)
    np.maximum.at(end_ns, found.launcher[rows], kernels.ts_ns + kernels.dur_ns)
    np.add.at(own_ns, found.launcher[rows], kernels.dur_ns)
    at = np.searchsorted(found.launchers, gemm.op_row)
    return end_ns[at], own_ns[at]


def _by_kernel(found: Launches, known: Table) -> Table:
    """GEMM kernels that no GEMM op launched, one row a kernel, with the columns of `known`."""
    trace = found.trace
    is_gemm = np.zeros(len(trace.strings) + 1, dtype=bool)
    for name_id in set(trace.kernels.name_id.tolist()):
        is_gemm[name_id] = name_id >= 0 and bool(families.family(trace.strings[name_id]))
    other = np.isin(found.kernel_category.astype(str), FOUND_BY_KERNEL) if len(found.link) else found.link > 0
    rows = np.flatnonzero(
        (trace.kernels.kind == KERNEL)
        & is_gemm[trace.kernels.name_id]
        & other
        & ~np.isin(found.link, known.op_row)
    )
    kernels, link = trace.kernels.take(rows), found.link[rows]
    n, ops = len(rows), trace.ops.take(np.maximum(link, 0)) if len(trace.ops) else None
    names = trace.text(ops.name_id) if ops else _texts([""] * n)
    dims = trace.text(ops.dims_id) if ops else _texts([""] * n)
    unknown = np.full(n, -1, dtype=np.int64)
    columns: dict[str, np.ndarray] = dict.fromkeys(("M", "N", "K", "B"), unknown)
    columns |= dict.fromkeys(("dtype", "strides", "transpose"), _texts([""] * n))
    columns |= {
        "op": np.where(link >= 0, names, NO_LAUNCH),
        "dims": np.where(link >= 0, dims, ""),
        "bias": np.zeros(n, dtype=bool),
        "ts_ns": kernels.ts_ns,
        "dur_ns": kernels.dur_ns,
        "end_ns": kernels.ts_ns + kernels.dur_ns,
        "own_ns": kernels.dur_ns,
        "rank": np.full(n, -1 if trace.meta.rank is None else trace.meta.rank),
        "step": views.kernel_steps(trace)[rows],
        "correlation": kernels.correlation,
        "kernels": trace.text(kernels.name_id),
        "op_row": link,
        "tid": np.where(link >= 0, ops.tid, -1) if ops else unknown,
    }
    return Table({name: columns[name] for name in known})


def _unknown_dims(trace: Trace, gemm: Table) -> np.ndarray:
    """The arguments' sizes as written, where they could not be read as M, N, K; else ""."""
    if len(gemm) == 0:
        return np.empty(0, dtype=object)
    return np.where(gemm.M < 0, trace.text(trace.ops.dims_id[gemm.op_row]), "")


def _odd_steps(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Masks (n,): in the first of several steps; in a last step with fewer than 90 % of the usual GEMMs."""
    numbers, count = np.unique(step[step >= 0], return_counts=True)
    if len(numbers) < 2:
        return np.zeros(len(step), dtype=bool), np.zeros(len(step), dtype=bool)
    is_short = count[-1] < UNFINISHED_SHARE * np.median(count[:-1])
    return step == numbers[0], (step == numbers[-1]) & is_short


def _concat(first: Table, second: Table) -> Table:
    both = Table({name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in first})
    return both.take(np.argsort(both.ts_ns, kind="stable"))


def _with(table: Table, **columns: np.ndarray) -> Table:
    return Table({**{name: getattr(table, name) for name in table}, **columns})


def _texts(values: list[str]) -> np.ndarray:
    """An object array (n,) in which equal texts are one object: it crosses processes small."""
    one: dict[str, str] = {}
    column = np.empty(len(values), dtype=object)
    column[:] = [one.setdefault(value, value) for value in values]
    return column


def _configs(sweep: Path, expected: Sequence[Mapping[str, Any]]) -> list[ConfigDir]:
    if sweep.is_file():
        return [ConfigDir(sweep.parent, None, None, 1, (TraceFile(None, sweep, None),), (), ())]
    try:
        return find_configs(sweep)
    except MissingError:
        if expected and sweep.is_dir():
            return []
        raise


def setting_of(config: ConfigDir) -> tuple[int, int, int]:
    """(threads, channel, repeat), 0 for a setting that no folder name tells."""
    return config.threads or 0, config.channels or 0, config.repeat


def report_name(kind: str, setting: tuple[int, int, int], ending: str) -> Path:
    """Where a report of one configuration lies: {T}thread/{kind}_reports/..{C}ch..; unknown parts are left out."""
    threads, channel, repeat = setting
    start = {"individual": "perf", "collective": "collective"}[kind]
    parts = [start, f"{channel}ch" if channel else "", ending, f"repeat{repeat}" if repeat > 1 else ""]
    folder = Path(f"{threads}thread") if threads else Path()
    return folder / f"{kind}_reports" / f"{'_'.join(filter(None, parts))}.xlsx"


def _namer(config: ConfigDir, workbooks: Path | None) -> Callable[[int], Path] | None:
    return partial(_workbook_path, workbooks, setting_of(config)) if workbooks else None


def _workbook_path(folder: Path, setting: tuple[int, int, int], rank: int) -> Path:
    return folder / report_name("individual", setting, f"rank{max(rank, 0)}")


def _failed(job: RankJob, error: LabError) -> RankTables:
    rank = -1 if job.trace.rank is None else job.trace.rank
    where = f" ({error.where})" if error.where else ""
    return RankTables(RankFigures(job.path, rank, error=(f"{error.what}{where}", error.fix or "")))


def _together(
    sweep: Path,
    configs: Sequence[ConfigDir],
    read: Sequence[list[RankTables]],
    expected: Sequence[Mapping[str, Any]],
) -> SweepData:
    folder = sweep.parent if sweep.is_file() else sweep
    figures = [sorted((one.figures for one in ranks), key=lambda f: (f.rank, str(f.path))) for ranks in read]
    tables = put_together(folder, configs, figures, expected)
    by_setting: dict[tuple[int, int, int], dict[int, RankTables]] = {}
    for config, ranks in zip(configs, read, strict=True):
        good = [one for one in ranks if one.gemm is not None]
        by_setting[setting_of(config)] = {one.figures.rank: one for one in sorted(good, key=_by_rank)}
    return SweepData(
        folder=folder,
        tables=tables,
        gemm=_instances(folder, by_setting),
        groups=_groups(by_setting),
        ranks=by_setting,
        files=[one.file for ranks in read for one in ranks if one.file],
        lacking=_lacking(tables),
        problems=_problems(tables),
    )


def _by_rank(one: RankTables) -> tuple[int, str]:
    return one.figures.rank, str(one.figures.path)


def _instances(
    folder: Path, by_setting: Mapping[tuple[int, int, int], Mapping[int, RankTables]]
) -> pd.DataFrame:
    frames = []
    for setting, ranks in by_setting.items():
        for rank, one in ranks.items():
            table = one.gemm
            if table is None or not len(table):
                continue
            columns: dict[str, Any] = dict(zip(SETTING, setting, strict=True))
            file = one.figures.path
            columns["file"] = str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)
            columns["rank"] = rank
            columns |= {name: getattr(table, name) for name in INSTANCES if name not in columns}
            frames.append(pd.DataFrame({name: columns[name] for name in INSTANCES}))
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=INSTANCES)
    result: pd.DataFrame = frame.astype(dict.fromkeys(_TEXTS, "category"))
    return result


def _groups(by_setting: Mapping[tuple[int, int, int], Mapping[int, RankTables]]) -> pd.DataFrame:
    frames = []
    for setting, ranks in by_setting.items():
        for rank, one in ranks.items():
            if len(one.groups):
                key: dict[str, Any] = {**dict(zip(SETTING, setting, strict=True)), "rank": rank}
                frames.append(pd.DataFrame({**dict.fromkeys(key, 0), **one.groups}).assign(**key))
    result: pd.DataFrame = (
        pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*SETTING, "rank"])
    )
    return result


def _lacking(tables: SweepTables) -> list[str]:
    odd = tables.configs[tables.configs["status"] != "ok"]
    return [
        f"{_name(row)}: {row['reason']}"
        + (f" (missing ranks: {row['missing_ranks']})" if row["missing_ranks"] else "")
        for row in odd.to_dict("records")
    ]


def _problems(tables: SweepTables) -> list[str]:
    return [
        f"{_name(row)}{'' if row['rank'] < 0 else ' rank ' + str(row['rank'])}: {row['what']}"
        for row in tables.problems.to_dict("records")
    ]


def _name(row: Mapping[Any, Any]) -> str:
    repeat = f" repeat {row['repeat']}" if row["repeat"] > 1 else ""
    return f"{row['threads']} threads {row['channel']} channels{repeat}"
