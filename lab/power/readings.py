"""Power logs as the vendors' tools write them, one series of readings per GPU.

Read: `nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv[,nounits]` in any order of columns,
nvidia-smi dmon (-o T or DT), amd-smi and rocm-smi CSV, amd-smi JSON, and the published timestamp,gpu,power_w.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Any, NamedTuple

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
_LIMITS = ("power.limit", "power_limit", "enforced.power.limit", "max graphics package power")
_SCALES = {"w": 1.0, "watt": 1.0, "watts": 1.0, "mw": 1e-3, "uw": 1e-6, "kw": 1e3}
_UNIT = re.compile(r"[\[(]\s*(\w+)\s*[\])]\s*$|[._ ](w|mw|uw|kw|watts)$", re.IGNORECASE)
_CARD = re.compile(r"card\d+\Z")
_VALUE = re.compile(r"^\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(\w*)\s*$")
_DATED = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%Y%m%d %H:%M:%S")
_TIMES_OF_DAY = ("%H:%M:%S.%f", "%H:%M:%S")
_EPOCH_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))  # numbers above the first count so many per second
_DAY_S = 86400.0
# Without a column of GPUs: with this share of gaps far below the usual, several GPUs share a sample.
_BURST_SHARE, _BURST_GAP = 0.3, 0.25
AVERAGED_S = 1.0  # NVML's averaged power on Ampere and newer, except GA100 (NVML documentation, power usage)


class Readings(msgspec.Struct, kw_only=True):
    """One GPU's readings, in the order of the log; power_w is NaN where the tool printed that it has none.

    t_s: seconds since the epoch, or since midnight where the log has no date. rows: the log's line of each.
    names: what the log calls this GPU (index, UUID). averaged_s: the window that each reading averages over,
    0 for what the sensor reads at that time. resolution_s: of the times, where they are whole seconds.
    limit_w: the board's power limit, if the log has it. zones: time zones of its times.
    """

    gpu: str
    t_s: list[float] = []
    power_w: list[float] = []
    rows: list[int] = []
    names: set[str] = set()
    averaged_s: float = 0.0
    resolution_s: float = 0.0
    limit_w: float | None = None
    zones: set[tzinfo] = set()


def read_power_log(path: Path) -> dict[str, Readings]:
    """Read a log; GPU (its index or UUID as written, "" without such a column) -> its readings.

    Raises BadDataError with the line for a file without a column of times or power, for unreadable times, for
    a unit that is not one of power, and for rows of several GPUs that the log does not tell apart.
    """
    rows = list(_rows(_text_of(path), path))
    if not rows:
        raise BadDataError("this power log has no rows", location=path)
    columns = _columns_of([row for _, row in rows], path)
    series: dict[str, Readings] = {}
    for line, row in rows:
        time = _row_time(row, columns, f"{path}:{line}")
        if time is None or columns.power not in row:
            continue  # torn, or a message of the tool: what it does not cover is a gap
        gpus = [_gpu_name(row[name]) for name in columns.gpus if row.get(name) not in (None, "")]
        readings = series.setdefault(gpus[0] if gpus else "", Readings(gpu=gpus[0] if gpus else ""))
        readings.names.update(gpus)
        seconds, zone = time
        readings.zones |= {zone} if zone else set()
        if columns.of_day and readings.t_s and seconds < readings.t_s[-1] % _DAY_S - _DAY_S / 2:
            readings.t_s = [t - _DAY_S for t in readings.t_s]  # past midnight
        readings.t_s.append(seconds)
        readings.power_w.append(_watts(row[columns.power], columns.scale))
        readings.rows.append(line)
        limit_w = _watts(row.get(columns.limit), columns.limit_scale)
        readings.limit_w = readings.limit_w if math.isnan(limit_w) else max(limit_w, readings.limit_w or 0.0)
    for readings in series.values():
        readings.averaged_s = AVERAGED_S if "average" in columns.power.lower() else 0.0
        _spread_whole_seconds(readings)
    if "" in series and _has_bursts(series[""].t_s):
        raise BadDataError(
            "several rows per sample, and no column says which GPU they are of",
            location=path,
            fix="log the column index or uuid, too",
        )
    if not series:
        raise BadDataError("no row of this power log is whole", location=path)
    return series


def _text_of(path: Path) -> str:
    data = path.read_bytes()
    try:  # PowerShell redirects into UTF-16
        return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadDataError(f"not a power log: {error}", location=path) from error


def _spread_whole_seconds(readings: Readings) -> None:
    """Readings of one whole second lie in it one after the other: their times are cut, not equal."""
    times = readings.t_s
    counts = Counter(times)
    if any(t != math.floor(t) for t in counts) or len(counts) == len(times):
        return
    num_seen: Counter[float] = Counter()
    for index, second in enumerate(times):
        times[index] = second + (num_seen[second] + 0.5) / counts[second]
        num_seen[second] += 1
    readings.resolution_s = 1.0


def _has_bursts(times: Sequence[float]) -> bool:
    gaps = sorted(abs(later - earlier) for earlier, later in itertools.pairwise(times))
    usual_s = gaps[9 * len(gaps) // 10] if gaps else 0.0
    return sum(gap < _BURST_GAP * usual_s for gap in gaps) > _BURST_SHARE * len(gaps)


def window_of(start: str, end: str, series: Mapping[str, Readings]) -> tuple[float, float]:
    """Return the two times of a window, written as in the log, on the log's clock. Raises BadDataError.

    A time without a zone is in the log's; one of day that is before the begin is on the next day.
    """
    zones = {zone for readings in series.values() for zone in readings.zones}
    zone = min(zones, key=str) if len(zones) == 1 else None
    (start_s, start_zone), (end_s, end_zone) = (_time_of(text, zone) for text in (start, end))
    if len(zones) > 1 and not (start_zone and end_zone):
        raise BadDataError(
            f"the log's times have {len(zones)} time zones, and the window has none: {start}",
            fix="write the window with its zone, as in 2026-03-04T10:15:30+01:00",
        )
    longest_s = max(max(gpu.t_s) - min(gpu.t_s) for gpu in series.values())
    if ":" in start and start_s < _DAY_S < longest_s:
        raise BadDataError(
            f"this log is longer than a day, and its times have no date: {start} is in it twice",
            fix="log dates, too: nvidia-smi dmon -o DT",
        )
    if (start_zone or end_zone) and not zones:
        raise BadDataError(
            f"the window has a time zone, and the log's times have none: {start}",
            fix="write the window as the log does",
        )
    if end_s < start_s < _DAY_S and end_s + _DAY_S / 2 < start_s:
        start_s -= _DAY_S
    return start_s, end_s


def seconds_of(text: str) -> float:
    """Return seconds since the epoch of a time as power logs write it; a time of day counts from midnight.

    Times without a zone are taken as UTC: only differences within one log count. Raises BadDataError.
    """
    return _time_of(text, None)[0]


def _time_of(text: str, zone: tzinfo | None) -> tuple[float, tzinfo | None]:
    """Return seconds and the zone that was written, or `zone` where none was."""
    text = text.strip()
    with contextlib.suppress(ValueError):
        number = float(text)  # since the epoch, as amd-smi writes it
        return number / next((unit for least, unit in _EPOCH_UNITS if number > least), 1.0), zone
    for layout in (*_DATED, *_TIMES_OF_DAY, ""):
        try:
            when = (
                datetime.strptime(text, layout)
                if layout
                else datetime.fromisoformat(text.replace("Z", "+00:00"))
            )
        except ValueError:
            continue
        if layout in _TIMES_OF_DAY:
            return when.hour * 3600.0 + when.minute * 60 + when.second + when.microsecond / 1e6, None
        if when.tzinfo:
            return when.timestamp(), when.tzinfo
        return when.replace(tzinfo=zone or timezone.utc).timestamp(), zone
    raise BadDataError(
        f"unparseable timestamp: {text!r}", fix="write it as the log does: 2026/03/04 09:15:30.250"
    )


class _Columns(NamedTuple):
    time: str
    power: str
    scale: float
    gpus: tuple[str, ...]
    limit: str
    limit_scale: float
    date: str
    of_day: bool


def _rows(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The log's rows with the number of their line."""
    start, lines = text.lstrip(), text.splitlines()
    if start.startswith(("{", "[")):
        yield from _json_rows(text, path)
    elif start.startswith("#"):
        yield from _dmon_rows(lines)
    elif lines:
        delimiter = max(",;\t", key=lines[0].count)
        # Apart: a quote that a heading never closes would swallow the file.
        heading, rows = (
            csv.reader(part, delimiter=delimiter, skipinitialspace=True) for part in (lines[:1], lines[1:])
        )
        header = [name.strip() for name in next(heading)]
        for line, cells in enumerate(rows, start=2):
            if delimiter == ";":  # written where the comma is the decimal point
                cells = [cell.replace(",", ".") for cell in cells]
            if cells and [cell.strip() for cell in cells] != header:  # a tool that was started again
                yield line, dict(zip(header, cells, strict=False))


