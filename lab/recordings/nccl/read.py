"""Files of nccl-tests and rccl-tests, printed or written, and what all of them say."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.nccl.speed import Evidence, add_document, integer, is_speed
from lab.recordings.pieces import files_in, read_whole

_PROGRAM = re.compile(r"\b([a-z_]{4,40})_perf\b")
_VERSION = re.compile(r"nccl-library=(\d+)|(?:NCCL|RCCL) version[ :]+([\w.+]+)")
_RANK = re.compile(r"^#\s+Rank\s+\d+(?:\s+Group\s+(\d+))?\s+Pid\b")
_OUT_OF_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+\w+\s+\S+")
# A table's column -> its name in the JSON; the four come twice, out of place and in place.
_TIMES = {"time": "time", "algbw": "alg_bw", "busbw": "bus_bw", "#wrong": "nwrong", "error": "nwrong"}
_RCCL = {"name", "size", "time", "busBw", "inPlace"}
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


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
            documents.append({"version": 3, "args": [], "devices": [], "results": [], "nccl_version": "?"})
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
        empty = {"version": 3, "args": [f"{program}_perf"], "results": [], "nccl_version": "?"}
        document = documents.setdefault((program, gpus), empty | {"devices": [{}] * min(gpus, 1 << 20)})
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


MOST_BYTES = 256 << 20


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
            add_document(evidence, path.name, document)
    if len(errors) == len(files):
        raise errors[0]
    evidence.missing += [f"{Path(str(error.location)).name}: {error.problem}" for error in errors]
    return evidence


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise MissingError("no such file", location=path, fix="give a file of nccl-tests or rccl-tests")
        if not path.is_dir():
            yield path
            continue
        yield from files_in(path, "give the files by name, or fewer of them")


def _documents(path: Path) -> list[Any]:
    """The runs in a file, each as a document of nccl-tests' JSON."""
    text = read_whole(path, MOST_BYTES, "split the file").decode("utf-8", "replace").lstrip("\ufeff")
    if printed := documents_in(text, path.name):
        return printed
    values = rows_in(text) or _json_values(text, path)
    if is_rccl(values[0]):
        return rccl_documents(values)
    if not is_speed(values[0]):
        is_dump = isinstance(values[0], dict) and {"pg_config", "pg_status"} & values[0].keys()
        raise BadDataError(
            "neither nccl-tests' nor rccl-tests' results",
            location=path,
            fix="use `lab ranks hang FOLDER` for a flight recorder's dump"
            if is_dump
            else "give what nccl-tests prints or writes with -J FILE, or rccl-tests with -Z json -x FILE",
        )
    return values


def _json_values(text: str, path: Path) -> list[Any]:
    """The values of one JSON, or of one per line; of a list its elements."""
    try:
        try:
            value = json.loads(text)
        except ValueError:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise BadDataError(
            f"not JSON ({error})" if isinstance(error, ValueError) else "JSON nested too deep",
            location=path,
            fix="give what nccl-tests prints or writes with -J FILE, or rccl-tests with -Z json -x FILE",
        ) from error
    values = value if isinstance(value, list) else [value]
    if not values:
        raise BadDataError("the file is empty", location=path, fix="give a file with results")
    return values
