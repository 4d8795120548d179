"""Evidence of every experiment in some folders; both levels of one experiment are joined by its name.

The published layout is nan_experiments/claude_*.json and nixnan_traces/claude_*.nixnan; files may be gzipped,
and lie in those folders or side by side.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from lab.core.run import Run
from lab.core.step import Outcome, Status
from lab.errors import BadDataError
from lab.rooms.nan.config import AGAIN, EXPERIMENTS, RESULT
from lab.rooms.nan.evidence import Evidence, Progress, read_bytes, read_json, read_log

QUANTIZED = {"baseline": "4-bit", "8bit": "8-bit", AGAIN: "4-bit"}
# What nixnan was told to look at decides what its zero means.
_LOOKED_AT = ("inventory", "only_kernels", "not_kernels")
PUBLISHED = re.compile(r"claude_(?P<stem>[A-Za-z0-9_.]+?)\.(?P<what>json|nixnan)(?:\.gz)?\Z")
FOLDERS = ("", "nan_experiments", "nixnan_traces", "nan_experiments/nixnan_traces")
NO_RESULT = "left no result: the process ended before it could write one"


def gather(folders: Sequence[Path], runs: Sequence[Run | None], progress: Progress) -> list[Evidence]:
    """Evidence of every experiment in the folders; two levels of one experiment become one row."""
    evidence: list[Evidence] = []
    for folder, run in zip(folders, runs, strict=True):
        evidence += of_run(folder, run, progress) if run else of_published(folder, progress)
    joined: dict[str, Evidence] = {}
    for experiment in evidence:
        joined_before = joined.get(experiment.label)
        joined[experiment.label] = _both(joined_before, experiment) if joined_before else experiment
    order = [*EXPERIMENTS, AGAIN]
    return sorted(
        joined.values(), key=lambda experiment: (order.index(experiment.experiment), experiment.label)
    )


def _both(a: Evidence, b: Evidence) -> Evidence:
    """One experiment seen at two levels, in two runs.

    What one run watched is not what the other logged, so the worse status holds for both.
    """
    python, sass = (a, b) if a.watch or not b.watch else (b, a)
    worse = next((level for level in (python, sass) if not level.compared), python)
    logged = python if python.log and not sass.log else sass
    return replace(
        python,
        status=worse.status,
        reason=worse.reason,
        result=python.result or sass.result,
        result_file=python.result_file or sass.result_file,
        log=sass.log or python.log,
        log_files=sass.log_files or python.log_files,
        log_error=sass.log_error or python.log_error,
        **{name: getattr(logged, name) for name in _LOOKED_AT},
    )


def of_run(folder: Path, run: Run, progress: Progress) -> list[Evidence]:
    """One experiment per step of the run, in any case."""
    evidence = []
    for record in run.manifest.steps:
        name, label = str(record.step.labels["experiment"]), str(record.step.labels["label"])
        experiment = Evidence(name, label, folder=folder / record.step.folder)
        experiment.status, experiment.reason = _status_of(record.outcome)
        path = folder / record.step.folder / RESULT
        if path.exists():
            _read_result(experiment, path, path.relative_to(folder))
        elif experiment.status == "ok":
            experiment.status, experiment.reason = "missing", f"no {RESULT}"
        if "nixnan" in record.step.tools:
            _read_log(experiment, folder, progress)
        evidence += [experiment, *_skipped_quant(experiment)]
    return evidence


def _skipped_quant(experiment: Evidence) -> list[Evidence]:
    """The quantized experiment that could not run here, beside its unquantized twin that did.

    The baseline's twin is what the others are compared with; the twin of 8bit repeats the baseline and is not
    ranked.
    """
    skip_reason = (experiment.result or {}).get("skipped_quant")
    if not skip_reason or not experiment.compared or experiment.experiment not in QUANTIZED:
        return []
    reason = f"{skip_reason}; its unquantized twin ran"
    if experiment.experiment == "8bit":
        experiment.status, experiment.reason = "skipped", reason
        return []
    label = f"{experiment.label} ({QUANTIZED[experiment.experiment]})"
    return [Evidence(experiment.experiment, label, "skipped", reason, folder=experiment.folder)]


def _status_of(outcome: Outcome | None) -> tuple[str, str]:
    if outcome is None:
        return "missing", "did not run"
    return ("ok", "") if outcome.status is Status.ok else (outcome.status.value, outcome.reason)


def _read_result(experiment: Evidence, path: Path, shown: Path) -> None:
    """Read the result; a change that took no effect lowers the status that the process left."""
    try:
        experiment.result = read_json(path)
        applied = experiment.result.get("applied")
    except BadDataError as error:
        experiment.status, experiment.reason, experiment.result = "broken", error.problem, None
        return
    experiment.result_file = str(shown)
    if experiment.status == "ok" and applied and applied["status"] != "applied":
        experiment.status = applied["status"]
        experiment.reason = applied["reason"] or _why_not_applied(applied)


def _why_not_applied(applied: dict[str, Any]) -> str:
    if applied["status"] == "no-effect":
        return "the first logits are identical to the last bit without the change"
    return f"{applied['what']}: {applied['count']} of {applied['expected']} took the change"


def _read_log(experiment: Evidence, root: Path, progress: Progress) -> None:
    folder = experiment.folder or root
    record, log = folder / "nixnan.json", folder / "nixnan.log"
    try:
        if record.exists():
            flags = read_json(record).get("flags")
            flags = flags if isinstance(flags, dict) else {}
            experiment.inventory = bool(flags.get("inventory"))
            experiment.only_kernels, experiment.not_kernels = (
                tuple(map(str, flags.get(name) or ())) for name in ("only_kernels", "not_kernels")
            )
    except BadDataError as error:
        experiment.log_error = error.problem
    if log.exists():
        read_log(experiment, log, root, progress)
    else:
        experiment.log_error = experiment.log_error or "nixnan left no log"


def is_published(folder: Path) -> bool:
    return folder.is_dir() and any(_published_files(folder))


def of_published(folder: Path, progress: Progress) -> list[Evidence]:
    """Experiments by name from both levels' files; a log without its result is a process that died."""
    by_name: dict[str, Evidence] = {}
    for path, stem, file_kind in _published_files(folder):
        name = experiment_of(stem)
        if name is None:
            continue
        experiment = by_name.setdefault(name, Evidence(name, name, published=True, folder=folder))
        if file_kind == "json":
            _read_published(experiment, path, folder)
        else:
            read_log(experiment, path, folder, progress)
    for experiment in by_name.values():
        if experiment.result is None and experiment.status == "ok":
            experiment.status, experiment.reason = "failed", NO_RESULT
    return list(by_name.values())


