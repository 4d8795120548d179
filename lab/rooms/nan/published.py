"""The published layout: nan_experiments/claude_*.json and nixnan_traces/claude_*.nixnan.

Files may be gzipped, and lie in those folders or side by side.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError
from lab.rooms.nan.config import EXPERIMENTS
from lab.rooms.nan.evidence import Evidence, Progress, read_bytes, read_log

PUBLISHED = re.compile(r"claude_(?P<stem>[A-Za-z0-9_.]+?)\.(?P<what>json|nixnan)(?:\.gz)?\Z")
FOLDERS = ("", "nan_experiments", "nixnan_traces", "nan_experiments/nixnan_traces")
NO_RESULT = "left no result: the process ended before it could write one"


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