def _dmon_rows(lines: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """nvidia-smi dmon repeats two lines of headings: names and units; `--format csv` has commas."""
    header: list[str] = []
    for line, text in enumerate(lines, start=1):
        words = text.replace(",", " ").split()
        if words and words[0].startswith("#"):
            names = [word.strip("#").lower() for word in words if word != "#"]
            header = names if "pwr" in names else header
        elif words:
            yield line, dict(zip(header, words, strict=False))


def _json_rows(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """amd-smi's JSON: a list of GPUs per sample; one document, or one after another."""
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        try:
            document, end = decoder.raw_decode(text, position)
        except ValueError as error:
            raise BadDataError(f"not JSON: {error}", location=path) from error
        line = text.count("\n", 0, position) + 1
        yield from ((line, _flat(entry)) for entry in _entries(document))
        position = end + len(text[end:]) - len(text[end:].lstrip(" \t\r\n,"))


def _entries(document: Any) -> Iterator[Mapping[str, Any]]:
    """The objects of single GPUs: in lists, in an object per GPU (rocm-smi), or one alone."""
    if isinstance(document, list):
        for item in document:
            yield from _entries(item)
    elif isinstance(document, dict):
        cards = {
            name: card for name, card in document.items() if _CARD.match(name) and isinstance(card, dict)
        }
        nested = [value for value in document.values() if isinstance(value, list)]
        if cards:
            shared = {name: value for name, value in document.items() if name not in cards}
            yield from ({**shared, "card": name, **card} for name, card in cards.items())
        elif nested and "power" not in document:
            yield from _entries(nested)
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


def _columns_of(rows: Sequence[Mapping[str, Any]], path: Path) -> _Columns:
    """The columns of a log: of several of power the best one that has any reading."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    bare = {_UNIT.sub("", name).strip().lower(): name for name in names}
    bare |= {name.lower(): name for name in names}
    times, powers, limits, gpus = (
        list(dict.fromkeys(bare[name] for name in words if name in bare))
        for words in (_TIMES, _POWERS, _LIMITS, _GPUS)
    )
    if not times or not powers:
        missing = "power" if times else "time"
        raise BadDataError(
            f"this power log has no column of {missing}: {', '.join(map(str, names))}",
            location=path,
            fix="nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv -lms 100 > power.csv",
        )
    scales = {name: _scale_of(name, path) for name in powers}
    power = next(
        (name for name in powers if any(_watts(row.get(name), scales[name]) > 0 for row in rows)), powers[0]
    )
    time, limit, date = times[0], limits[0] if limits else "", bare.get("date", "")
    return _Columns(
        time=time,
        power=power,
        scale=scales[power],
        gpus=tuple(name for name in gpus if name != power),
        limit=limit,
        limit_scale=_scale_of(limit, path),
        date=date if date != time else "",
        of_day=not date and re.fullmatch(r"\s*\d+:\d+:[\d.]+\s*", str(rows[0].get(time))) is not None,
    )


def _scale_of(name: str, path: Path) -> float:
    """Return watts per unit of a column. Raises BadDataError for a unit that is not one of power."""
    unit = _UNIT.search(name)
    if unit is None:
        return 1.0
    text = unit.group(1) or unit.group(2)
    if text.lower() not in _SCALES:
        raise BadDataError(f"unknown unit of power: {text!r} of the column {name!r}", location=path)
    return _SCALES[text.lower()]


def _row_time(row: Mapping[str, Any], columns: _Columns, location: str) -> tuple[float, tzinfo | None] | None:
    """Seconds and zone of a row; None for a row that ends before its time, or is a message.

    Raises BadDataError where the row has its power and an unreadable time.
    """
    text = str(row.get(columns.time) or "").strip()
    if columns.date:
        text = f"{row.get(columns.date, '')} {text}"
    try:
        return _time_of(text, None)
    except BadDataError as error:
        if columns.power not in row:
            return None
        raise BadDataError(error.problem, location=location, fix=error.fix) from error


def _watts(value: Any, scale: float) -> float:
    """Return watts of a cell; NaN for `[N/A]`, `-`, and readings that cannot be power."""
    match = _VALUE.match(str(value))
    if not match:
        return math.nan
    unit = match.group(2).lower()
    watts = float(match.group(1)) * (_SCALES.get(unit, math.nan) if unit else scale)
    return watts if watts > 0 else math.nan


def _gpu_name(value: Any) -> str:
    return str(value).strip().removeprefix("card").removeprefix("GPU:").strip()


def select_gpu(series: Mapping[str, Readings], gpu: str | None, path: Path) -> Sequence[Readings]:
    """Return the readings of one GPU, or of all. Raises BadDataError for a GPU that is not in the log."""
    if gpu is None:
        return [series[name] for name in sorted(series)]
    matches = [readings for readings in series.values() if _gpu_name(gpu) in readings.names]
    if not matches:
        names = ", ".join(sorted(name for name in series if name)) or "none is named"
        raise BadDataError(f"no GPU {gpu} in this power log", location=path, fix=f"GPUs in it: {names}")
    return matches
