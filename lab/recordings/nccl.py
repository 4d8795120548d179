"""What nccl-tests and rccl-tests measured: how fast collectives of each size are on this machine, alone.

Sources: NVIDIA/nccl-tests (what it prints; `-J`, JSON version 3), ROCm/rccl-tests (`-Z json` and `-Z csv`).
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.core.words import plural
from lab.errors import BadDataError, LabError, MissingError
from lab.perfmodel.communication import kind_in
from lab.recordings.pieces import files_in, read_whole

MOST_BYTES = 256 << 20
_FIX = "give what nccl-tests prints or writes with -J FILE, or rccl-tests with -Z json -x FILE"
KNOWN_VERSION = 3
Row = dict[str, Any]
LONGEST_TEXT = 120
# Rows that say nothing of a transfer, and why.
_DOUBTS: dict[str, Callable[[Row], bool]] = {
    "wrong, left out": lambda row: row["wrong"] > 0,
    "timed on the CPU, which is not a transfer: left out": lambda row: row["timed_on"] == "cpu",
    "without a time: left out": lambda row: not row["time_us"] > 0,
    "without a size: left out": lambda row: row["bytes"] < 0,
}
_PROGRAM = re.compile(r"\b([a-z_]{4,40})_perf\b")
_VERSION = re.compile(r"nccl-library=(\d+)|(?:NCCL|RCCL) version[ :]+([\w.+]+)")
_RANK = re.compile(r"^#\s+Rank\s+\d+(?:\s+Group\s+(\d+))?\s+Pid\b")
_OUT_OF_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+\w+\s+\S+")
# A table's column -> its name in the JSON; the four come twice, out of place and in place.
_TIMES = {"time": "time", "algbw": "alg_bw", "busbw": "bus_bw", "#wrong": "nwrong", "error": "nwrong"}
_RCCL = {"name", "size", "time", "busBw", "inPlace"}
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass
class Evidence:
    """What the files say. rows: for a table; missing: what keeps the answer from being complete.

    speeds: (kind of collective, bytes, ranks) -> us.
    """

    sentences: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    speeds: dict[tuple[str, int, int], float] = field(default_factory=dict)


def read_evidence(paths: Sequence[Path]) -> Evidence:
    """Read what the files say; a folder stands for the files in it.

    Raises MissingError without a file, BadDataError where none can be read. Of several files those
    that cannot be read are in `missing`.
    """
    files = list(_files(paths))
    if not files:
        raise MissingError(
            "no file here", location=paths[0] if paths else None, fix="give a file, or a folder"
        )
    evidence = Evidence()
    errors: list[LabError] = []
    for path in files:
        try:
            documents = _documents(path)
        except LabError as error:
            errors.append(error)
            continue
        for document in documents:
            evidence.missing += [
                f"{path.name}: {problem}" for problem in _read(evidence, path.name, document)
            ]
    if len(errors) == len(files):
        raise errors[0]
    evidence.missing += [f"{Path(str(error.location)).name}: {error.problem}" for error in errors]
    return evidence


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise MissingError("no such file", location=path, fix="give a file of nccl-tests or rccl-tests")
        yield from files_in(path, "give the files by name, or fewer of them") if path.is_dir() else [path]


def _documents(path: Path) -> list[Any]:
    """The runs in a file, each as a document of nccl-tests' JSON."""
    text = read_whole(path, MOST_BYTES, "split the file").decode("utf-8", "replace").lstrip("\ufeff")
    if printed := documents_in(text, path.name):
        return printed
    values = rows_in(text) or _json_values(text, path)
    if is_rccl(values[0]):
        return rccl_documents(values)
    if not is_speed(values[0]):
        is_dump = bool({"pg_config", "pg_status"} & _object(values[0]).keys())
        fix = "use `lab ranks hang FOLDER` for a flight recorder's dump" if is_dump else _FIX
        raise BadDataError("neither nccl-tests' nor rccl-tests' results", location=path, fix=fix)
    return values


def _json_values(text: str, path: Path) -> list[Any]:
    """The values of one JSON, or of one per line; of a list its elements."""
    try:
        try:
            value = json.loads(text)
        except ValueError:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        problem = f"not JSON ({error})" if isinstance(error, ValueError) else "JSON nested too deep"
        raise BadDataError(problem, location=path, fix=_FIX) from error
    values = value if isinstance(value, list) else [value]
    if not values:
        raise BadDataError("the file is empty", location=path, fix="give a file with results")
    return values


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


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def is_speed(document: Any) -> bool:
    return isinstance(document, dict) and "results" in document and "nccl_version" in document


