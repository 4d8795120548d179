"""The Excel and CSV reports over ranks and settings.

Sheets and columns are those of TraceLens (AMD-AGI/TraceLens, `generate_multi_rank_collective_report`) in its
order, ours after them. Two things differ on purpose: bandwidths are in GB/s with GB = 1e9 and the bus
factors of nccl-tests (TraceLens writes GiB/s under the same heading), and collectives are paired by group
and sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lab.recordings.pairing import Pairs
from lab.recordings.tables import Table
from lab.report.excel import write_workbook
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm.naming import report_name
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.reading.pairs import explained_of, pairs_of
from lab.rooms.sweep.gemm.report import Report
from lab.rooms.sweep.gemm.workbooks.collectives import collective_sheets
from lab.rooms.sweep.gemm.workbooks.comparisons import write_comparisons
from lab.rooms.sweep.gemm.workbooks.join import over_settings
from lab.rooms.sweep.gemm.workbooks.stragglers import straggler_findings, stragglers
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.names import long_name
from lab.rooms.sweep.ranks.read import not_told
from lab.rooms.sweep.tables import EFFECTIVE, TIMELINE, column_names
from lab.stats.columns import columns_of_rows

if TYPE_CHECKING:
    from lab.rooms.sweep.verdict.ranks import Settings

TIMELINE_FIRST = column_names(
    "threads channel rank computation_time_ms exposed_comm_time_ms exposed_memcpy_time_ms "
    "busy_time_ms idle_time_ms total_time_ms total_comm_time_ms total_memcpy_time_ms"
)
COLLECTIVES = column_names(
    "threads channel collective_id pg_name pg_ranks collective dtype in_nelems out_nelems group_size "
    "index_in_group msg_bytes latency_us start_skew_us end_skew_us straggler_rank first_rank "
    "algbw_gb_s busbw_gb_s complete missing_ranks confidence repeat "
    "algorithm protocol"
)


def write_reports(data: SweepData, out: Path) -> Report:
    """Write the workbooks over ranks and the CSV files beside them below `out`.

    The workbooks of single ranks are those that `read_sweep` wrote. Raises StorageError where `out` cannot be
    written; a broken trace is in `missing`, the rest is written.
    """
    paired = pairs_of(data)
    files = list(data.files)
    for setting, pairs in paired.items():
        sheets = collective_sheets(pairs, data.ranks[setting])
        files.append(write_workbook(sheets, out / report_name("collective", setting, "")))
    files += write_comparisons(data, out)
    explained = explained_of(data)
    late = stragglers(data, paired, explained)
    tables = csv_tables(data, paired, late)
    files += [write_csv(table, out / f"{name}.csv") for name, table in tables.items()]
    problems = [
        f"{long_name(*key.knobs)}: {problem}" for key, pairs in paired.items() for problem in pairs.problems
    ]
    missing = [*data.missing, *_not_told(data, explained)]
    return Report(files, missing, [*data.problems, *problems], straggler_findings(explained))


def _not_told(data: SweepData, explained: Settings) -> list[str]:
    sentences = []
    for setting, explanation in explained.items():
        world = max((rank.figures.world_size or 0 for rank in data.ranks[setting].values()), default=0)
        sentences += [f"{long_name(*setting.knobs)}: {text}" for text in not_told(explanation, world)]
    return sentences


def csv_tables(data: SweepData, paired: Mapping[Key, Pairs], late: Table) -> dict[str, Table]:
    """timeline, effective, collectives and stragglers of the whole sweep, ready to be written."""
    timeline = [*TIMELINE_FIRST, *(name for name in TIMELINE if name not in TIMELINE_FIRST)]
    collectives = {setting: pairs.collectives for setting, pairs in paired.items()}
    return {
        "timeline": Table(columns_of_rows(data.rows["timeline"], timeline)),
        "effective": Table(columns_of_rows(data.rows["effective"], EFFECTIVE)),
        "collectives": over_settings(collectives, COLLECTIVES),
        "stragglers": late,
    }
