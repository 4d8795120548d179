"""Tables as an Excel workbook, through openpyxl: safe to open, the same bytes for the same tables."""

from __future__ import annotations

import io
import itertools
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from lab.core.files import write_atomic
from lab.report.columns import AnyTable, Column, columns_of, is_missing

# openpyxl loads Pillow, where it is, for the pictures of a workbook; here are none (10 ms).
_pillow_is_new = sys.modules.setdefault("PIL", None) is None  # type: ignore[arg-type]
from openpyxl import Workbook  # noqa: E402
from openpyxl.cell import WriteOnlyCell  # noqa: E402
from openpyxl.styles import Alignment, Font  # noqa: E402
from openpyxl.utils import get_column_letter  # noqa: E402
from openpyxl.writer.excel import ExcelWriter  # noqa: E402

if _pillow_is_new:
    del sys.modules["PIL"]

MOST_ROWS = 1_048_575  # Excel's limit, less the header
MOST_CHARACTERS = 32_767  # of one cell
WIDEST, SAMPLED_ROWS = 60, 100
LINE_POINTS = 15  # the height of one line of text
CUT = " … (cut: Excel holds no more in a cell)"
# A fixed date, so that the same tables give the same file.
WRITTEN = datetime(1980, 1, 1)
DECIMALS = 6
END_OF_ROWS = b"</sheetData>"
BLOCK_ROWS = 4096
MOST_KNOWN = 4096  # texts of a column whose XML is kept
_BAD_IN_NAME = re.compile(r"[\[\]:*?/\\]")
# What XML cannot hold, and text that reads like its escape, is written as _xHHHH_ (ECMA-376, 22.9.2.19).
_NOT_XML = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
_FORMULA = tuple("=+-@\t\r")


def write_workbook(sheets: Mapping[str, AnyTable], path: Path) -> Path:
    """Write each table as a sheet of `path`, atomically: header frozen and filterable, numbers formatted.

    Text is always text: a name that starts with =, +, - or @ is never a formula. A missing value is an empty
    cell, a boolean a boolean. Rows past Excel's limit continue in a further sheet; cells past it are cut and
    say so. Raises ValueError without sheets, StorageError where the file cannot be written.
    """
    if not sheets:
        raise ValueError("a workbook needs at least one sheet")
    book = Workbook(write_only=True)
    book.properties.created = book.properties.modified = WRITTEN
    buffer = io.BytesIO()
    package = _Package(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    taken: set[str] = set()
    for name, table in sheets.items():
        for part in _parts(columns_of(table)):
            rows = _add_sheet(book, _sheet_name(name, taken), part)
            package.rows[f"xl/worksheets/sheet{len(book.worksheets)}.xml"] = rows
    ExcelWriter(book, package).save()
    write_atomic(path, buffer.getvalue())
    return path


class _Package(zipfile.ZipFile):
    """A zip file whose entries carry no time of their own; rows are added to a sheet as it is packed.

    openpyxl makes everything but the rows below the header: it takes 20 us per cell.
    """

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.rows: dict[str, Iterator[str]] = {}  # XML in blocks, by the name of the sheet's entry

    def writestr(self, zinfo_or_arcname: Any, data: Any, *args: Any, **how: Any) -> None:
        super().writestr(self._entry(zinfo_or_arcname), data, zipfile.ZIP_DEFLATED, 1)

    def write(self, filename: Any, arcname: Any = None, *args: Any, **how: Any) -> None:
        head, end, tail = Path(filename).read_bytes().rpartition(END_OF_ROWS)
        with self.open(self._entry(arcname), "w", force_zip64=True) as entry:
            entry.write(head)
            for block in self.rows.get(str(arcname), ()):
                entry.write(block.encode())
            entry.write(end + tail)

    def _entry(self, name: object) -> zipfile.ZipInfo:
        entry = zipfile.ZipInfo(str(name), WRITTEN.timetuple()[:6])
        entry.compress_type, entry._compresslevel = zipfile.ZIP_DEFLATED, 1  # type: ignore[attr-defined]
        return entry


def _add_sheet(book: Workbook, name: str, columns: Sequence[Column]) -> Iterator[str]:
    """Add a sheet with its header; -> the rows below it."""
    sheet = book.create_sheet(name)
    sheet.freeze_panes = "B2"
    widths = [_width(values) for values in columns]
    formats = [_number_format(values) for values in columns]
    looks: dict[str, Any] = {}  # of columns, by format: openpyxl compares whole styles for each
    for at, (width, number) in enumerate(zip(widths, formats, strict=True), start=1):
        column = sheet.column_dimensions[get_column_letter(at)]
        column.width = width
        if number in looks:
            column._style = looks[number]
        else:
            column.number_format = number or "General"
            looks[number] = column._style
    # LibreOffice does not grow a row for wrapped text by itself.
    lines = [len(wrap(values.name, width - 2)) for values, width in zip(columns, widths, strict=True)]
    sheet.row_dimensions[1].height = LINE_POINTS * max(1, *lines, 1)
    sheet.append(_header(sheet, [values.name for values in columns]))
    if columns:
        sheet.auto_filter.ref = f"A1:{get_column_letter(len(columns))}{len(columns[0]) + 1}"
    quoted = _style(sheet, quotePrefix=True)  # Excel then keeps it text when someone edits it
    plain = {number: _style(sheet, number_format=number or "General") for number in dict.fromkeys(formats)}
    styles = [(plain[number], quoted) for number in formats]
    letters = map(get_column_letter, range(1, len(columns) + 1))
    return _rows(map(_cells, letters, columns, formats, styles))


def _rows(columns: Iterable[Iterator[str]]) -> Iterator[str]:
    """The XML of rows, from that of the cells of each column, in blocks of bounded size."""
    rows = zip(*columns, strict=True)
    for first in itertools.count(2, BLOCK_ROWS):
        block = list(itertools.islice(rows, BLOCK_ROWS))
        if not block:
            return
        yield "".join(f'<row r="{at}">{"".join(row)}</row>' for at, row in enumerate(block, start=first))


def _header(sheet: Any, texts: Sequence[str]) -> list[WriteOnlyCell]:
    cells = [WriteOnlyCell(sheet) for _ in texts]
    for cell, text in zip(cells, texts, strict=True):
        # Past `cell.value`, which guesses: a text that begins with = would become a formula, "#N/A" an error.
        cell.data_type, cell._value = "s", _text(text)
    if cells:
        cells[0].font, cells[0].alignment = Font(bold=True), Alignment(vertical="top", wrap_text=True)
    for cell in cells[1:]:
        cell._style = cells[0]._style  # one look for all: openpyxl compares whole styles for each cell
    return cells


def _cells(letter: str, column: Column, number: str, styles: tuple[str, str]) -> Iterator[str]:
    """The XML of the cells of one column; nothing for a missing value. styles: plain, and like a formula.

    number: the format of a column of numbers, "" for anything else.
    """
    values, start = column.values, f'<c r="{letter}'
    if not number or (values.dtype.kind == "O" and column.is_integer):
        return _mixed_cells(start, values, styles)
    value_of = f'"{styles[0]} t="n"><v>'
    if values.dtype.kind in "iu":
        return (f"{start}{at}{value_of}{n}</v></c>" for at, n in enumerate(values.tolist(), start=2))
    # repr, because openpyxl would keep 16 digits of the 17 that a double may need.
    return (
        f"{start}{at}{value_of}{x!r}</v></c>" if x - x == 0 else ""  # neither NaN nor infinite
        for at, x in enumerate(values.astype(float).tolist(), start=2)
    )


def _mixed_cells(start: str, values: np.ndarray, styles: tuple[str, str]) -> Iterator[str]:
    known: dict[str, str] = {}  # most texts come again
    for at, value in enumerate(values.tolist(), start=2):
        end = known.get(value) if type(value) is str else None
        if end is None:
            end = _content(value, styles)
            if type(value) is str and len(known) < MOST_KNOWN:
                known[value] = end
        yield f"{start}{at}{end}" if end else ""


def _content(value: object, styles: tuple[str, str]) -> str:
    """The XML of a cell after its place; "" if the value is missing."""
    plain, quoted = styles
    found = _anything(value)
    if found is None:
        return ""
    if found[0] != "s":
        return f'"{plain} t="{found[0]}"><v>{found[1]}</v></c>'
    text = escape(found[1], quote=False)
    space = ' xml:space="preserve"' if text != text.strip() else ""
    style = quoted if str(value)[:1] in _FORMULA else plain
    inner = f"><is><t{space}>{text}</t></is></c>" if text else " />"
    return f'"{style} t="inlineStr"{inner}'


def _style(sheet: Any, **look: Any) -> str:
    """The attribute of a cell that looks so; nothing for the usual look."""
    cell = WriteOnlyCell(sheet)
    for name, value in look.items():
        setattr(cell, name, value)
    return f' s="{cell.style_id}"' if cell.has_style else ""


def _anything(value: object) -> tuple[str, str] | None:
    """A value of a column that is not all numbers; None if it is missing."""
    if type(value) is str:
        return "s", _text(value)
    if is_missing(value):
        return None
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool):
        return "b", str(int(value))
    # A double holds integers up to 2^53: longer ones (ids, absolute nanoseconds) stay exact as text.
    if isinstance(value, (int, float)) and abs(value) < 2**53:
        return "n", repr(value)
    return "s", _text(str(value))


