"""The pipeline's steps on traces that are read once, and the Excel and CSV reports over ranks and settings.

Sheets and columns of the reports are those of TraceLens (AMD-AGI/TraceLens,
`generate_multi_rank_collective_report`) in its order, ours after them. Two things differ on purpose:
bandwidths are in GB/s with GB = 1e9 and the bus factors of nccl-tests (TraceLens writes GiB/s under the same
heading), and collectives are paired by group and sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from lab.errors import BadDataError, MissingError
from lab.recordings.pairing import Pairs
from lab.report.excel import write_workbook
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm import Places, Report, report_name
from lab.rooms.sweep.gemm.collectives import Nodes, collective_sheets, straggler_summary
from lab.rooms.sweep.gemm.data import SweepData
from lab.rooms.sweep.gemm.merge import MergeOptions, merge_ranks
from lab.rooms.sweep.gemm.rank import RankTables
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.ranks.read import not_told
from lab.rooms.sweep.ranks.verdict import Settings
from lab.rooms.sweep.tables import column_names, run_name

COLLECTIVES = column_names(
    "threads channel collective_id pg_name pg_ranks collective dtype in_nelems out_nelems group_size "
    "index_in_group msg_bytes latency_us start_skew_us end_skew_us straggler_rank first_rank "
    "algbw_gb_s busbw_gb_s complete missing_ranks confidence repeat "
    "algorithm protocol"
)
STRAGGLERS = column_names(
    "threads channel rank num_collectives times_arrived_last pct_arrived_last total_wait_time_us "
    "verdict times_arrived_first mean_wait_time_us caused_wait_time_us computation_time_ms "
    "idle_time_ms end_deviation_us total_nccl_dur_us repeat "
    "algorithm protocol"
)


def run_all(places: Places, data: SweepData, merging: MergeOptions, *, top_k: int = 5) -> Report:
    """Run every step on a sweep in memory; a step that fails is in `missing`, the others go on."""
    out = places.analysis
    return _run(
        {
            "report": lambda: write_reports(data, out),
            "variance": lambda: run_variance(data, out, top_k=top_k),
            "merge": lambda: merge_ranks(places, merging),
        }
    )


def run_variance(data: SweepData, out: Path, *, top_k: int = 5) -> Report:
    """Write which GEMMs vary, when their extremes ran, what overlapped them, the causes, and the plots.

    Raises MissingError without any GEMM that an op launched.
    """
    from lab.rooms.sweep.gemm.beside import usable, write_causes  # matplotlib, which a report does without
    from lab.rooms.sweep.gemm.variance import write_variance

    usable(data)  # raises here, so that the want of GEMMs is said once and not by every step
    return _run(
        {
            "variance": lambda: write_variance(data, out, top_k=top_k),
            "cause": lambda: write_causes(data, out),
        }
    )


def _run(steps: dict[str, Callable[[], Report]]) -> Report:
    """Run all steps for one report; a sentence that several of them give is in it once."""
    reports = [_attempt(name, step) for name, step in steps.items()]
    return Report(
        *(
            list(dict.fromkeys(value for report in reports for value in getattr(report, name)))
            for name in ("files", "missing", "problems", "findings")
        )
    )


def _attempt(name: str, step: Callable[[], Report]) -> Report:
    try:
        return step()
    except (BadDataError, MissingError) as error:
        return Report(
            missing=[f"{name}: {error.problem}" + (f" ({error.location})" if error.location else "")]
        )


def write_reports(data: SweepData, out: Path) -> Report:
    """Write the workbooks over ranks and the CSV files beside them below `out`.

    The workbooks of single ranks are those that `read_sweep` wrote. Raises StorageError where `out` cannot be
    written; a broken trace is in `missing`, the rest is written.
    """
    paired = data.pairs
    files = list(data.files)
    for setting, pairs in paired.items():
        sheets = collective_sheets(pairs, data.ranks[setting])
        files.append(write_workbook(sheets, out / report_name("collective", setting, "")))
    files += write_comparisons(data, out)
    explained = data.explained
    tables = {
        "timeline": data.tables.timeline,
        "effective": data.tables.effective,
        "collectives": _over_settings(
            {key: pd.DataFrame(pairs.collectives.as_dict()) for key, pairs in paired.items()}, COLLECTIVES
        ),
        "stragglers": stragglers(data, paired, explained),
    }
    files += [write_csv(table, out / f"{name}.csv") for name, table in tables.items()]
    problems = [f"{run_name(key)}: {problem}" for key, pairs in paired.items() for problem in pairs.problems]
    missing = list(data.missing)
    for setting, explanation in explained.items():
        world = max((rank.figures.world_size or 0 for rank in data.ranks[setting].values()), default=0)
        missing += [f"{run_name(setting)}: {text}" for text in not_told(explanation, world)]
    findings = [  # those that bind first
        f"{run_name(key)}: {finding.text}"
        for key, explanation in explained.items()
        for finding in explanation.findings
    ]
    return Report(files, missing, [*data.problems, *problems], findings)


def stragglers(data: SweepData, paired: Mapping[Key, Pairs], explained: Settings) -> pd.DataFrame:
    """One row per configuration and rank: who waited and who caused it, and what the account finds on it."""
    tables = {}
    for setting, pairs in paired.items():
        ranks = data.ranks[setting]
        summary = straggler_summary(pairs, ranks, Nodes(ranks))
        times = [rank.figures.timeline or {} for rank in ranks.values()]
        causes = explained[setting].findings if setting in explained else ()
        verdicts = ["; ".join(cause.text for cause in causes if cause.rank == rank) for rank in ranks]
        tables[setting] = summary.join(
            pd.DataFrame(times, columns=["computation_time_ms", "idle_time_ms"])
        ).assign(verdict=verdicts)
    return _over_settings(tables, STRAGGLERS)


def _over_settings(tables: Mapping[Key, pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """The tables of all configurations one below the other, with their settings, in these columns."""
    filled = [table.assign(**setting._asdict()) for setting, table in tables.items() if len(table)]
    empty: pd.DataFrame = pd.DataFrame(columns=columns)
    return pd.concat(filled, ignore_index=True)[columns] if filled else empty


def write_comparisons(data: SweepData, out: Path) -> list[Path]:
    """Per channel count and rank, the timelines and op times of all thread counts side by side."""
    by_channel: dict[tuple[str, int], dict[int, RankTables]] = {}
    for key, ranks in sorted(data.ranks.items(), reverse=True):
        setting = "_".join(filter(None, (f"{key.channel}ch", key.algorithm, key.protocol)))
        for rank, rank_tables in ranks.items():
            # The first repeat comes last, so it is kept.
            by_channel.setdefault((setting, rank), {})[key.threads] = rank_tables
    return [
        write_workbook(
            comparison(by_threads),
            out / "comparisons" / f"compare_{setting}_rank{rank}_across_threads.xlsx",
        )
        for (setting, rank), by_threads in by_channel.items()
        if len(by_threads) > 1
    ]


def comparison(by_threads: Mapping[int, RankTables]) -> dict[str, pd.DataFrame]:
    """Sheets gpu_timeline and ops_summary, one set of columns per thread count, then the changes.

    diff is new minus first, ratio new over first; the first is the lowest thread count.
    """
    figures = ["Count", "total_direct_kernel_time_ms", "total_subtree_kernel_time_ms"]
    keys = {"gpu_timeline": ("type", ["time ms", "percent"]), "ops_summary": ("name", figures)}
    return {sheet: _beside(by_threads, sheet, key, values) for sheet, (key, values) in keys.items()}


def _beside(by_threads: Mapping[int, RankTables], sheet: str, key: str, values: list[str]) -> pd.DataFrame:
    order = sorted(by_threads)
    parts = [
        pd.DataFrame(by_threads[threads].sheets[sheet].as_dict()).set_index(key)[values] for threads in order
    ]
    rows = list(dict.fromkeys(name for part in parts for name in part.index))
    parts = [part.reindex(rows) for part in parts]
    frame = pd.DataFrame(index=pd.Index(rows, name=key))
    for threads, part in zip(order, parts, strict=True):
        frame = frame.join(part.add_suffix(f" {threads}thread"))
    main = values[0] if sheet == "gpu_timeline" else values[1]
    for threads, part in zip(order[1:], parts[1:], strict=True):
        frame[f"{main} diff {threads}thread"] = part[main] - parts[0][main]
        frame[f"{main} ratio {threads}thread"] = part[main] / parts[0][main]
    result: pd.DataFrame = frame.reset_index()
    return result
