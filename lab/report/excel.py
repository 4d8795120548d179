"""DataFrames as an Excel workbook: quick to write, safe to open, the same bytes for the same tables.

A report over ranks has a million cells. openpyxl takes 12 us per cell, XlsxWriter 8, this 1.3: the few parts
of Office Open XML that a table needs (ECMA-376 part 1, section 18.3) are written as text, row by row.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from html import escape  # xml.sax would import urllib and ssl
from pathlib import Path
from textwrap import wrap

import numpy as np
import pandas as pd

from lab.core.files import write_atomic
from lab.report.tables import is_numeric

MOST_ROWS = 1_048_575  # Excel's limit, less the header
MOST_CHARACTERS = 32_767  # of one cell
WIDEST, SAMPLED_ROWS = 60, 100
LINE_POINTS = 15  # the height of one line of text
ROWS_AT_ONCE = 4096
CUT = " … (cut: Excel holds no more in a cell)"
# A fixed date, so that the same tables give the same file.
WRITTEN = (1980, 1, 1, 0, 0, 0)
DECIMALS = 6
_HEADER, _QUOTED, _FIRST_NUMBER = 1, 2, 3  # styles, by their index in _styles
_BAD_IN_NAME = re.compile(r"[\[\]:*?/\\]")
# What XML cannot hold, and text that reads like its escape, is written as _xHHHH_ (ECMA-376, 22.9.2.19).
_NOT_XML = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")

_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def write_workbook(sheets: Mapping[str, pd.DataFrame], path: Path) -> Path:
    """Write each DataFrame as a sheet of `path`, atomically: header frozen and filterable, numbers formatted.

    Text is always text: a name that starts with =, +, - or @ is never a formula. A missing value is an empty
    cell, a boolean a boolean. Rows past Excel's limit continue in a further sheet; cells past it are cut and
    say so. Raises ValueError without sheets, StorageError where the file cannot be written.
    """
    if not sheets:
        raise ValueError("a workbook needs at least one sheet")
    taken: set[str] = set()
    parts = [(_sheet_name(name, taken), part) for name, frame in sheets.items() for part in _parts(frame)]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as package:
        for name, text in _package_parts(parts).items():
            _add(package, name, [text])
        for number, (_, part) in enumerate(parts, start=1):
            _add(package, f"xl/worksheets/sheet{number}.xml", _sheet(part))
    write_atomic(path, buffer.getvalue())
    return path


def _sheet(frame: pd.DataFrame) -> Iterator[str]:
    columns = [frame.iloc[:, at] for at in range(frame.shape[1])]
    letters = [_letters(at) for at in range(len(columns))]
    styles = [_number_style(values) for values in columns]
    widths = [_width(values) for values in columns]
    yield f'{_XML}<worksheet {_MAIN}><sheetViews><sheetView workbookViewId="0"><pane xSplit="1" ySplit="1" '
    yield 'topLeftCell="B2" activePane="bottomRight" state="frozen"/></sheetView></sheetViews>'
    if columns:
        yield "<cols>"
        for at, width in enumerate(widths, start=1):
            yield f'<col min="{at}" max="{at}" width="{width}" style="{styles[at - 1]}" customWidth="1"/>'
        yield "</cols>"
    header = zip(letters, frame.columns, strict=True)
    cells = "".join(f'<c r="{letter}1"{_text_rest(str(name), _HEADER)}' for letter, name in header)
    # LibreOffice does not grow a row for wrapped text by itself.
    lines = max(
        (len(wrap(str(values.name), width - 2)) for values, width in zip(columns, widths, strict=True)),
        default=1,
    )
    yield f'<sheetData><row r="1" ht="{LINE_POINTS * max(lines, 1)}" customHeight="1">{cells}</row>'
    for start in range(0, len(frame), ROWS_AT_ONCE):
        yield _rows(
            [values.iloc[start : start + ROWS_AT_ONCE] for values in columns], letters, styles, start + 2
        )
    yield "</sheetData>"
    if columns:
        yield f'<autoFilter ref="A1:{letters[-1]}{len(frame) + 1}"/>'
    yield "</worksheet>"


def _rows(columns: list[pd.Series], letters: list[str], styles: list[int], first: int) -> str:
    how = zip(columns, letters, styles, strict=True)
    cells = [_cells(values, letter, style, first) for values, letter, style in how]
    rows = zip(*cells, strict=True)
    return "".join(f'<row r="{number}">{"".join(row)}</row>' for number, row in enumerate(rows, start=first))


def _cells(values: pd.Series, letter: str, style: int, first: int) -> list[str]:
    """The cells of one column, "" for a missing value."""
    numbered = enumerate(values.tolist(), start=first)
    if style and isinstance(values.dtype, np.dtype) and values.dtype.kind in "iu":
        return [f'<c r="{letter}{row}" s="{style}"><v>{value}</v></c>' for row, value in numbered]
    if style:
        return [
            f'<c r="{letter}{row}" s="{style}"><v>{float(value)!r}</v></c>'
            if isinstance(value, (int, float)) and abs(value) < np.inf
            else ""
            for row, value in numbered
        ]
    rest_of = _RestOfCell()
    return [
        f'<c r="{letter}{row}"{rest_of[value]}'
        if type(value) is str
        else _other_cell(f"{letter}{row}", value)
        for row, value in numbered
    ]


class _RestOfCell(dict[str, str]):
    """Text -> the XML of its cell after the reference, made once per text, because names repeat."""

    def __missing__(self, text: str) -> str:
        self[text] = rest = _text_rest(text, _QUOTED if text[:1] in tuple("=+-@\t\r") else 0)
        return rest


def _other_cell(reference: str, value: object) -> str:
    """A value of a column that is not all numbers; "" if it is missing."""
    if value is None or value is pd.NA or value != value:
        return ""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool):
        return f'<c r="{reference}" t="b"><v>{int(value)}</v></c>'
    # A double holds integers up to 2^53: longer ones (ids, absolute nanoseconds) stay exact as text.
    if isinstance(value, (int, float)) and abs(value) < 2**53:
        return f'<c r="{reference}"><v>{value!r}</v></c>'
    return f'<c r="{reference}"{_RestOfCell()[str(value)]}'


def _text_rest(text: str, style: int) -> str:
    if not text:
        return "/>"
    if len(text) > MOST_CHARACTERS:
        text = text[: MOST_CHARACTERS - len(CUT)] + CUT
    space = "" if text.strip() == text else ' xml:space="preserve"'
    return f' s="{style}" t="inlineStr"><is><t{space}>{_plain(text)}</t></is></c>'


def _plain(text: str) -> str:
    if _NOT_XML.search(text):
        text = _NOT_XML.sub(lambda found: f"_x{ord(found[0]):04X}_", text)
    return escape(text, quote=False)


def _number_style(values: pd.Series) -> int:
    """Four significant digits of the largest value, as on the page; integers without decimals; 0 for text."""
    if not is_numeric(values):
        return 0
    finite = values.to_numpy(dtype=float, na_value=np.nan)
    finite = np.abs(finite[np.isfinite(finite)])
    largest = float(finite.max()) if len(finite) else 0.0
    if pd.api.types.is_integer_dtype(values) and largest >= 2**53:
        return 0
    whole = not largest or bool(np.all(finite == np.round(finite)))
    return _FIRST_NUMBER + (0 if whole else int(np.clip(3 - np.floor(np.log10(largest)), 0, DECIMALS)))


def _width(values: pd.Series) -> int:
    sample = values.head(SAMPLED_ROWS)
    cells = [12] if is_numeric(values) else [len(str(value)) for value in sample]
    longest_word = max(len(word) for word in str(values.name).split(" "))
    return min(WIDEST, max(8, longest_word, *cells) + 2)


def _letters(at: int) -> str:
    return (_letters(at // 26 - 1) if at >= 26 else "") + chr(ord("A") + at % 26)


def _parts(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    for start in range(0, max(len(frame), 1), MOST_ROWS):
        yield frame.iloc[start : start + MOST_ROWS]


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


def _add(package: zipfile.ZipFile, name: str, texts: Iterable[str]) -> None:
    entry = zipfile.ZipInfo(name, WRITTEN)
    entry.compress_type = zipfile.ZIP_DEFLATED
    with package.open(entry, "w") as file:
        for text in texts:
            file.write(text.encode("utf-8", "replace"))


def _package_parts(parts: list[tuple[str, pd.DataFrame]]) -> dict[str, str]:
    """The parts of a workbook besides its sheets."""
    numbers = range(1, len(parts) + 1)
    kinds = "".join(
        f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{_TYPE}.worksheet+xml"/>'
        for n in numbers
    )
    links = "".join(
        f'<Relationship Id="s{n}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{n}.xml"/>'
        for n in numbers
    )
    sheets = "".join(
        f'<sheet name="{escape(name)}" sheetId="{n}" r:id="s{n}"/>'
        for n, (name, _) in enumerate(parts, start=1)
    )
    return {
        "[Content_Types].xml": f'{_XML}<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
        f'<Override PartName="/xl/styles.xml" ContentType="{_TYPE}.styles+xml"/>{kinds}</Types>',
        "_rels/.rels": f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="r1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'{_XML}<workbook {_MAIN} xmlns:r="{_OFFICE}"><sheets>{sheets}</sheets>'
        f"{_filters(parts)}</workbook>",
        "xl/_rels/workbook.xml.rels": f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">{links}'
        f'<Relationship Id="styles" Type="{_OFFICE}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": _styles(),
    }


def _filters(parts: list[tuple[str, pd.DataFrame]]) -> str:
    """Each sheet's filter has a hidden name, without which some programs do not show it."""
    names = []
    for at, (name, frame) in enumerate(parts):
        if frame.shape[1]:
            end = f"${_letters(frame.shape[1] - 1)}${len(frame) + 1}"
            area = escape(f"'{name.replace(chr(39), chr(39) * 2)}'!$A$1:{end}", quote=False)
            names.append(
                f'<definedName name="_xlnm._FilterDatabase" localSheetId="{at}" hidden="1">{area}'
                "</definedName>"
            )
    return f"<definedNames>{''.join(names)}</definedNames>" if names else ""


