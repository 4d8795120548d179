"""What a folder holds of each experiment: the Python level's result, nixnan's log, and what became of the process.

Two layouts: a run of lab, and the published one (`nan_experiments/claude_*.json`, `nixnan_traces/claude_*.nixnan`, plain or
gzipped, in those folders or side by side). Both levels of one experiment are joined by its name; a result that cannot be
read is an experiment with its reason, never a hole.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lab.core.run import Run
from lab.core.step import Outcome, Status
from lab.errors import BadDataError, LabError
from lab.rooms.nan.config import AGAIN, EXPERIMENTS, RESULT
from lab.rooms.nan.nixnan.logs import Log, parse

PUBLISHED = re.compile(r"claude_(?P<stem>[A-Za-z0-9_.]+?)\.(?P<what>json|nixnan)(?:\.gz)?\Z")
FOLDERS = ("", "nan_experiments", "nixnan_traces", "nan_experiments/nixnan_traces")
QUANTIZED = {"baseline": "4-bit", "8bit": "8-bit", AGAIN: "4-bit"}
NO_RESULT = "left no result: the process ended before it could write one"
Progress = Callable[[str], None]


@dataclass
class Evidence:
    """All there is of one experiment. status: ok, failed, oom, timeout, interrupted, missing, skipped, broken,
    invalid (the change touched nothing) or no-effect (it moved nothing). Only `ok` is compared."""

    experiment: str
    label: str
    status: str = "ok"
    reason: str = ""
    result: dict[str, Any] | None = None
    result_file: str = ""
    log: Log | None = None
    log_files: list[str] = field(default_factory=list)
    log_error: str = ""
    folder: Path | None = None
    tool: dict[str, Any] | None = None  # nixnan.json: how the tool was started
    published: bool = False

    @property
    def watch(self) -> dict[str, Any] | None:
        return (self.result or {}).get("watch")

    @property
    def compared(self) -> bool:
        return self.status == "ok"


def gather(folders: Sequence[Path], runs: Sequence[Run | None], progress: Progress) -> list[Evidence]:
    """Evidence of every experiment in the folders; two levels of one experiment become one row."""
    found: list[Evidence] = []
    for folder, run in zip(folders, runs, strict=True):
        found += of_run(folder, run, progress) if run else of_published(folder, progress)
    joined: dict[str, Evidence] = {}
    for one in found:
        known = joined.get(one.label)
        joined[one.label] = _both(known, one) if known else one
    order = [*EXPERIMENTS, AGAIN]
    return sorted(joined.values(), key=lambda one: (order.index(one.experiment), one.label))


def _both(a: Evidence, b: Evidence) -> Evidence:
    """One experiment seen at two levels, in two runs. What one run watched is not what the other logged, so the worse
    status holds for both."""
    python, sass = (a, b) if a.watch or not b.watch else (b, a)
    worse = next((one for one in (python, sass) if not one.compared), python)
    return Evidence(
        python.experiment,
        python.label,
        worse.status,
        worse.reason,
        python.result or sass.result,
        python.result_file or sass.result_file,
        sass.log or python.log,
        sass.log_files or python.log_files,
        sass.log_error or python.log_error,
        python.folder,
        sass.tool or python.tool,
        python.published,
    )


# A run of lab.


def of_run(folder: Path, run: Run, progress: Progress) -> list[Evidence]:
    """One experiment a step of the run, come what may."""
    found = []
    for record in run.manifest.steps:
        name, label = str(record.step.labels["experiment"]), str(record.step.labels["label"])
        one = Evidence(name, label, folder=folder / record.step.folder)
        one.status, one.reason = _became(record.outcome)
        path = folder / record.step.folder / RESULT
        if path.exists():
            _take_result(one, path, path.relative_to(folder))
        elif one.status == "ok":
            one.status, one.reason = "missing", f"no {RESULT}"
        if "nixnan" in record.step.tools:
            _take_tool(one, folder, progress)
        found += [one, *_skipped_quant(one)]
    return found


def _skipped_quant(one: Evidence) -> list[Evidence]:
    """The quantized experiment that could not run here, beside its unquantized twin that did.

    The baseline's twin is what the others are held against; that of 8bit is the baseline once more and is not ranked.
    """
    why = (one.result or {}).get("skipped_quant")
    if not why or not one.compared or one.experiment not in QUANTIZED:
        return []
    reason = f"{why}; its unquantized twin ran"
    if one.experiment == "8bit":
        one.status, one.reason = "skipped", reason
        return []
    return [
        Evidence(
            one.experiment, f"{one.label} ({QUANTIZED[one.experiment]})", "skipped", reason, folder=one.folder
        )
    ]


def _became(outcome: Outcome | None) -> tuple[str, str]:
    if outcome is None:
        return "missing", "did not run"
    return ("ok", "") if outcome.status is Status.ok else (outcome.status.value, outcome.reason)


def _take_result(one: Evidence, path: Path, shown: Path) -> None:
    """The workload's own word on whether its change took effect joins what became of the process."""
    try:
        one.result = read_json(path)
        applied = one.result.get("applied")
    except BadDataError as error:
        one.status, one.reason, one.result = "broken", error.what, None
        return
    one.result_file = str(shown)
    if one.status == "ok" and applied and applied["status"] != "applied":
        one.status = applied["status"]
        touched = f"{applied['what']}: {applied['count']} of {applied['expected']} took it"
        moved = (
            "the first logits are the same to the last bit without it"
            if one.status == "no-effect"
            else touched
        )
        one.reason = applied["reason"] or moved


