"""A table gives the same files whether it is a DataFrame or plain columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from lab.recordings.tables import Table
from lab.report.excel import write_workbook
from lab.report.tables import cell_texts, column_of, columns_of, write_csv
from lab.report.terminal import ABSENT
from lab.stats.columns import objects

COLUMNS = {
    "name": objects(["=cmd|x", "a,b", None, "\u00e9", ""]),
    "whole": np.array([1, -2, 2**53 + 1, 0, 3]),
    "narrow": np.array([0.1, 1e-7, np.nan, np.inf, 2], dtype=np.float32),
    "share": np.array([0.1, 1e22, np.nan, 0.0, 1 / 3]),
    "proven": np.array([True, False, True, True, False]),
    "mixed": objects([1, "x", None, 2.5, True]),
}


def test_the_bytes_of_csv_and_workbook_are_the_same(tmp_path: Path) -> None:
    table, frame = Table(COLUMNS), pd.DataFrame(COLUMNS)
    for write, ending in ((write_csv, "csv"), (lambda t, p: write_workbook({"a": t}, p), "xlsx")):
        ours, theirs = tmp_path / f"ours.{ending}", tmp_path / f"theirs.{ending}"
        write(table, ours), write(frame, theirs)
        assert ours.read_bytes() == theirs.read_bytes()
    safe = frame.assign(name=["'=cmd|x", *frame["name"][1:]])
    assert (tmp_path / "ours.csv").read_text() == safe.to_csv(index=False, lineterminator="\n")


def test_pandas_own_types_keep_their_kind_and_lose_nothing_but_what_is_missing() -> None:
    frame = pd.DataFrame(
        {
            "count": pd.array([1, None, 2**53 + 1], dtype="Int64"),
            "kind": pd.Categorical(["x", None, "y"]),
            "when": pd.to_datetime(["2026-01-02", None, "2026-01-03"]),
            "sure": pd.array([True, None, False], dtype="boolean"),
        }
    )
    count, kind, when, sure = columns_of(frame)
    assert count.is_numeric and count.is_integer and count.values.tolist() == [1, None, 2**53 + 1]
    assert [one.is_numeric for one in (kind, when, sure)] == [False] * 3
    assert kind.values.tolist() == ["x", None, "y"] and sure.values.tolist() == [True, None, False]
    assert [str(value)[:10] for value in when.values.tolist()] == ["2026-01-02", "None", "2026-01-03"]
    assert cell_texts(column_of(frame["count"]))[1] == ABSENT


def test_a_table_without_rows_or_columns_is_a_header(tmp_path: Path) -> None:
    assert write_csv(Table({"a": np.empty(0)}), tmp_path / "a.csv").read_text() == "a\n"
    assert write_csv(Table({}), tmp_path / "b.csv").read_text() == "\n"
