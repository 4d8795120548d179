"""Audits of kernel counts and of CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from lab.core.words import plural
from lab.errors import BadDataError
from lab.rooms.kernels.audit.check import Check, make_check

RUNTIME_CALL = re.compile(r"(cuda|hip|cu)[A-Z]\w*\Z")


def no_runtime_calls(counts: Sequence[tuple[str, int]]) -> Check:
    """Counts of kernels must not include calls of the CUDA or HIP runtime."""
    calls = sum(count for name, count in counts if is_runtime_call(name))
    whole = sum(count for _, count in counts)
    launches = plural(whole - calls, "launch")
    what = f"{launches}, no runtime calls"
    if calls:
        what = f"{calls:,} of {whole:,} are runtime calls on the host, which leaves {launches}"
    return make_check(
        "counts are of kernels", calls > 0, what, counted=whole, runtime_calls=calls, launches=whole - calls
    )


def is_runtime_call(name: str) -> bool:
    """`cudaLaunchKernel`, `hipMemcpyAsync`: one word with a capital after the API's prefix."""
    return bool(RUNTIME_CALL.match(name.strip()))


def valid_csv(path: Path) -> Check:
    """Whether a standard CSV reader gets the columns that the header promises."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadDataError(f"not a CSV file: {error}", location=path) from error
    header, body = (rows[0], rows[1:]) if rows else ([], [])
    torn = sum(_is_torn(row, len(header)) for row in body)
    what = f"{plural(len(body), 'row')} read as written"
    if torn:
        rows_torn = f"{torn:,} of {plural(len(body), 'row')} torn"
        what = f"{rows_torn}: quotes are escaped by a backslash, which CSV does not allow"
    return make_check(f"{path.name} is CSV", torn > 0, what, rows=len(body), torn=torn)


def _is_torn(row: list[str], columns: int) -> bool:
    return len(row) != columns or '\\"' in "".join(row) or any(cell.endswith("\\") for cell in row)