def _text(text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        text = text[: MOST_CHARACTERS - len(CUT)] + CUT
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return _NOT_XML.sub(lambda found: f"_x{ord(found[0]):04X}_", text)


def _number_format(column: Column) -> str:
    """Four significant digits of the largest value, as on the page; integers have no decimals; "": text."""
    if not column.is_numeric:
        return ""
    finite = np.abs(column.finite())
    largest = float(finite.max()) if len(finite) else 0.0
    if column.is_integer and largest >= 2**53:
        return ""
    whole = not largest or bool(np.all(finite == np.round(finite)))
    decimals = 0 if whole else int(np.clip(3 - np.floor(np.log10(largest)), 0, DECIMALS))
    return "#,##0" + ("." + "0" * decimals if decimals else "")


def _width(column: Column) -> int:
    sample = column.values[:SAMPLED_ROWS].tolist()
    cells = [12] if column.is_numeric else [len(str(value)) for value in sample]
    longest_word = max(len(word) for word in column.name.split(" "))
    return min(WIDEST, max(8, longest_word, *cells) + 2)


def _parts(columns: Sequence[Column]) -> Iterator[list[Column]]:
    num_rows = len(columns[0]) if columns else 0
    for start in range(0, max(num_rows, 1), MOST_ROWS):
        yield [one.part(start, start + MOST_ROWS) for one in columns]


def _sheet_name(wanted: str, taken: set[str]) -> str:
    """Excel allows 31 characters, some not at all, and compares without case."""
    clean = _NOT_XML.sub("_", _BAD_IN_NAME.sub("_", wanted)).strip("'")[:31] or "sheet"
    name, number = clean, 1
    while name.lower() in taken:
        number += 1
        ending = f" ({number})"
        name = clean[: 31 - len(ending)] + ending
    taken.add(name.lower())
    return name
