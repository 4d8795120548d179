"""The pipeline as steps: where each one puts its files, one after another on traces that are read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.cache import load_trace
from lab.recordings.merge import Merged, merge_json
from lab.recordings.pairing import pair_collectives
from lab.recordings.pftrace import merge_pftrace
from lab.recordings.pool import map_traces
from lab.recordings.tables import Table, Trace
from lab.recordings.views import collective_instances
from lab.rooms.sweep.gemm.cause import cause
from lab.rooms.sweep.gemm.overlap import overlap
from lab.rooms.sweep.gemm.places import Places
from lab.rooms.sweep.gemm.plots import plots
from lab.rooms.sweep.gemm.tables import Report, SweepData, read_sweep
from lab.rooms.sweep.gemm.variance import timestamps, variance
from lab.rooms.sweep.gemm.workbooks import gemm_report
from lab.rooms.sweep.layout import ConfigDir, TraceFile, find_configs

SUFFIXES = {"json": ".json.gz", "pftrace": ".pftrace.gz"}

Progress = Callable[[int, int, Path], None]


def run_all(
    where: Places,
    data: SweepData,
    *,
    top_k: int = 5,
    workers: int = 2,
    salvage: bool = False,
    keep_merged: bool = False,
) -> dict[str, Report]:
    """Every step on a sweep that `read` gave; a step that cannot be done says so and the others go on.

    keep_merged leaves merged traces that are there as they are.
    """
    sweep, out = where.sweep, where.analysis
    steps: dict[str, Callable[[], Report]] = {
        "report": lambda: gemm_report(sweep, out, data=data),
        "variance": lambda: variance(sweep, out, top_k=top_k, data=data),
        "timestamps": lambda: timestamps(sweep, out, top_k=top_k, data=data),
        "overlap": lambda: overlap(sweep, out, top_k=top_k, data=data),
        "cause": lambda: cause(sweep, out, data=data),
        "plots": lambda: plots(out, top_k=top_k),
        "merge": lambda: merge(where, workers=workers, salvage=salvage, keep=keep_merged),
    }
    return {name: _attempt(name, step) for name, step in steps.items()}


def overlap_and_cause(where: Places, data: SweepData, *, top_k: int = 5) -> dict[str, Report]:
    """Which collectives ran beside the extreme instances, and what collectives beside a GEMM do to its time."""
    return {
        "overlap": _attempt("overlap", lambda: overlap(where.sweep, where.analysis, top_k=top_k, data=data)),
        "cause": _attempt("cause", lambda: cause(where.sweep, where.analysis, data=data)),
    }


def read(
    where: Places,
    *,
    workers: int,
    salvage: bool = False,
    expected: Sequence[Mapping[str, Any]] = (),
    progress: Progress | None = None,
) -> SweepData:
    """The sweep in memory, with each rank's workbook written on the way.

    expected: rows of the run's manifest, as `lab.rooms.sweep.findings.expected_rows` gives them.
    """
    return read_sweep(
        where.sweep,
        cache=where.cache,
        workers=workers,
        workbooks=where.analysis,
        salvage=salvage,
        expected=expected,
        progress=progress,
    )


def merge(
    where: Places,
    *,
    form: str = "json",
    cpu_ops: bool = True,
    salvage: bool = False,
    workers: int = 2,
    keep: bool = False,
    only: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """One file for each configuration with all its ranks on one timeline; form is json or pftrace.

    keep: not those that are there. only: the number of one configuration, in their order. A configuration without readable traces is in `lacking`. Raises MissingError where there is nothing to read.
    """
    configs = _configs(where.sweep)
    jobs = [
        MergeJob(
            config.traces,
            where.merged / f"{_name(config)}{SUFFIXES[form]}",
            form,
            cpu_ops,
            salvage,
            where.cache,
        )
        for number, config in enumerate(configs)
        if only is None or only == number
    ]
    there = [job for job in jobs if keep and job.target.exists()]
    jobs = [job for job in jobs if job not in there]
    tell = None if progress is None else lambda done, total, job: progress(done, total, job.target)
    results = map_traces(merge_one, jobs, workers=workers, progress=tell)
    report = Report(files=[job.target for job in there])
    for job, result in zip(jobs, results, strict=True):
        _account(report, job, result)
    return report


def read_part(where: Places, number: int, *, workers: int, salvage: bool = False) -> Report:
    """What one task of many does: one configuration's traces into the cache, and merged into one timeline."""
    configs = _configs(where.sweep)
    if not 0 <= number < len(configs):
        raise MissingError(
            f"there is no configuration {number}: the sweep has {len(configs)}", where=where.sweep
        )
    jobs = [trace.path for trace in configs[number].traces]
    results = map_traces(partial(_into_cache, cache=where.cache, salvage=salvage), jobs, workers=workers)
    broken = [result.what for result in results if isinstance(result, LabError)]
    done = merge(where, salvage=salvage, workers=1, only=number)
    return Report(files=done.files, lacking=[*broken, *done.lacking], problems=done.problems)


