"""What a workbook holds when it is opened again."""

from __future__ import annotations

import math
import re
import zipfile

import numpy as np
import openpyxl
import pandas as pd
import pytest

from lab.errors import StorageError
from lab.report import excel
from lab.report.excel import write_workbook


def test_tables_come_back_as_they_were(tmp_path):
    frame = pd.DataFrame(
        {
            "name": ["aten::mm", "µs “quoted” <b>&", None],
            "dur_us": [1.5, math.nan, 1e-9],
            "count": [1, 2**40, -3],
            "good": [True, False, True],
        }
    )
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


def test_text_comes_back_letter_by_letter(tmp_path):
    texts = ["  edges \n", " ", "a\tb", "x < y & \"z\" > 'w'", "µ ☃ 𝛼", "", "TRUE", "001", "1e5"]
    path = write_workbook({"it's": pd.DataFrame({"text": texts})}, tmp_path / "a.xlsx")
    column = [cell.value for cell in openpyxl.load_workbook(path)["it's"]["A"]]
    assert column[1:] == [text or None for text in texts]


def test_what_xml_cannot_hold_is_escaped_and_text_like_an_escape_too(tmp_path):
    path = write_workbook({"s": pd.DataFrame({"a": ["\x07", "_x0041_"]})}, tmp_path / "a.xlsx")
    sheet = zipfile.ZipFile(path).read("xl/worksheets/sheet1.xml").decode()
    assert "<t>_x0007_</t>" in sheet and "<t>_x005F_x0041_</t>" in sheet


def test_many_rows_and_columns_keep_their_places(tmp_path):
    frame = pd.DataFrame({f"c{at}": [at * 100 + row for row in range(10)] for at in range(30)})
    frame.iloc[4, 28] = 7
    path = write_workbook({"s": frame}, tmp_path / "a.xlsx")
    pd.testing.assert_frame_equal(pd.read_excel(path), frame)
    assert openpyxl.load_workbook(path)["s"]["AC6"].value == 7


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([1, None, 3], dtype="Int64"),
        pd.Series(["a", "b", "a"], dtype="category"),
        pd.Series([True, None, "x"], dtype=object),
        pd.Series([math.inf, -math.inf, 2.0]),
        pd.Series([np.float32(1.5), np.int64(3), None], dtype=object),
    ],
)
def test_columns_of_every_kind_can_be_written(tmp_path, values):
    path = write_workbook({"s": pd.DataFrame({"a": values})}, tmp_path / "a.xlsx")
    back = [cell.value for cell in openpyxl.load_workbook(path)["s"]["A"]][1:]
    known = [None if pd.isna(v) or v in (math.inf, -math.inf) else v for v in values.tolist()]
    assert back == [known[at] if at < len(known) else None for at in range(3)][: len(back)]


def test_all_digits_of_a_double_are_kept(tmp_path):
    values = [0.1 + 0.2, 1 / 3, 123456789.12345679, 5e-324]
    path = write_workbook({"s": pd.DataFrame({"a": values})}, tmp_path / "a.xlsx")
    assert [cell.value for cell in openpyxl.load_workbook(path)["s"]["A"]][1:] == values


@pytest.mark.parametrize("text", ["#N/A", "#DIV/0!", "1.5", "2026-11-22", "12:30", "50%"])
def test_text_that_reads_like_another_kind_stays_text(tmp_path, text):
    path = write_workbook({"s": pd.DataFrame({"a": [text, "x"]})}, tmp_path / "a.xlsx")
    sheet = zipfile.ZipFile(path).read("xl/worksheets/sheet1.xml").decode()
    assert f'<c r="A2" t="inlineStr"><is><t>{text}</t></is></c>' in sheet


def test_a_written_file_knows_no_clock(tmp_path):
    path = write_workbook({"s": pd.DataFrame({"a": [1]})}, tmp_path / "a.xlsx")
    package = zipfile.ZipFile(path)
    assert {entry.date_time for entry in package.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert "docProps/core.xml" not in package.namelist()


def test_sheets_longer_than_a_block_keep_every_row_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(excel, "BLOCK_ROWS", 7)
    frames = {
        f"s{rows}": pd.DataFrame({"a": range(rows), "b": [f"text {at}" for at in range(rows)]})
        for rows in (0, 1, 6, 7, 8, 50)
    }
    back = pd.read_excel(write_workbook(frames, tmp_path / "a.xlsx"), sheet_name=None)
    for name, frame in frames.items():
        pd.testing.assert_frame_equal(back[name], frame, check_dtype=False)


def test_rows_are_the_xml_that_openpyxl_itself_would_write(tmp_path):
    """The judge is openpyxl's write-only sheet, a cell at a time, of the same values and looks."""
    draw = np.random.default_rng(7)
    texts = ["x", "a b ", '1 < 2 & "3"', "=1+1", "@x", "é☃", "", None]
    frame = pd.DataFrame(
        {
            "whole": draw.integers(-(10**6), 10**6, 300),
            "part": draw.normal(size=300) * 10.0 ** draw.integers(-9, 9, 300),
            "gap": np.where(draw.random(300) < 0.3, np.nan, draw.random(300)),
            "text": draw.choice(np.array(texts, dtype=object), 300),
            "mixed": draw.choice(np.array([True, False, 2, 2.5, "t", None], dtype=object), 300),
        }
    )
    ours = rows_of(write_workbook({"s": frame}, tmp_path / "a.xlsx"))
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("s")
    sheet.append([])  # the header's place
    for values in frame.astype(object).itertuples(index=False):
        sheet.append([judged(sheet, value) for value in values])
    book.save(tmp_path / "b.xlsx")
    without_style = re.compile(r' s="\d+"')
    theirs = rows_of(tmp_path / "b.xlsx")
    assert len(ours) == 300 and [without_style.sub("", row) for row in ours] == theirs
    quoted = {
        re.search(r' s="\d+"', cell)[0] for row in ours for cell in row.split("<c ") if "<t>=1+1<" in cell
    }
    assert len(quoted) == 1


def judged(sheet, value):
    if value is None or value != value:
        return None
    cell = openpyxl.cell.WriteOnlyCell(sheet)
    if isinstance(value, str):
        cell.data_type, cell._value = "s", value
    elif isinstance(value, bool):
        cell.data_type, cell._value = "b", int(value)
    else:
        cell.data_type, cell._value = "n", repr(value)
    return cell


def rows_of(path):
    """The XML of each row below the header."""
    sheet = zipfile.ZipFile(path).read("xl/worksheets/sheet1.xml").decode()
    return re.findall(r'<row r="(?!1")\d+">.*?</row>', sheet, re.DOTALL)
