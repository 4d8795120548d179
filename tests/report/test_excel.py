"""What a workbook holds when it is opened again."""

from __future__ import annotations

import math

import openpyxl
import pandas as pd
import pytest

from lab.errors import StorageError
from lab.report import excel
from lab.report.excel import write_workbook


def test_tables_come_back_as_they_were(tmp_path):
    frame = pd.DataFrame({
        "name": ["aten::mm", "µs “quoted” <b>&", None],
        "dur_us": [1.5, math.nan, 1e-9],
        "count": [1, 2**40, -3],
        "good": [True, False, True],
    })  # fmt: skip
    path = write_workbook({"GEMM": frame, "other": frame.head(0)}, tmp_path / "a.xlsx")
    back = pd.read_excel(path, sheet_name=None)
    pd.testing.assert_frame_equal(back["GEMM"], frame, check_dtype=False)
    assert list(back["other"]) == list(frame) and back["other"].empty


@pytest.mark.parametrize("hostile", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "http://x/"])
def test_a_hostile_name_is_text_and_never_a_formula_or_a_link(tmp_path, hostile):
    path = write_workbook({"s": pd.DataFrame({hostile: [hostile]})}, tmp_path / "a.xlsx")
    for row in (1, 2):
        cell = openpyxl.load_workbook(path)["s"].cell(row, 1)
        assert (cell.data_type, cell.value, cell.hyperlink) == ("s", hostile, None)
    assert openpyxl.load_workbook(path)["s"]["A2"].quotePrefix == (hostile[0] in "=+-@\t")


def test_what_excel_cannot_hold_is_cut_or_goes_on_in_another_sheet(tmp_path, monkeypatch):
    monkeypatch.setattr(excel, "MOST_ROWS", 2)
    frame = pd.DataFrame({"text": ["x" * 40_000, "\x00\x07\ud800", "c"]}, dtype=object)
    path = write_workbook({"a/very:long*name?of[a]sheet\\with bad": frame}, tmp_path / "a.xlsx")
    book = openpyxl.load_workbook(path)
    first, second = book.worksheets
    assert len(first.title) <= 31 and second.title.endswith(" (2)")
    assert len(first["A2"].value) == 32_767 and first["A2"].value.endswith(excel.CUT)
    assert second["A2"].value == "c"


def test_integers_beyond_a_double_stay_exact(tmp_path):
    path = write_workbook({"s": pd.DataFrame({"ts_ns": [1_753_652_182_142_161_579, 5]})}, tmp_path / "a.xlsx")
    assert openpyxl.load_workbook(path)["s"]["A2"].value == "1753652182142161579"


def test_the_header_is_frozen_and_filters(tmp_path):
    path = write_workbook({"s": pd.DataFrame({"a": [1.234], "b": [2]})}, tmp_path / "a.xlsx")
    sheet = openpyxl.load_workbook(path)["s"]
    assert (sheet.freeze_panes, sheet.auto_filter.ref) == ("B2", "A1:B2")
    assert (sheet["A2"].number_format, sheet["B2"].number_format) == ("#,##0.000", "#,##0")


def test_the_same_tables_make_the_same_file(tmp_path):
    frame = pd.DataFrame({"a": ["x", "y"], "b": [0.1, 0.2]})
    first = write_workbook({"s": frame}, tmp_path / "a.xlsx").read_bytes()
    assert write_workbook({"s": frame}, tmp_path / "b.xlsx").read_bytes() == first


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        write_workbook({"s": pd.DataFrame({"a": [1]})}, tmp_path / "file" / "a.xlsx")
    with pytest.raises(ValueError, match="at least one sheet"):
        write_workbook({}, tmp_path / "a.xlsx")
