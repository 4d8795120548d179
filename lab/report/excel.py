"""DataFrames as an Excel workbook: quick to write, safe to open, the same bytes for the same tables."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xlsxwriter

from lab.core.files import write_atomic
from lab.report.tables import is_numeric

MOST_ROWS = 1_048_575  # Excel's limit, less the header
MOST_CHARACTERS = 32_767  # of one cell
WIDEST, SAMPLED_ROWS = 60, 100
CUT = " … (cut: Excel holds no more in a cell)"
# A fixed date: a workbook that is written twice from the same tables is the same file.
CREATED = datetime(2025, 1, 1)
_BAD_IN_NAME = re.compile(r"[\[\]:*?/\\]")


def write_workbook(sheets: Mapping[str, pd.DataFrame], path: Path) -> Path:
    """Write each DataFrame as a sheet of `path`, atomically: header frozen and filterable, numbers formatted.

    Text is always text: a name that starts with =, +, - or @ is never a formula. A missing value is an empty
    cell, a boolean a boolean. Rows past Excel's limit go on in a further sheet, cells past it are cut and say
    so. Raises ValueError without sheets, StorageError where the file cannot be written.
    """
    if not sheets:
        raise ValueError("a workbook needs at least one sheet")
    buffer = io.BytesIO()
    options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    with xlsxwriter.Workbook(buffer, options) as book:
        book.set_properties({"created": CREATED})
        formats = _Formats(book)
        taken: set[str] = set()
        for name, frame in sheets.items():
            for part in _parts(frame):
                _write_sheet(book.add_worksheet(_sheet_name(name, taken)), part, formats)
    write_atomic(path, buffer.getvalue())
    return path


class _Formats:
    def __init__(self, book: xlsxwriter.Workbook) -> None:
        self.header = book.add_format({"bold": True, "text_wrap": True, "valign": "top", "bottom": 1})
        self.quoted = book.add_format({"quote_prefix": True})
        self.number = {
            places: book.add_format({"num_format": "#,##0" + ("." + "0" * places if places else "")})
            for places in range(7)
        }


def _write_sheet(sheet: Any, frame: pd.DataFrame, formats: _Formats) -> None:
    """Columns first (their formats must be known), then row by row: a written row leaves the memory."""
    columns = [frame.iloc[:, at] for at in range(frame.shape[1])]
    for at, values in enumerate(columns):
        sheet.set_column(at, at, _width(values), _number_format(values, formats))
        sheet.write_string(0, at, _text(str(values.name)), formats.header)
    sheet.freeze_panes(1, 1)
    if columns and len(frame):
        sheet.autofilter(0, 0, len(frame), len(columns) - 1)
    kinds = [_kind(values) for values in columns]
    lists = [values.tolist() for values in columns]
    text, number, boolean = sheet.write_string, sheet.write_number, sheet.write_boolean
    for row, cells in enumerate(zip(*lists, strict=True), start=1):
        for at, value in enumerate(cells):
            if kinds[at] == "number":
                if value == value and abs(value) != np.inf:
                    number(row, at, value)
            elif value is None or value != value:
                continue
            elif isinstance(value, (bool, np.bool_)):
                boolean(row, at, value)
            elif isinstance(value, (int, float)) and abs(value) < 2**53:
                number(row, at, value)
            elif value != "":
                clean = _text(str(value))
                text(row, at, clean, formats.quoted if clean[0] in "=+-@\t\r" else None)


def _kind(values: pd.Series) -> str:
    if not is_numeric(values):
        return "mixed"
    # A double holds integers up to 2^53: longer ones (ids, absolute nanoseconds) stay exact as text.
    is_long = pd.api.types.is_integer_dtype(values) and bool((values.abs() >= 2**53).any())
    return "mixed" if is_long else "number"


def _number_format(values: pd.Series, formats: _Formats) -> Any:
    """Four significant digits of the largest value, as on the page; integers without decimals."""
    if not is_numeric(values):
        return None
    finite = values.to_numpy(dtype=float, na_value=np.nan)
    finite = np.abs(finite[np.isfinite(finite)])
    whole = not len(finite) or not finite.max() or bool(np.all(finite == np.round(finite)))
    places = 0 if whole else int(np.clip(3 - np.floor(np.log10(finite.max())), 0, 6))
    return formats.number[places]


def _width(values: pd.Series) -> float:
    sample = values.head(SAMPLED_ROWS)
    cells = [12] if is_numeric(values) else [len(str(value)) for value in sample]
    longest_word = max(len(word) for word in str(values.name).split(" "))
    return float(min(WIDEST, max(8, longest_word, *cells) + 2))


def _text(value: str) -> str:
    """Text that an XML file can hold and a cell has room for."""
    clean = value.encode("utf-8", "replace").decode()
    return clean if len(clean) <= MOST_CHARACTERS else clean[: MOST_CHARACTERS - len(CUT)] + CUT


def _parts(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    for start in range(0, max(len(frame), 1), MOST_ROWS):
        yield frame.iloc[start : start + MOST_ROWS]


def _sheet_name(wanted: str, taken: set[str]) -> str:
    """Excel allows 31 characters, some not at all, and compares without case."""
    clean = _BAD_IN_NAME.sub("_", wanted).strip("'")[:31] or "sheet"
    name, number = clean, 1
    while name.lower() in taken:
        number += 1
        ending = f" ({number})"
        name = clean[: 31 - len(ending)] + ending
    taken.add(name.lower())
    return name
