"""What lab's commands answer about a recording: figures by name, beside which the truth can stand."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lab.cli.main import main

INFERRED = ("order", "name")  # rules by which a graph's kernels get an operator that did not launch them


@dataclass(frozen=True)
class Answer:
    """One command: its exit code, what it prints, what it says of the recording by axis."""

    command: str
    code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass(frozen=True)
class Figure:
    """A number that a command printed: of one process, by its pid or else its rank, or of all (None).

    bound: `at least`, `at most`, `about`, or "" for an exact one.
    """

    command: str
    name: tuple[Any, ...]
    value: float
    bound: str = ""
    process: int | None = None


@dataclass
class Answers:
    """All commands on one recording. lacks: the findings as `lab inspect --json` prints them."""

    answers: list[Answer] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    lacks: list[dict[str, Any]] = field(default_factory=list)
    verdict: str = "unknown"


def lab(command: str, *arguments: object) -> Answer:
    """Run one command line in this process."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            main([*command.split(), *map(str, arguments)])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return Answer(command, code, stdout.getvalue(), stderr.getvalue())


def ask(path: Path, scratch: Path, *, pages: bool = False) -> Answers:
    """What lab answers about one recording; with `pages` also the commands that write tables."""
    inspect = lab("inspect --json", path)
    (row,) = inspect.json()
    asked = Answers([inspect], lacks=row["lacks"], verdict=row["verdict"])
    asked.figures = [
        Figure("inspect", ("rows",), row["gpu_ops"]),
        Figure("inspect", ("row_ms",), row["gpu_time_ns"] / 1e6),
    ]
    readers = [_summary, _unique]
    if pages:
        readers += [_analyze, _gemm] if row["format"] == "kineto" else [_analyze]
    for read in readers:
        answer, figures = read(path, scratch)
        asked.answers.append(answer)
        asked.figures += figures
    return asked


def _summary(path: Path, scratch: Path) -> tuple[Answer, list[Figure]]:
    answer = lab("nsys summary --json", path)
    document = answer.json() if answer.stdout.strip() else []
    figures: list[Figure] = []
    parts = document.get("processes", [document]) if isinstance(document, dict) else document
    for part in parts:
        bounds, values = part["bounds"], {}
        counts = list(part["rules"].values())
        values["rows",] = sum(count for count, _ in counts), bounds["kernels"]
        values["row_ms",] = sum(ms for _, ms in counts), bounds["kernel_ms"]
        for gpu in part["gpus"]:
            device = (gpu["device"],) if len(part["gpus"]) > 1 else ()
            device += ("after warm-up",) if gpu["warmup"] else ()
            values[("busy_ms", *device)] = gpu["busy_ms"], bounds["busy_ms"]
            values[("idle_ms", *device)] = gpu["idle_ms"], bounds["idle_ms"]
        values |= _steps(part) if part["steps"] else {}
        process = _process(part["label"])
        figures += [Figure("summary", name, *value, process=process) for name, value in values.items()]
    return answer, figures


def _process(label: str) -> int:
    """The rank that the label of a process names, else its pid, else -1."""
    match = re.search(r"rank (\d+)", label) or re.search(r"process (\d+)", label)
    return int(match[1]) if match else -1


def _steps(part: dict[str, Any]) -> dict[tuple[Any, ...], tuple[float, str]]:
    """Means over the steps that are named."""
    phase, bound = part["phases"][0], part["bounds"]["phases"]
    numbers = tuple(sorted(int(name.split("#")[1]) for name in part["steps"] if "#" in name))
    values = {key: (phase[key], bound) for key in ("kernel_ms", "busy_ms", "span_ms")}
    values["kernels"] = sum(phase["kernels"]) / len(phase["kernels"]), bound
    values["host_ms"] = phase["host_ms"], ""
    if phase["gemm_tflop"] is not None:
        values["tflop"] = phase["gemm_tflop"], bound
    return {("step", numbers, key): value for key, value in values.items()}


def _unique(path: Path, scratch: Path) -> tuple[Answer, list[Figure]]:
    answer = lab("kernels unique --json -o", scratch / "unique", path)
    values: dict[tuple[Any, ...], float] = defaultdict(float)
    bound = ""
    for row in answer.json() if answer.stdout.strip() else []:
        bound = row["bound"]
        if row["kind"] == "kernel":
            op = "" if row["op_rule"] in INFERRED else row["op"]
            for name in (("kernel",), ("name", row["name"]), ("owner", op, row["name"])):
                values[(*name, "launches")] += row["count"]
                values[(*name, "ms")] += row["dur_sum_us"] / 1e3
        if row["op"] and row["op_rule"] not in INFERRED:
            values["op", row["op"], "ms"] += row["dur_sum_us"] / 1e3
    return answer, [Figure("unique", name, value, bound) for name, value in values.items()]


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _analyze(path: Path, scratch: Path) -> tuple[Answer, list[Figure]]:
    # A picture takes as long as all that is asked for here, and holds no figure that its table does not.
    with patch("lab.rooms.nsys.captures.page.save", return_value=""):
        answer = lab("analyze -q --json -o", scratch / "page", path)
    tables = scratch / "page" / "tables"
    figures = []
    gpus = _rows(tables / "gpus.csv")
    num_gpus = Counter(row["process"] for row in gpus)
    for row in gpus:
        process = _process(row["process"])
        device = (int(row["gpu"]),) if num_gpus[row["process"]] > 1 else ()
        device += ("after warm-up",) if int(row["warmup_left_out"]) else ()
        bounds = dict(word.split(" ", 1) for word in row["bound"].split(", ") if word)
        figures += [
            Figure("gpus.csv", (f"{key}_ms", *device), float(row[f"{key}_ms"]), bounds.get(key, ""), process)
            for key in ("busy", "idle")
        ]
    values: dict[tuple[Any, ...], float] = defaultdict(float)
    bound = ""
    for row in _rows(tables / "kernels.csv"):
        values["name", row["name"], "launches"] += float(row["launches"])
        values["name", row["name"], "ms"] += float(row["kernel_ms"])
        bound = row["bound"]
    figures += [Figure("kernels.csv", name, value, bound) for name, value in values.items()]
    for row in _rows(tables / "processes.csv"):
        process = _process(row["process"])
        figures += [
            Figure("processes.csv", (key,), float(row[column]), row["bound"], process)
            for key, column in (("rows", "gpu_operations"), ("span_ms", "span_ms"))
            if row[column]
        ]
    return answer, figures


def _gemm(path: Path, scratch: Path) -> tuple[Answer, list[Figure]]:
    answer = lab("gemm report -q -w 1 --json -o", scratch / "gemm", path)
    columns = {
        "rows": "kernels",
        "busy_ms": "busy_time_ms",
        "idle_ms": "idle_time_ms",
        "span_ms": "total_time_ms",
    }
    figures = []
    for row in _rows(scratch / "gemm" / "timeline.csv"):
        bound = "" if row["bound"] == "exact" else row["bound"]
        process = int(row["rank"]) if int(row["rank"]) >= 0 else None
        figures += [
            Figure("timeline.csv", (key,), float(row[column]), bound, process)
            for key, column in columns.items()
        ]
    return answer, figures
