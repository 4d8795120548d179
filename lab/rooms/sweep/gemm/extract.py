"""The variance table of an analysis folder whose traces are elsewhere, from its workbooks alone.

`{T}thread/individual_reports/perf_{C}ch_rank{R}.xlsx`, as TraceLens or lab wrote them. Columns are found by
their headings, never by their place: TraceLens orders them differently by trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.words import plural
from lab.errors import BadDataError, MissingError
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm import Report
from lab.rooms.sweep.gemm.sheets.workbook import EXTRAS
from lab.rooms.sweep.gemm.variance import FIRST, MORE, OURS, TOP_FILE, findings_of, top_rows, write_plots
from lab.rooms.sweep.knobs import ALGORITHMS, PROTOCOLS
from lab.rooms.sweep.layout import Selection

_REPORT = re.compile(
    rf"perf(?:_(?P<channel>\d+)ch)?(?:_(?P<algorithm>{'|'.join(ALGORITHMS)}))?"
    rf"(?:_(?P<protocol>{'|'.join(PROTOCOLS)}))?_rank(?P<rank>\d+)(?:_repeat(?P<repeat>\d+))?\.xlsx"
)
_THREADS = re.compile(r"(\d+)threads?")
_KERNEL = re.compile(r"""['"]name['"]: (?P<quote>['"])(.*?)(?P=quote)""")
# The letter before s is one of two: micro sign or Greek mu.
_TIME = re.compile(r"Kernel Time \([\u00b5\u03bc]s\)_(\w+)")
_STATISTICS = {"min": "kernel_time_min_us", "max": "kernel_time_max_us", "median": "median_us"}


def is_analysis(folder: Path) -> bool:
    """Whether a folder holds reports of ranks: tracelens_analysis, or what it is called there."""
    return folder.is_dir() and any(_reports(folder))


def write_extract(folder: Path, out: Path, *, top_k: int, only: Selection) -> Report:
    """Write top{k}_gemm_kernels_time_variance.csv and its plots from the workbooks in `folder`.

    Raises MissingError where none of them has a GEMM.
    """
    report = Report()
    tables = []
    for path, names in _reports(folder):
        if only.has(names["threads"], names["channel"]) and only.has_rank(names["rank"]):
            try:
                tables.append(_table(path, names))
            except (ValueError, KeyError, OSError, BadDataError) as error:
                report.missing.append(f"{path.relative_to(folder)}: no GEMM sheet ({error})")
    if not tables or not sum(map(len, tables)):
        raise MissingError(
            "no GEMM in the reports of ranks here", location=folder, fix="lab gemm report SWEEP"
        )
    table = pd.concat(tables, ignore_index=True)
    columns = [name for name in (*OURS, *MORE) if name in table]
    sheet = sorted(str(name) for name in table if str(name).startswith("col_"))
    top = top_rows(table[[*FIRST, *sheet, *columns]], top_k)
    report.files.append(write_csv(top, out / TOP_FILE.format(k=top_k)))
    report.files.extend(write_plots(top, table, out))
    report.problems.append(f"{plural(len(tables), 'workbook')} read; their traces are not here: no overlap")
    report.findings.extend(findings_of(top))
    return report


def _reports(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each report of a rank with what its path says, in order."""
    for path in sorted(folder.glob("**/individual_reports/perf_*.xlsx")):
        if match := _REPORT.fullmatch(path.name):
            threads = _THREADS.fullmatch(path.parent.parent.name)
            numbers = {name: int(match[name] or 0) for name in ("channel", "rank")}
            words = {name: match[name] or "" for name in ("algorithm", "protocol")}
            yield (
                path,
                {
                    "threads": int(threads[1]) if threads else 0,
                    "repeat": int(match["repeat"] or 1),
                    **numbers,
                    **words,
                },
            )


def _table(path: Path, names: dict[str, Any]) -> pd.DataFrame:
    """The GEMM sheet with the columns of the variance table."""
    sheet = pd.read_excel(path, sheet_name="GEMM")
    headings = {match[1]: str(name) for name in sheet if (match := _TIME.fullmatch(str(name)))}
    missing = [statistic for statistic in ("min", "max") if statistic not in headings]
    if missing:
        raise BadDataError(f"no column Kernel Time (µs)_{missing[0]}", location=path)
    sheet_columns = {f"col_{name}": sheet[name] for name in sheet if name not in EXTRAS}
    details = sheet.get("kernel_details__summarize_kernel_stats", pd.Series("", index=sheet.index))
    kernels = [match[2] if (match := _KERNEL.search(str(text))) else "" for text in details]
    times = {name: sheet[headings[key]] for key, name in _STATISTICS.items() if key in headings}
    shape = {
        name: sheet[f"param: {name}"] for name in ("B", "M", "N", "K", "bias") if f"param: {name}" in sheet
    }
    extras = {name: sheet[name] for name in EXTRAS if name in sheet}
    table: pd.DataFrame = pd.DataFrame(
        {
            **names,
            **sheet_columns,
            **times,
            **shape,
            **extras,
            "kernel_name": kernels,
            "time_diff_us": sheet[headings["max"]] - sheet[headings["min"]],
            "op": sheet["name"],
            "dtype": sheet.get("param: dtype_A_B", ""),
            "n": sheet.get("name_count", 2),
        },
        index=sheet.index,
    )
    return table