def _styles() -> str:
    """Style 0 is plain, then the header, text that must stay text, and numbers with 0 to 6 decimals."""
    decimals = range(DECIMALS + 1)
    formats = "".join(
        f'<numFmt numFmtId="{164 + n}" formatCode="#,##0{"." if n else ""}{"0" * n}"/>' for n in decimals
    )
    numbers = "".join(
        f'<xf numFmtId="{164 + n}" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>'
        for n in decimals
    )
    plain = 'numFmtId="0" fillId="0" borderId="0"'
    return (
        f'{_XML}<styleSheet {_MAIN}><numFmts count="{len(decimals)}">{formats}</numFmts>'
        '<fonts count="2"><font><sz val="11"/><name val="Calibri"/></font>'
        '<font><b/><sz val="11"/><name val="Calibri"/></font></fonts>'
        '<fills count="2"><fill><patternFill patternType="none"/></fill>'
        '<fill><patternFill patternType="gray125"/></fill></fills>'
        '<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>'
        f'<cellStyleXfs count="1"><xf {plain} fontId="0"/></cellStyleXfs>'
        f'<cellXfs count="{_FIRST_NUMBER + len(decimals)}"><xf {plain} fontId="0" xfId="0"/>'
        f'<xf {plain} fontId="1" xfId="0" applyFont="1" applyAlignment="1">'
        '<alignment vertical="top" wrapText="1"/></xf>'
        f'<xf {plain} fontId="0" xfId="0" quotePrefix="1"/>{numbers}</cellXfs>'
        '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
    )