def _read(evidence: Evidence, name: str, document: Any) -> list[str]:
    """Add the results in a document, one row per size and place; returns what is missing from them.

    Wrong results are named and count for nothing.
    """
    if not is_speed(document):
        return ["no results of nccl-tests"]
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
    results = _list(document["results"])
    if odd := sum(not isinstance(result, dict) for result in results):
        problems.append(f"{plural(odd, 'entry')} of its results are none")
    rows: list[Row] = []
    for result in map(_object, results):
        places = [place for place in ("out_of_place", "in_place") if _object(result.get(place))]
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
    if _object(document.get("out_of_bounds")).get("okay") is False:
        problems.append("nccl-tests says that results are out of bounds")
    if document.get("errors"):
        problems.append("nccl-tests reports errors")
    return problems


def _num_ranks(document: dict[str, Any], problems: list[str]) -> int:
    """Over how many ranks a collective went; 0 if unknown. Groups of ranks run theirs apart."""
    devices = [device for device in _list(document.get("devices")) if isinstance(device, dict)]
    sizes = {*Counter(str(device.get("group", 0)) for device in devices).values()}
    if not sizes:
        problems.append("it lists no devices, so how many ranks took part is not known")
    elif len(sizes) > 1:
        problems.append("its groups have different numbers of ranks: compared with nothing")
    return sizes.pop() if len(sizes) == 1 else 0


def _row(result: dict[str, Any], place: str, collective: str, num_ranks: int) -> Row:
    values = _object(result[place])
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


def documents_in(text: str, name: str) -> list[dict[str, Any]]:
    """The runs in a printed output, each as a document of nccl-tests' JSON; none in any other text.

    name is the file's: older programs do not print which collective they ran.
    """
    documents: list[dict[str, Any]] = []
    program = _PROGRAM.search(name)
    columns: list[str] = []
    for line in text.splitlines():
        words = line.lstrip("# ").split()
        program = _PROGRAM.search(line) or program
        if line.startswith("#") and words[:1] == ["nThread"]:
            documents.append(_document())
        if not documents:
            continue
        run = documents[-1]
        run["args"] = [program[0]] if program else []
        if rank := _RANK.match(line):
            run["devices"].append({"group": rank[1] or 0})
        elif line.startswith("#") and words[:2] == ["size", "count"]:
            columns = words
        elif bounds := _OUT_OF_BOUNDS.match(line):
            run["out_of_bounds"] = {"count": bounds[1], "okay": bounds[2] == "OK"}
        elif columns and _ROW.match(line):
            run["results"].append(_result(columns, line.split()))
    versions = [found[1] or found[2] for found in _VERSION.finditer(text)]
    # The library's version is printed once, perhaps after the first table (NCCL_DEBUG=VERSION).
    for run in documents[: len(documents) if versions else 0]:
        run["nccl_version"] = versions[0]
    return [run for run in documents if run["results"]]


def _document(*args: str, devices: Sequence[Any] = ()) -> dict[str, Any]:
    """A run as nccl-tests' JSON has it, still without results."""
    return {"version": 3, "args": [*args], "devices": [*devices], "results": [], "nccl_version": "?"}


def _result(columns: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    """One row of a table by its header; a row that is cut has the cells that are there."""
    result: dict[str, Any] = {}
    places: list[dict[str, str]] = []
    for column, cell in zip(columns, cells, strict=False):
        if column not in _TIMES:
            result[column] = cell
            continue
        if column == "time":
            places.append({})
        if places:
            places[-1][_TIMES[column]] = cell
    return result | dict(zip(("out_of_place", "in_place"), places, strict=False))


def rows_in(text: str) -> list[dict[str, Any]]:
    """The rows of rccl-tests' CSV (`-Z csv`); none in any other text."""
    header = text.lstrip().partition("\n")[0]
    names = [name.strip() for name in header.split(",")]
    if not {*names} >= _RCCL:
        return []
    return [{**row} for row in csv.DictReader(text.lstrip().splitlines()[1:], fieldnames=names)]


def is_rccl(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= _RCCL


def rccl_documents(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows of rccl-tests (`-Z json -x FILE`) as documents, one per collective and number of GPUs."""
    documents: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        if not is_rccl(row):
            documents.setdefault(("", 0), {})
            continue
        program = _WORDS.sub("_", str(row["name"])).lower()
        gpus = integer(row.get("ranks"), 0) * integer(row.get("gpusPerRank"), 1) or integer(
            row.get("gpus"), 0
        )
        empty = _document(f"{program}_perf", devices=[{}] * min(gpus, 1 << 20))
        document = documents.setdefault((program, gpus), empty)
        place = "in_place" if integer(row["inPlace"]) else "out_of_place"
        times = {
            "time": row["time"],
            "alg_bw": row.get("algBw"),
            "bus_bw": row["busBw"],
            "nwrong": row.get("wrong"),
        }
        result = {name: row.get(name) for name in ("size", "type", "redop")}
        latest = document["results"][-1] if document["results"] else None
        # rccl-tests writes a row for each place; nccl-tests has both in one result.
        if latest and place not in latest and all(latest[name] == result[name] for name in result):
            latest[place] = times
        else:
            document["results"].append({**result, place: times})
    return [*documents.values()]
