"""nccl-tests: how fast a collective of each size is on this machine, alone."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.core.words import plural
from lab.perfmodel.communication import kind_in

KNOWN_VERSION = 3
_PROGRAM = re.compile(r"([a-z_]{4,40})_perf")
Row = dict[str, Any]
# Rows that say nothing of a transfer, and why.
_DOUBTS: dict[str, Callable[[Row], bool]] = {
    "wrong, left out": lambda row: row["wrong"] > 0,
    "timed on the CPU, which is not a transfer: left out": lambda row: row["timed_on"] == "cpu",
    "without a time: left out": lambda row: not row["time_us"] > 0,
    "without a size: left out": lambda row: row["bytes"] < 0,
}


LONGEST_TEXT = 120


@dataclass
class Evidence:
    """What the files say. rows: for a table; missing: what keeps the answer from being complete.

    speeds: (kind of collective, bytes, ranks) -> us.
    """

    sentences: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    speeds: dict[tuple[str, int, int], float] = field(default_factory=dict)


def number(value: Any) -> float:
    """A finite number, NaN for anything else (texts of numbers count)."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        parsed = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return parsed if math.isfinite(parsed) else math.nan


def integer(value: Any, default: int = -1) -> int:
    """An integer of at most 63 bits, `default` for anything else."""
    parsed = number(value)
    if math.isnan(parsed) or abs(parsed) >= 1 << 62 or parsed != int(parsed):
        return default
    return value if isinstance(value, int) else int(parsed)


def text(value: Any) -> str:
    """Printable and short: files come from outside, and their texts reach a terminal."""
    if not isinstance(value, (str, int, float)):
        return "?"
    return "".join(char if char.isprintable() else "?" for char in str(value)[:LONGEST_TEXT]).strip()


def part(value: Any, name: str) -> dict[str, Any]:
    """A part that should be an object, {} if it is not."""
    inner = value.get(name) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def parts(value: Any, name: str) -> list[dict[str, Any]]:
    """A part that should be a list of objects; anything else in it is left out."""
    inner = value.get(name) if isinstance(value, dict) else None
    return [row for row in inner if isinstance(row, dict)] if isinstance(inner, list) else []


def is_speed(document: Any) -> bool:
    return isinstance(document, dict) and "results" in document and "nccl_version" in document


def add_document(evidence: Evidence, name: str, document: Any) -> None:
    """Add the results in a document: one row per size, in place and out of place.

    Wrong results are named and count for nothing.
    """
    problems = _read(evidence, name, document) if is_speed(document) else ["no results of nccl-tests"]
    evidence.missing += [f"{name}: {problem}" for problem in problems]


def _read(evidence: Evidence, name: str, document: dict[str, Any]) -> list[str]:
    """Add a file's results to the evidence; returns what is missing from them."""
    problems: list[str] = []
    args = document.get("args", "")
    program = _PROGRAM.search(" ".join(map(text, args)) if isinstance(args, list) else text(args))
    collective = program[1].strip("_") if program else ""
    num_ranks = _num_ranks(document, problems)
    version = integer(document.get("version"))
    if version != KNOWN_VERSION:
        problems.append(f"JSON version {version} is not {KNOWN_VERSION}, read as if it were")
    if not collective:
        problems.append("its arguments name no program of nccl-tests")
    results = document["results"] if isinstance(document["results"], list) else []
    if odd := sum(not isinstance(result, dict) for result in results):
        problems.append(f"{plural(odd, 'entry')} of its results are none")
    rows: list[Row] = []
    for result in parts(document, "results"):
        places = [place for place in ("out_of_place", "in_place") if part(result, place)]
        pair = [{**_row(result, place, collective, num_ranks), "file": name} for place in places]
        rows += pair
        # Collectives of a model are out of place as a rule; in place stands for them where it is alone.
        for row in [row for row in pair if not any(is_doubtful(row) for is_doubtful in _DOUBTS.values())][:1]:
            if row["bytes"] > 0 and num_ranks > 0:
                key = kind_in(collective) or collective, row["bytes"], num_ranks
                evidence.speeds[key] = min(row["time_us"], evidence.speeds.get(key, math.inf))
    if not rows:
        return [*problems, "it has no result"]
    evidence.rows += rows
    evidence.sentences.append(f"{name}: {_summary(document, collective, num_ranks, rows)}")
    counts = {doubt: sum(map(is_doubtful, rows)) for doubt, is_doubtful in _DOUBTS.items()}
    if counts["wrong, left out"]:
        wrong = plural(counts["wrong, left out"], "result")
        evidence.sentences.append(f"{name}: {wrong} wrong: do not trust this fabric's data")
    if unchecked := sum(row["wrong"] < 0 for row in rows):
        results_text = plural(unchecked, "result")
        evidence.sentences.append(
            f"{name}: {results_text} not validated: whether data was right is not known"
        )
    problems += [f"{plural(count, 'result')} {doubt}" for doubt, count in counts.items() if count]
    if part(document, "out_of_bounds").get("okay") is False:
        problems.append("nccl-tests says that results are out of bounds")
    if document.get("errors"):
        problems.append("nccl-tests reports errors")
    return problems


def _num_ranks(document: dict[str, Any], problems: list[str]) -> int:
    """Over how many ranks a collective went; 0 if unknown. Groups of ranks run theirs apart."""
    sizes = {*Counter(str(device.get("group", 0)) for device in parts(document, "devices")).values()}
    if not sizes:
        problems.append("it lists no devices, so how many ranks took part is not known")
    elif len(sizes) > 1:
        problems.append("its groups have different numbers of ranks: compared with nothing")
    return sizes.pop() if len(sizes) == 1 else 0


def _row(result: dict[str, Any], place: str, collective: str, num_ranks: int) -> Row:
    values = part(result, place)
    return {
        "collective": collective,
        "bytes": integer(result.get("size")),
        "ranks": num_ranks,
        "dtype": text(result.get("type", "")),
        "redop": text(result.get("redop", "")),
        "place": place,
        "time_us": number(values.get("time", values.get("cpu_time"))),
        "alg_bw_gb_s": number(values.get("alg_bw")),
        "bus_bw_gb_s": number(values.get("bus_bw")),
        "wrong": _num_wrong(values.get("nwrong")),
        "timed_on": "gpu" if "time" in values else "cpu",
    }


def _num_wrong(value: Any) -> int:
    """How many elements were wrong; -1 where that was not checked. What is not a number counts as wrong."""
    if value is None or str(value).strip().lower() in ("", "-", "n/a"):
        return -1
    return 0 if number(value) == 0 else max(integer(value), 1)


def _summary(document: dict[str, Any], collective: str, num_ranks: int, rows: Sequence[Row]) -> str:
    speeds = [row["bus_bw_gb_s"] for row in rows if row["wrong"] <= 0 and not math.isnan(row["bus_bw_gb_s"])]
    sizes = [row["bytes"] for row in rows if row["bytes"] >= 0] or [0]
    best = f", at best {max(speeds):.1f} GB/s (bus)" if speeds else ""
    version = text(document.get("nccl_version", "?"))
    library = f"; NCCL {version}" if version != "?" else ""
    return (
        f"{collective or 'an unknown collective'} over {plural(num_ranks, 'rank')}, "
        f"{plural(len(rows), 'result')} from {min(sizes)} to "
        f"{max(sizes)} bytes{best}{library}"
    )
