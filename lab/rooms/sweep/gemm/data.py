"""A sweep in memory: every trace read once, in parallel.

What cannot be read is a row with its reason; the rest is analysed all the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from lab.errors import LabError, MissingError
from lab.recordings.integrity.words import sentences
from lab.recordings.pairing import Pairs
from lab.recordings.pool import map_traces, raise_if_none_read
from lab.recordings.ranks import Account, account_of
from lab.recordings.ranks.explain import explain
from lab.recordings.ranks.explained import Explained
from lab.rooms.sweep.assemble import sweep_tables
from lab.rooms.sweep.gemm.rank import RankJob, RankTables, read_rank_tables
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.layout import ConfigDir, Selection, find_configs
from lab.rooms.sweep.rank import unread
from lab.rooms.sweep.tables import (
    INSTANCES,
    KEY,
    SETTING,
    Planned,
    Progress,
    SweepTables,
    column_names,
    run_name,
)
from lab.rooms.sweep.verdict import unproven

_TEXTS = column_names("op strides dtype dims transpose overlap family kernels file algorithm protocol")


@dataclass(frozen=True)
class SweepData:
    """A sweep in memory.

    tables are those of the sweep's page, ranks maps each run to what each readable rank gave. missing says
    what is not there.
    """

    folder: Path
    tables: SweepTables
    ranks: dict[Key, dict[int, RankTables]]
    files: list[Path]
    missing: list[str]
    problems: list[str]
    incomplete: list[str] = field(default_factory=list)  # one sentence per thing that a recording lacks

    @cached_property
    def accounts(self) -> dict[Key, Account]:
        """The account of every configuration with a rank that did something."""
        works = {
            key: {rank: tables.work for rank, tables in ranks.items() if tables.work is not None}
            for key, ranks in self.ranks.items()
        }
        return {key: account_of(ranks) for key, ranks in works.items() if any(map(len, ranks.values()))}

    @property
    def pairs(self) -> dict[Key, Pairs]:
        """The collectives of each configuration, matched over its readable ranks."""
        return {key: account.together.pairs for key, account in self.accounts.items()}

    @cached_property
    def explained(self) -> dict[Key, Explained]:
        """What each account means; all of them at once, because what crosses streams is learnt over all."""
        return dict(zip(self.accounts, explain([*self.accounts.values()]), strict=True))

    @property
    def traces(self) -> pd.DataFrame:
        """Setting and rank of each trace that was read."""
        traces: pd.DataFrame = self.tables.timeline[[*SETTING, "rank"]]
        return traces

    @cached_property
    def gemm(self) -> pd.DataFrame:
        """Every executed GEMM of every readable rank, with the columns INSTANCES."""
        frame = self._joined("gemm")
        result: pd.DataFrame = frame.reindex(columns=INSTANCES).astype(dict.fromkeys(_TEXTS, "category"))
        return result

    @cached_property
    def groups(self) -> pd.DataFrame:
        """The GEMM sheet of every readable rank, by KEY and rank."""
        return self._joined("groups")

    def _joined(self, name: str) -> pd.DataFrame:
        """A table of all ranks with setting, rank and the trace's file."""
        frames = []
        for setting, ranks in self.ranks.items():
            for rank, tables in ranks.items():
                if table := getattr(tables, name):
                    file = os.path.relpath(tables.figures.path, self.folder)
                    columns = {**setting._asdict(), "rank": rank, "file": file}
                    frames.append(pd.DataFrame(table.as_dict()).assign(**columns))
        empty: pd.DataFrame = pd.DataFrame(columns=[*KEY, "rank", "file"])
        return pd.concat(frames, ignore_index=True) if frames else empty


def read_sweep(
    sweep: Path,
    *,
    workers: int = 2,
    workbooks: Path | None = None,
    salvage: bool = False,
    planned: Planned = MappingProxyType({}),
    progress: Progress | None = None,
    only: Selection | None = None,
    gpu_only: bool = False,
) -> SweepData:
    """Read every trace below `sweep` (a sweep, a folder of ranks, or one trace) once; only: some of them.

    workbooks: folder for the Excel report of each rank, None for none; gpu_only: only of ranks with a GPU.
    planned: the steps of the run's manifest. progress is called with (done, total, path). Raises MissingError
    without traces, and BadDataError where none can be read and no such row is given.
    """
    only = only or Selection()
    configs = [
        replace(
            config,
            traces=tuple(trace for trace in config.traces if only.has_rank(trace.rank)),
            wanted_ranks=None if only.ranks is None else tuple(only.ranks),
        )
        for config in find_configs(sweep, may_be_empty=bool(planned))
        if only.has(config.threads, config.channels)
    ]
    if not any(config.traces for config in configs) and only != Selection():
        raise MissingError(
            "no trace is of these threads, channels and ranks",
            location=sweep,
            fix="leave out --threads, --channels or --ranks to see what is there",
        )
    jobs = [RankJob(trace, config.key) for config in configs for trace in config.traces]
    on_done = None if progress is None else lambda num, total, job: progress(num, total, job.trace.path)
    read_one = partial(read_rank_tables, workbooks=workbooks, salvage=salvage, gpu_only=gpu_only)
    results = map_traces(read_one, jobs, workers=workers, progress=on_done)
    if not planned:  # a run has a row for each of its steps in any case
        raise_if_none_read(results)
    in_order = iter(results)
    read = []
    for config in configs:
        of_config: list[RankTables] = []
        for trace in config.traces:
            result = next(in_order)
            of_config += [RankTables(unread(trace, result))] if isinstance(result, LabError) else result
        read.append([tables for tables in of_config if only.has_rank(tables.figures.rank)])
    return _together(sweep, configs, read, planned)


def _together(
    sweep: Path,
    configs: Sequence[ConfigDir],
    read: Sequence[list[RankTables]],
    planned: Planned,
) -> SweepData:
    folder = sweep.parent if sweep.is_file() else sweep
    read = [sorted(ranks, key=lambda rank: (rank.figures.rank, str(rank.figures.path))) for ranks in read]
    figures = [[rank.figures for rank in ranks] for ranks in read]
    tables = sweep_tables(folder, configs, figures, planned)
    return SweepData(
        folder=folder,
        tables=tables,
        ranks={
            config.key: {rank.figures.rank: rank for rank in ranks if rank.gemm is not None}
            for config, ranks in zip(configs, read, strict=True)
        },
        files=[rank.file for ranks in read for rank in ranks if rank.file],
        missing=[*_missing(tables), *(text for config in configs for text in config.left_out())],
        problems=_problems(tables.problems),
        incomplete=[
            f"{rank.figures.path.name} of rank {rank.figures.rank}: {text}"
            for ranks in read
            for rank in ranks
            for text in sentences(rank.figures.lacks)
        ],
    )


def _missing(tables: SweepTables) -> list[str]:
    """Which configurations are not complete, and what of the requested is not proven to have been used."""
    incomplete = [
        f"{_name(row)}: {row['reason']}"
        + (f" (missing ranks: {row['missing_ranks']})" if row["missing_ranks"] else "")
        for row in tables.configs.to_dict("records")
        if row["status"] != "ok"
    ]
    return [*incomplete, *unproven(tables.effective, tables.configs)]


def _problems(problems: pd.DataFrame) -> list[str]:
    return [
        f"{_name(row)}{'' if row['rank'] < 0 else ', rank ' + str(row['rank'])}: {row['what']}"
        for row in problems.to_dict("records")
    ]


def _name(row: Mapping[Any, Any]) -> str:
    return run_name(Key(*(row[name] for name in KEY)))
