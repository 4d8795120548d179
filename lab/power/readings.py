"""Power logs as the vendors' tools write them, one series of readings per GPU.

Read: `nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv[,nounits]` in any order of columns,
nvidia-smi dmon (-o T or DT), amd-smi and rocm-smi CSV, amd-smi JSON, and the published timestamp,gpu,power_w.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError

_TIMES = ("timestamp", "time", "datetime")
_GPUS = ("index", "gpu", "gpu_index", "gpu_id", "device", "uuid", "gpu_uuid", "pci.bus_id", "idx", "card")
# Names of power columns, the best first: what the sensor reads now before what it averages.
_POWERS = (
    "power.draw.instant",
    "power.draw",
    "power_w",
    "power_mw",
    "power",
    "pwr",
    "socket_power",
    "current_socket_power",
    "current socket graphics package power",
    "power_usage",
    "power.draw.average",
    "average_socket_power",
    "average graphics package power",
)
_SCALES = {"w": 1.0, "watts": 1.0, "mw": 1e-3, "uw": 1e-6}
_UNIT = re.compile(r"[\[(]\s*(\w+)\s*[\])]\s*$|[._ ](w|mw|uw|watts)$", re.IGNORECASE)
_VALUE = re.compile(r"^\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(\w*)\s*$")
_FORMATS = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%Y%m%d %H:%M:%S", "%H:%M:%S.%f", "%H:%M:%S")
AVERAGED_S = 1.0  # NVML's averaged power on Ampere and newer, except GA100 (NVML documentation, power usage)


class Readings(msgspec.Struct, kw_only=True):
    """One GPU's readings, in the order of the log; power_w is NaN where the tool printed that it has none.

    t_s: seconds since the epoch, or since midnight where the log has no date. rows: the log's line of each.
    averaged_s: the window that each reading averages over, 0 for what the sensor reads at that time.
    """

    gpu: str
    t_s: list[float] = []
    power_w: list[float] = []
    rows: list[int] = []
    averaged_s: float = 0.0


def read_power_log(path: Path) -> dict[str, Readings]:
    """Read a log; GPU (its index or UUID as written, "" without such a column) -> its readings.

    Raises BadDataError with the line for a file without a column of times or power, and for unreadable times.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadDataError(f"not a power log: {error}", location=path) from error
    series: dict[str, Readings] = {}
    for line, row in _rows(text, path):
        columns = _columns_of(row, path)
        gpu = _gpu_name(row.get(columns.gpu, "")) if columns.gpu else ""
        averaged_s = AVERAGED_S if "average" in columns.power.lower() else 0.0
        readings = series.setdefault(gpu, Readings(gpu=gpu, averaged_s=averaged_s))
        readings.t_s.append(_row_time(row, columns, f"{path}:{line}"))
        readings.power_w.append(_watts(row.get(columns.power), columns.scale))
        readings.rows.append(line)
    if not series:
        raise BadDataError("this power log has no rows", location=path)
    return series


def seconds_of(text: str) -> float:
    """Return seconds since the epoch of a time as power logs write it; a time of day counts from midnight.

    Times without a zone are taken as UTC: only differences within one log count. Raises BadDataError.
    """
    text = text.strip()
    try:
        return float(text)  # seconds since the epoch, as amd-smi writes them
    except ValueError:
        pass
    for layout in _FORMATS:
        try:
            when = datetime.strptime(text, layout)
        except ValueError:
            continue
        if when.year == 1900:
            return when.hour * 3600.0 + when.minute * 60 + when.second + when.microsecond / 1e6
        return when.replace(tzinfo=timezone.utc).timestamp()
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadDataError(
            f"unparseable timestamp: {text!r}", fix="write it as the log does: 2026/03/04 09:15:30.250"
        ) from error
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


class _Columns(msgspec.Struct, frozen=True):
    time: str
    power: str
    gpu: str
    scale: float
    date: str = ""