def num_parts(sweep: Path) -> int:
    return len(_configs(sweep))


def _into_cache(path: Path, cache: Path, salvage: bool) -> None:
    load_trace(path, cache=cache, salvage=salvage)


@dataclass(frozen=True)
class MergeJob:
    traces: tuple[TraceFile, ...]
    target: Path
    form: str
    cpu_ops: bool
    salvage: bool
    cache: Path


def merge_one(job: MergeJob) -> Merged:
    """Merge one configuration, its ranks' clocks aligned where their collectives show that they differ."""
    load = partial(load_trace, cache=job.cache, salvage=job.salvage)
    traces = [(trace.rank, trace.path) for trace in job.traces]
    offsets_ns = clock_offsets(traces, load)
    if job.form == "pftrace":
        return merge_pftrace(traces, job.target, load=load, offsets_ns=offsets_ns, cpu_ops=job.cpu_ops)
    return merge_json(traces, job.target, offsets_ns=offsets_ns, cpu_ops=job.cpu_ops, salvage=job.salvage)


def clock_offsets(traces: Sequence[tuple[int | None, Path]], load: Callable[[Path], Trace]) -> dict[int, int]:
    """What to add to each rank's times, in ns, by the ends of its collectives; traces that break are left out."""
    ranks: dict[int, Table] = {}
    for named, path in traces:
        try:
            trace = load(path)
        except LabError:
            continue  # the merge itself says why it is not there
        rank = named if trace.meta.rank is None else trace.meta.rank
        if rank is not None:
            ranks.setdefault(rank, collective_instances(trace))
    return dict(pair_collectives(ranks).offsets_ns) if len(ranks) > 1 else {}


def summed(reports: dict[str, Report]) -> Report:
    """All steps as one, sentences that several of them say only once."""
    parts = list(reports.values())
    return Report(
        files=list(dict.fromkeys(path for part in parts for path in part.files)),
        lacking=list(dict.fromkeys(text for part in parts for text in part.lacking)),
        problems=list(dict.fromkeys(text for part in parts for text in part.problems)),
        findings=list(dict.fromkeys(text for part in parts for text in part.findings)),
    )


def _attempt(name: str, step: Callable[[], Report]) -> Report:
    try:
        return step()
    except (BadDataError, MissingError) as error:
        return Report(lacking=[f"{name}: {error.what}" + (f" ({error.where})" if error.where else "")])


def _account(report: Report, job: MergeJob, result: Merged | LabError) -> None:
    name = job.target.name
    if isinstance(result, LabError):
        report.lacking.append(f"{name}: {result.what}")
        return
    report.problems.extend(f"{name}: {problem}" for problem in result.problems)
    if result.path is None:
        report.lacking.append(f"{name}: there is no readable trace to merge")
        return
    report.files.append(result.path)
    if result.missing:
        report.lacking.append(f"{name}: ranks {', '.join(map(str, result.missing))} are not in it")


def _configs(sweep: Path) -> list[ConfigDir]:
    if sweep.is_file():
        trace = TraceFile(None, sweep, None)
        return [ConfigDir(sweep.parent, None, None, 1, (trace,), (), ())]
    return find_configs(sweep)


def _name(config: ConfigDir) -> str:
    parts = [
        f"{config.threads}thread" if config.threads else "",
        f"{config.channels}ch" if config.channels else "",
        f"repeat{config.repeat}" if config.repeat > 1 else "",
        "merged",
    ]
    return "_".join(part for part in parts if part)