def experiment_of(stem: str) -> str | None:
    """The experiment of a file name; `baseline_4bit_fp16` and `baseline` are the same.

    Each level of the original names an experiment differently.
    """
    return next((name for name in EXPERIMENTS if stem == name or stem.startswith(f"{name}_")), None)


def _published_files(folder: Path) -> list[tuple[Path, str, str]]:
    files = []
    for sub in FOLDERS:
        for path in sorted((folder / sub).glob("claude_*")):
            match = PUBLISHED.match(path.name)
            if match and path.is_file():
                files.append((path, match["stem"], match["what"]))
    return files


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


def _read_published(experiment: Evidence, path: Path, root: Path) -> None:
    """The original's JSON as a result. Its hooks saw only plain tensors, and only their last call."""
    experiment.result_file = str(path.relative_to(root))
    try:
        decoded = msgspec.json.decode(read_bytes(path), type=_Published)
    except (BadDataError, msgspec.DecodeError) as error:
        experiment.status, experiment.reason = "broken", f"{path.name} cannot be read: {error}"
        return
    stats = decoded.statistics
    bad = [name for name, counts in stats.all_layer_stats.items() if counts.nans or counts.infs]
    experiment.result = {
        "experiment": experiment.experiment,
        "text": [decoded.model_output or ""],
        "config": decoded.config,
        "published": {
            "modules": len(stats.all_layer_stats),
            "bad_modules": bad,
            "nan": stats.total_nans,
            "inf": stats.total_infs,
            "rows": {name: (c.nans, c.infs) for name, c in stats.all_layer_stats.items()},
        },
    }
