"""A run's folder -> tables of trainings, of a diagnosis, or of checks.

A failed step is a row with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.core.files import read_json
from lab.core.manifest import StepRecord
from lab.core.run import Run
from lab.core.step import Status
from lab.errors import BadDataError

HEADS = {"pytorch_crf": "pytorch-crf", "linear_crf_triton": "linear", "semi_crf": "semicrf"}
# An epoch's columns as its line of epochs.jsonl names them, where the line may lack them.
EPOCH_EXTRAS = ("boundary_f1", "grad_norm", "transition_max", "duration_max", "train_s", "lr")
EPOCH_COLUMNS = ["model", "backend", "epoch", "loss", "dev_per", *EPOCH_EXTRAS]
TEXT_COLUMNS = ("model", "backend", "status", "reason", "device", "file")
TIMES = {
    "epoch_time_s": "training_time_per_epoch",
    "total_time_s": "total_training_time",
    "inference_time_s": "inference_time",
}
OF_RESULT = {
    **TIMES,
    "peak_mem_bytes": "peak_memory_bytes",
    "best_epoch": "best_epoch",
    "device": "device_name",
}
"""Columns by the names of result.json."""
OF_TEST = ("phone_error_rate", "boundary_f1", "boundary_f1_2", "segment_f1", "duration_kl")
RESULT_COLUMNS = [
    *("model", "backend", "status", "reason", *OF_TEST, *TIMES, "peak_mem_bytes", "peak_rss_bytes"),
    *("best_epoch", "device", "file"),
]
SIZES = ("max_duration", "hidden_dim", "num_layers", "epochs", "batch_size")


def steps_of(run: Run) -> Iterator[tuple[StepRecord, str, str]]:
    """The steps' records in the manifest, each with its status and the reason."""
    for record in run.manifest.steps:
        if record.outcome is None:
            yield record, "missing", "did not run"
        else:
            status = record.outcome.status
            failed = status not in (Status.ok, Status.skipped)
            yield record, "failed" if failed else status.value, record.outcome.reason


@dataclass(frozen=True)
class Trainings:
    """`results`: one row per head and backend; `durations`: one per phone; `raw`: result.json by step."""

    results: pd.DataFrame
    epochs: pd.DataFrame
    durations: pd.DataFrame
    raw: dict[str, dict[str, Any]]
    missing: list[str]


def read_trainings(run: Run) -> Trainings:
    """All steps of a run of `train` or `compare`."""
    results, epochs, durations, raw = [], [], [], {}
    missing: list[str] = []
    for record, status, reason in steps_of(run):
        step, labels = record.step, record.step.labels
        case = {"model": str(labels["model"]), "backend": str(labels["backend"])}
        row: dict[str, Any] = {**case, "status": status, "reason": reason}
        folder = run.folder(step)
        epochs += [{**case, **epoch} for epoch in read_epochs(folder / "epochs.jsonl", missing)]
        if status == "ok":
            result = raw[step.name] = read_json(folder / "result.json", dict, "the training's result")
            test = {**result["test"], "boundary_f1_2": result["test"]["boundary_f1_tolerances"]["2"]}
            row |= {name: test[name] for name in OF_TEST}
            row |= {column: result[name] for column, name in OF_RESULT.items()}
            row["peak_rss_bytes"] = record.outcome.peak_mem_bytes if record.outcome else None
            row["file"] = f"{step.folder}/result.json"
            per_phone = test["duration_stats"]["per_phone"]
            durations += [{**case, "phone": phone, **stats} for phone, stats in per_phone.items()]
        elif status != "skipped":
            missing.append(f"{step.name}: {reason}")
        results.append(row)
    frames = _frame(results, RESULT_COLUMNS), _frame(epochs, EPOCH_COLUMNS), pd.DataFrame(durations)
    return Trainings(*frames, raw, missing)


def read_epochs(path: Path, missing: list[str]) -> Iterator[dict[str, Any]]:
    """The epochs of one training; a last line that a kill cut short is left out and named in `missing`."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = msgspec.json.decode(line)
            extras = {name: row.get(name) for name in EPOCH_EXTRAS}
            yield {"epoch": row["epoch"], "loss": row["loss"], "dev_per": row["phone_error_rate"], **extras}
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            if number != len(lines):
                raise BadDataError(f"not an epoch: {error}", location=f"{path}:{number}") from error
            missing.append(f"{path.parent.name}: the last line of epochs.jsonl is cut short")


def comparison(run: Run, trainings: Trainings) -> dict[str, Any]:
    """The benchmark's JSON; where a head ran on several backends, the first that succeeded."""
    config = run.manifest.config
    document: dict[str, Any] = {
        "task": "timit",
        "timestamp": run.manifest.created_utc,
        "corpus": config.get("data"),
        "config": {name: config[name] for name in SIZES},
    }
    for key, model in HEADS.items():
        result = next((raw for raw in trainings.raw.values() if raw["model"] == model), None)
        if result is not None:
            further = (*TIMES.values(), "backend")
            document[key] = {**result["test"], **{name: result[name] for name in further}}
    return document


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    """All columns, numbers as numbers even where a whole column is absent."""
    frame = pd.DataFrame(rows).reindex(columns=columns)
    empty = [name for name in columns if name not in TEXT_COLUMNS and frame[name].dtype == object]
    numbers: pd.DataFrame = frame.astype(dict.fromkeys(empty, "float64"))
    return numbers


@dataclass
class Examination:
    """A diagnosis' rows; `missing`: steps without a result, in sentences."""

    cells: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)
    reproducer: dict[str, Any] | None = None
    reproducer_folder: str = ""
    fixed_length: int | None = None
    tested: str = ""
    reference: str = ""
    device: str = "cpu"
    missing: list[str] = field(default_factory=list)


def read_examination(run: Run) -> Examination:
    """All parts of a run of `diagnose`; the backends by the names of what ran."""
    config = run.manifest.config
    rows = Examination(tested=str(config["tested"]), reference=str(config.get("reference", "")))
    for record, status, reason in steps_of(run):
        if status != "ok":
            rows.missing.append(f"{record.step.name}: {reason}")
            continue
        part = str(record.step.labels["part"])
        content = read_json(run.folder(record.step) / f"{part}.json", dict, "this part of the diagnosis")
        for name in {"tested", "reference", "device", "fixed_length"} & set(content):
            setattr(rows, name, content[name])
        rows.cells += content.get("cells", ())
        if "probes" in content:
            rows.probes = content["probes"]
            rows.reproducer, rows.reproducer_folder = content["reproducer"], record.step.folder
    return rows


def read_checks(run: Run) -> tuple[pd.DataFrame, list[str]]:
    """A row per check of every backend, and what is missing; a step that failed is one row."""
    rows, missing = [], []
    for record, status, reason in steps_of(run):
        backend = str(record.step.labels["backend"])
        if status != "ok":
            missing.append(f"{record.step.name}: {reason}")
            nothing = {"shape": "", "dtype": "", "value": None, "limit": None, "verdict": "fail"}
            rows.append({"backend": backend, "check": "the step itself", **nothing, "text": reason})
            continue
        content = read_json(run.folder(record.step) / "checks.json", dict, "the checks")
        ran = content.get("backend", backend)  # files of before this was noted name what was asked for
        label = backend if ran == backend else f"{backend} ({ran})"
        rows += [{"backend": label, **row} for row in content["checks"]]
    return pd.DataFrame(rows), missing
