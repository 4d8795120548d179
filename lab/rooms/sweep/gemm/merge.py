"""All ranks of a configuration in one file on one timeline. Light: `gemm merge` needs no tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lab.core.words import ranks_text
from lab.errors import LabError
from lab.recordings.load import load_torch_trace
from lab.recordings.merge import Ranks, merge_captures, read_ranks
from lab.recordings.pool import map_traces
from lab.rooms.sweep.gemm import Places, Report
from lab.rooms.sweep.layout import ConfigDir, TraceFile, find_configs

if TYPE_CHECKING:
    from lab.rooms.sweep.tables import Progress

SUFFIXES = {"json": ".json.gz", "original": ".json"}


@dataclass(frozen=True)
class MergeOptions:
    """form is json or original.

    num_ranks: only so many ranks, the lowest; trace_name: the file of each rank, where there are several.
    """

    form: str = "json"
    num_ranks: int | None = None
    trace_name: str | None = None
    cpu_ops: bool = True
    salvage: bool = False
    workers: int = 2


def merge_ranks(places: Places, options: MergeOptions, *, progress: Progress | None = None) -> Report:
    """Write one file per configuration with all its ranks on one timeline.

    A configuration without readable traces is in `missing`. Raises MissingError where there is nothing to
    read.
    """
    report = Report()
    jobs = []
    for config in find_configs(places.sweep):
        traces = _chosen(config, options)
        if options.trace_name and len(traces) < len(config.traces):
            lacking = ranks_text(
                [t.rank or 0 for t in config.traces if t.rank not in {c.rank for c in traces}]
            )
            report.missing.append(f"{_name(config)}: no {options.trace_name} of {lacking}")
        target = places.merged / f"{_name(config)}{SUFFIXES[options.form]}"
        jobs.append((traces[: options.num_ranks], target))
        if not options.trace_name:
            report.missing.extend(f"{_name(config)}: {text}" for text in config.left_out())
    on_done = None if progress is None else lambda count, total, job: progress(count, total, job[1])
    results = map_traces(partial(merge_one, options=options), jobs, workers=options.workers, progress=on_done)
    for (_, target), result in zip(jobs, results, strict=True):
        _add_result(report, target, result, is_whole=options.num_ranks is None)
    return report


def merge_one(job: tuple[tuple[TraceFile, ...], Path], *, options: MergeOptions) -> Ranks:
    """Merge a configuration's traces; clocks are aligned where the collectives show that they differ."""
    traces, target = job
    recordings = [(trace.rank, trace.path) for trace in traces]
    ranks = read_ranks(recordings, salvage=options.salvage, read=load_torch_trace)
    merge_captures(
        ranks.traces,
        target,
        offsets_ns=ranks.offsets_ns,
        absent=ranks.absent,
        cpu_ops=options.cpu_ops,
        with_prefix=options.form == "original",
    )
    return ranks


def _add_result(report: Report, target: Path, result: Ranks | LabError, *, is_whole: bool) -> None:
    name = target.name
    if isinstance(result, LabError):
        report.missing.append(f"{name}: {result.problem}" + (f" ({result.fix})" if result.fix else ""))
        return
    report.problems.extend(f"{name}: left out: {text}" for text in result.left_out)
    report.problems.extend(f"{name}: {text}" for text in result.unnamed)
    report.files.append(target)
    report.missing.extend(result.torn)
    if result.absent and is_whole:
        report.missing.append(f"{name}: without {ranks_text(result.absent)}")


def _chosen(config: ConfigDir, options: MergeOptions) -> tuple[TraceFile, ...]:
    """Each rank's trace: the newest, or the one of the name that was asked for."""
    if options.trace_name is None:
        return config.traces
    files = [*config.traces, *(trace for traces in config.earlier for trace in traces)]
    named = [trace for trace in files if trace.path.name in (options.trace_name, f"{options.trace_name}.gz")]
    return tuple(sorted(named, key=lambda trace: trace.rank or 0))


def _name(config: ConfigDir) -> str:
    parts = [
        f"{config.threads}thread" if config.threads else "",
        f"{config.channels}ch" if config.channels else "",
        config.algorithm,
        config.protocol,
        f"repeat{config.repeat}" if config.repeat > 1 else "",
        "merged",
    ]
    return "_".join(part for part in parts if part)
