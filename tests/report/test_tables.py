"""Tables as CSV, as terminal lines and as cells; the same from a DataFrame and from plain columns."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.pandas import column, data_frames, range_indexes

from lab.recordings.tables import Table
from lab.report.excel import write_workbook
from lab.report.tables import cell_texts, column_of, columns_of, terminal_table, write_csv
from lab.report.terminal import ABSENT, heading
from lab.stats.columns import objects

FRAMES = data_frames(
    [column("dur_us", dtype=float), column("count", dtype=np.int64)],
    index=range_indexes(min_size=1, max_size=8),
)


@given(frame=FRAMES)
def test_a_csv_reads_back_to_the_same_numbers(
    frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_csv(frame, tmp_path_factory.mktemp("csv") / "a.csv")
    again = pd.read_csv(path, dtype=str, keep_default_na=False).replace("", "nan").astype(frame.dtypes)
    pd.testing.assert_frame_equal(again, frame, check_exact=True)


def test_names_with_commas_quotes_and_line_ends_survive_a_csv(tmp_path: Path) -> None:
    frame = pd.DataFrame({"name": ['a,b"c', "two\nlines", "<script>"]})
    pd.testing.assert_frame_equal(pd.read_csv(write_csv(frame, tmp_path / "a.csv")), frame)


@pytest.mark.parametrize(
    ("name", "words", "unit"),
    [
        ("total_time_ms", "total time", "ms"),
        ("dur_us", "dur", "µs"),
        ("msg_bytes", "msg", "B"),
        ("tflops_median", "median", "TFLOP/s"),
        ("rank", "rank", ""),
        ("s", "s", ""),
    ],
)
def test_a_columns_name_becomes_words_and_unit(name: str, words: str, unit: str) -> None:
    assert heading(name) == (words, unit)


def test_a_column_has_one_number_of_decimals_and_four_digits_at_its_largest() -> None:
    assert cell_texts(column_of(pd.Series([149.6224, 1.5]))) == ["149.6", "1.5"]
    assert cell_texts(column_of(pd.Series([0.02, 0.3]))) == ["0.0200", "0.3000"]
    assert cell_texts(column_of(pd.Series([90112, 7]))) == ["90\u202f112", "7"]


def test_absent_values_are_a_dash_in_numbers_and_in_words() -> None:
    assert cell_texts(column_of(pd.Series([1.5, math.nan]))) == ["1.500", ABSENT]
    assert cell_texts(column_of(pd.Series(["", None, "x"], dtype=object))) == [ABSENT, ABSENT, "x"]
    assert cell_texts(column_of(pd.Series([math.nan, math.inf]))) == [ABSENT, "inf"]


@given(values=st.lists(st.floats(allow_nan=False, min_value=-1e12, max_value=1e12), min_size=1))
def test_what_a_cell_shows_is_the_number_to_its_last_shown_digit(values: list[float]) -> None:
    for text, value in zip(cell_texts(column_of(pd.Series(values))), values, strict=True):
        shown = text.replace("\u202f", "")
        decimals = len(shown.partition(".")[2])
        assert abs(float(shown) - value) <= 0.5000001 * 10**-decimals + 1e-9 * abs(value)


def test_terminal_lines_keep_brackets_and_fit_the_width() -> None:
    frame = pd.DataFrame({"name": ["[red]x[/red]", "y" * 60], "total_time_ms": [1.5, 22.25]})
    lines = terminal_table(frame, width=60).splitlines()
    assert any("[red]x[/red]" in line for line in lines)
    assert max(map(len, lines)) <= 60
    assert any(line.endswith("22.25") for line in lines)


def test_an_empty_table_is_a_header() -> None:
    assert "rank" in terminal_table(pd.DataFrame({"rank": []}))


@pytest.mark.parametrize("text", ["=cmd|' /C'!A0", "@SUM(A1)", "+cmd|'x'!A0", "-1+cmd(2)", "\t=1", " =1"])
def test_a_text_that_a_spreadsheet_would_run_gets_a_quote(tmp_path: Path, text: str) -> None:
    frame = pd.DataFrame({"kernel": [text, "plain"], "again": ["x", "y"], "n": [1, -2]})
    read = pd.read_csv(write_csv(frame, tmp_path / "t.csv"))
    assert read["kernel"].tolist() == [f"'{text}", "plain"] and read["n"].tolist() == [1, -2]
    assert frame["kernel"][0] == text, "the caller's table stays as it was"


@pytest.mark.parametrize("text", ["-infinity", "-R7", "+INF", "-0.5", "void f(int)", "a=b", "x@y"])
def test_a_text_that_no_spreadsheet_runs_stays_as_it_is(tmp_path: Path, text: str) -> None:
    assert pd.read_csv(write_csv(pd.DataFrame({"k": [text, "w"]}), tmp_path / "t.csv"))["k"][0] == text


def test_a_terminal_table_shows_control_characters_and_obeys_none() -> None:
    shown = terminal_table(pd.DataFrame({"kernel": ["\x1b]0;owned\x07 \x9b2J\u202egnp"]}))
    assert "\\x1b]0;owned\\x07 \\x9b2J\\u202egnp" in shown


def test_formulas_are_found_in_categories_as_well(tmp_path):
    frame = pd.DataFrame({"name": pd.Categorical(["=cmd", "x", "=cmd"])})
    assert write_csv(frame, tmp_path / "a.csv").read_text() == "name\n'=cmd\nx\n'=cmd\n"
    plain = pd.DataFrame({"name": pd.Categorical(["y", "x"])})
    assert write_csv(plain, tmp_path / "b.csv").read_text() == "name\ny\nx\n"


def test_a_columns_name_that_a_spreadsheet_would_run_gets_a_quote(tmp_path):
    frame = pd.DataFrame({"=cmd()": [1]})
    assert write_csv(frame, tmp_path / "a.csv").read_text() == "'=cmd()\n1\n"


def test_a_nan_of_numpys_own_in_a_column_of_texts_is_an_empty_cell(tmp_path):
    frame = pd.DataFrame({"a": np.array([np.float32("nan"), "x"], dtype=object)})
    assert write_csv(frame, tmp_path / "a.csv").read_text() == 'a\n""\nx\n'


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
