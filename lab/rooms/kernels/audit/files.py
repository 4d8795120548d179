"""Files of a published measurement: CSV, JSON objects, timestamps."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.errors import BadDataError
from lab.rooms.kernels.catalogue.execution_trace import read_json_bytes


def read_counts(path: Path) -> list[tuple[str, int]]:
    """Kernel names and counts of a counts CSV. Raises BadDataError."""
    found = []
    for number, row in enumerate(csv_rows(path, ("kernel_name", "count")), start=2):
        if not row["count"].strip().isdecimal():
            raise BadDataError(f"not a count: {row['count']!r}", location=f"{path}:{number}")
        found.append((row["kernel_name"], int(row["count"])))
    return found


def csv_rows(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """The columns `needed` of every row, "" for an empty cell. Raises BadDataError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise BadDataError(f"this CSV has no column {missing[0]!r}", location=path)
            rows = [{name: row.get(name) or "" for name in needed} for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadDataError(f"not a CSV file: {error}", location=path) from error
    if not rows:
        raise BadDataError("this CSV has no rows", location=path)
    return rows


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object, gzip or plain; None without the file. Raises BadDataError."""
    if not path.is_file():
        return None
    try:
        found = json.loads(read_json_bytes(path, path.name))
    except ValueError as error:
        raise BadDataError(f"not JSON: {error}", location=path) from error
    if not isinstance(found, dict):
        raise BadDataError("not a JSON object", location=path)
    return found