def _rows(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The log's rows with the number of their line."""
    start = text.lstrip()
    if start.startswith(("{", "[")):
        yield from _json_rows(text, path)
    elif start.startswith("#"):
        yield from _dmon_rows(text)
    else:
        lines = text.splitlines()
        header = [name.strip() for name in next(csv.reader(lines[:1]), [])]
        for line, cells in enumerate(
            csv.reader(io.StringIO("\n".join(lines[1:])), skipinitialspace=True), start=2
        ):
            if cells and [cell.strip() for cell in cells] != header:  # a tool that was started again
                yield line, dict(zip(header, cells, strict=False))


def _dmon_rows(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """nvidia-smi dmon repeats two lines of headings: names and units."""
    header: list[str] = []
    for line, words in enumerate((text_line.split() for text_line in text.splitlines()), start=1):
        if words and words[0].startswith("#"):
            names = [word.strip("#").lower() for word in words if word != "#"]
            header = names if "pwr" in names else header
        elif words:
            yield line, dict(zip(header, words, strict=False))


def _json_rows(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """amd-smi's JSON: a list of GPUs per sample, or one such list per line."""
    documents: list[tuple[int, Any]] = []
    try:
        documents = [(1, json.loads(text))]
    except ValueError:
        try:
            documents = [(n, json.loads(line)) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        except ValueError as error:
            raise BadDataError(f"not JSON: {error}", location=path) from error
    for line, document in documents:
        yield from ((line, _flat(entry)) for entry in _entries(document))


def _entries(document: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, list):
        for item in document:
            yield from _entries(item)
    elif isinstance(document, dict):
        nested = [value for value in document.values() if isinstance(value, list)]
        if nested and "power" not in document:
            for value in nested:
                yield from _entries(value)
        else:
            yield document


def _flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Lift {"power": {"socket_power": {"value": 90, "unit": "W"}}} to {"socket_power": "90 W"}."""
    row: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, dict) and "value" in value:
            row[name] = f"{value['value']} {value.get('unit', '')}"
        elif isinstance(value, dict):
            row |= _flat(value)
        else:
            row[name] = value
    return row


def _columns_of(row: Mapping[str, Any], path: Path) -> _Columns:
    bare = {_UNIT.sub("", name).strip().lower(): name for name in row} | {name.lower(): name for name in row}
    time = next((bare[name] for name in _TIMES if name in bare), "")
    power = next((bare[name] for name in _POWERS if name in bare), "")
    if not time or not power:
        lacking = "time" if not time else "power"
        raise BadDataError(
            f"this power log has no column of {lacking}: {', '.join(map(str, row))}",
            location=path,
            fix="nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv -lms 100 > power.csv",
        )
    unit = _UNIT.search(power)
    scale = _SCALES.get((unit.group(1) or unit.group(2)).lower(), 1.0) if unit else 1.0
    gpu = next((bare[name] for name in _GPUS if name in bare and bare[name] != power), "")
    return _Columns(time=time, power=power, gpu=gpu, scale=scale, date=bare.get("date", ""))


def _row_time(row: Mapping[str, Any], columns: _Columns, location: str) -> float:
    text = str(row.get(columns.time) or "").strip()
    if columns.date and columns.date != columns.time:
        text = f"{row[columns.date]} {text}"
    try:
        return seconds_of(text)
    except BadDataError as error:
        raise BadDataError(error.problem, location=location, fix=error.fix) from error


def _watts(value: Any, scale: float) -> float:
    """Return watts of a cell; NaN for `[N/A]`, `-`, and readings that cannot be power."""
    match = _VALUE.match(str(value))
    if not match:
        return math.nan
    watts = float(match.group(1)) * (
        _SCALES.get(match.group(2).lower(), math.nan) if match.group(2) else scale
    )
    return watts if watts > 0 else math.nan


def _gpu_name(value: Any) -> str:
    return str(value).strip().removeprefix("card").removeprefix("GPU:").strip()


def select_gpu(series: Mapping[str, Readings], gpu: str | None, path: Path) -> Sequence[Readings]:
    """Return the readings of one GPU, or of all. Raises BadDataError for a GPU that is not in the log."""
    if gpu is None:
        return [series[name] for name in sorted(series)]
    if gpu not in series:
        names = ", ".join(sorted(series)) or "none"
        raise BadDataError(f"no GPU {gpu} in this power log", location=path, fix=f"GPUs in it: {names}")
    return [series[gpu]]
