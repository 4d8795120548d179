"""A sweep's folder -> tables. One task per trace in a process pool; what cannot be read becomes a row.

Requested is not effective: `effective` sets beside each request what the kernels' grid and block, and NCCL's
own log, say happened, per collective and message size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.recordings.pool import map_traces
from lab.rooms.sweep.assemble import sweep_tables
from lab.rooms.sweep.layout import configs_of
from lab.rooms.sweep.rank import RankFigures, read_rank, unread
from lab.rooms.sweep.tables import Progress, SweepTables


def analyze(
    folder: Path,
    *,
    expected: Sequence[Mapping[str, Any]] = (),
    workers: int = 2,
    progress: Progress | None = None,
) -> SweepTables:
    """Read every trace below `folder` and put the sweep's tables together.

    expected: threads, channel, repeat, status and reason of each step in a run's manifest, so that a step
    that failed or never ran has a row too. workers: reading processes; 1 reads in this one. progress is
    called with (traces done, traces in all, path) after each. Raises MissingError if there is nothing to
    read.
    """
    configs = configs_of(folder, may_be_empty=bool(expected))
    traces = [trace for config in configs for trace in config.traces]
    on_done = (
        None if progress is None else lambda num_done, total, trace: progress(num_done, total, trace.path)
    )
    results = map_traces(read_rank, traces, workers=workers, progress=on_done)
    by_path: dict[Path, RankFigures] = {}
    for trace, result in zip(traces, results, strict=True):
        by_path[trace.path] = unread(trace, result) if isinstance(result, LabError) else result
    figures = [[by_path[trace.path] for trace in config.traces] for config in configs]
    return sweep_tables(folder, configs, figures, expected)