def _take_tool(one: Evidence, root: Path, progress: Progress) -> None:
    folder = one.folder or root
    record = folder / "nixnan.json"
    try:
        one.tool = read_json(record) if record.exists() else None
    except BadDataError as error:
        one.log_error = error.what
    log = folder / "nixnan.log"
    if log.exists():
        _take_log(one, [log], root, progress)
    else:
        one.log_error = one.log_error or "nixnan left no log"


def _take_log(one: Evidence, paths: list[Path], root: Path, progress: Progress) -> None:
    progress(f"  nixnan log of {one.label}")
    one.log_files = [str(path.relative_to(root)) for path in paths]
    try:
        one.log = parse(paths)
    except LabError as error:
        one.log_error = error.what


# The published layout.


def is_published(folder: Path) -> bool:
    return folder.is_dir() and any(_published_files(folder))


def of_published(folder: Path, progress: Progress) -> list[Evidence]:
    """Experiments by name from both levels' files; a trace without its result is a process that died."""
    found: dict[str, Evidence] = {}
    for path, stem, what in _published_files(folder):
        name = experiment_of(stem)
        if name is None:
            continue
        one = found.setdefault(name, Evidence(name, name, published=True, folder=folder))
        if what == "json":
            _take_published(one, path, folder)
        else:
            _take_log(one, [path], folder, progress)
    for one in found.values():
        if one.result is None and one.status == "ok":
            one.status, one.reason = "failed", NO_RESULT
    return list(found.values())


def experiment_of(stem: str) -> str | None:
    """`baseline_4bit_fp16` and `baseline` are one experiment: each level of the original names it its own way."""
    return next((name for name in EXPERIMENTS if stem == name or stem.startswith(f"{name}_")), None)


def _published_files(folder: Path) -> list[tuple[Path, str, str]]:
    found = []
    for sub in FOLDERS:
        for path in sorted((folder / sub).glob("claude_*")):
            match = PUBLISHED.match(path.name)
            if match and path.is_file():
                found.append((path, match["stem"], match["what"]))
    return found


class _Counts(msgspec.Struct):
    nans: int
    infs: int


class _Statistics(msgspec.Struct):
    total_nans: int
    total_infs: int
    all_layer_stats: dict[str, _Counts] = {}


class _Published(msgspec.Struct):
    experiment: str
    statistics: _Statistics
    config: dict[str, Any] = {}
    model_output: str | None = None
    timestamp: str = ""


def _take_published(one: Evidence, path: Path, root: Path) -> None:
    """The original's JSON in the shape of ours. Its hooks saw plain tensors only, and their last call only."""
    one.result_file = str(path.relative_to(root))
    try:
        told = msgspec.json.decode(read_bytes(path), type=_Published)
    except (BadDataError, msgspec.DecodeError) as error:
        one.status, one.reason = "broken", f"{path.name} cannot be read: {error}"
        return
    stats = told.statistics
    bad = [name for name, counts in stats.all_layer_stats.items() if counts.nans or counts.infs]
    one.result = {
        "experiment": one.experiment,
        "text": [told.model_output or ""],
        "config": told.config,
        "published": {
            "modules": len(stats.all_layer_stats),
            "bad_modules": bad,
            "nan": stats.total_nans,
            "inf": stats.total_infs,
            "rows": {name: (c.nans, c.infs) for name, c in stats.all_layer_stats.items()},
        },
    }


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(read_bytes(path))
    except msgspec.DecodeError as error:
        raise BadDataError(f"{path.name} cannot be read: {error}", where=path) from error
    if not isinstance(found, dict):
        raise BadDataError(f"{path.name} holds no object", where=path)
    return found


def read_bytes(path: Path) -> bytes:
    """A file or a gzipped one. Raises BadDataError for a broken one."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise BadDataError(f"{path.name} cannot be read: {error}", where=path) from error
