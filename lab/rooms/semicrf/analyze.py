"""A run's folder -> tables of trainings, of a diagnosis, or of checks. A step that failed is a row with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.core.run import Run
from lab.core.step import Status
from lab.errors import BadDataError
from lab.rooms.semicrf.layout import HEADS, comparisons, read_json

WORDS = {Status.ok: "ok", Status.skipped: "skipped"}
RESULT_COLUMNS = [
    "model",
    "backend",
    "status",
    "reason",
    "phone_error_rate",
    "boundary_f1",
    "boundary_f1_2",
    "segment_f1",
    "duration_kl",
    "epoch_time_s",
    "total_time_s",
    "inference_time_s",
    "peak_mem_bytes",
    "peak_rss_bytes",
    "best_epoch",
    "device",
    "file",
]
EPOCH_COLUMNS = [
    "model",
    "backend",
    "epoch",
    "loss",
    "dev_per",
    "boundary_f1",
    "grad_norm",
    "transition_max",
    "duration_max",
    "train_s",
    "lr",
]


@dataclass(frozen=True)
class Trainings:
    """`results`: a row per (head, backend); `epochs`: a row per epoch; `durations`: a row per phone; `raw`: result.json by step."""

    results: pd.DataFrame
    epochs: pd.DataFrame
    durations: pd.DataFrame
    raw: dict[str, dict[str, Any]]
    lacking: list[str]


@dataclass(frozen=True)
class Examination:
    """A diagnosis' rows; `cells` and `probes` as the workload wrote them."""

    cells: list[dict[str, Any]]
    probes: list[dict[str, Any]]
    guards: pd.DataFrame
    reproducer: dict[str, Any] | None
    reproducer_folder: str
    fixed_length: int | None
    lacking: list[str]


def read_trainings(run: Run) -> Trainings:
    """All steps of a run of `train` or `compare`."""
    results, epochs, durations, raw = [], [], [], {}
    lacking: list[str] = []
    for record in run.manifest.steps:
        step, labels = record.step, record.step.labels
        case = {"model": str(labels["model"]), "backend": str(labels["backend"])}
        status, reason = _outcome(record)
        row: dict[str, Any] = {**case, "status": status, "reason": reason}
        folder = run.folder(step)
        epochs += [{**case, **epoch} for epoch in read_epochs(folder / "epochs.jsonl", lacking)]
        if status == "ok":
            found = read_json(folder / "result.json")
            raw[step.name] = found
            rss = record.outcome.peak_mem_bytes if record.outcome else None
            row.update(_result(found), peak_rss_bytes=rss, file=f"{step.folder}/result.json")
            durations += list(_durations(case, found["test"]["duration_stats"]))
        elif status != "skipped":
            lacking.append(f"{step.name}: {reason}")
        results.append(row)
    return Trainings(
        _frame(results, RESULT_COLUMNS), _frame(epochs, EPOCH_COLUMNS), pd.DataFrame(durations), raw, lacking
    )


def read_epochs(path: Path, lacking: list[str]) -> Iterator[dict[str, Any]]:
    """The epochs of one training; a last line that a kill cut short is left out and told."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = msgspec.json.decode(line)
            yield {
                "epoch": row["epoch"],
                "loss": row["loss"],
                "dev_per": row["phone_error_rate"],
                **{
                    name: row.get(name)
                    for name in (
                        "boundary_f1",
                        "grad_norm",
                        "transition_max",
                        "duration_max",
                        "train_s",
                        "lr",
                    )
                },
            }
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            if number != len(lines):
                raise BadDataError(f"this line is no epoch: {error}", where=f"{path}:{number}") from error
            lacking.append(f"{path.parent.name}: the last line of epochs.jsonl is cut short")


def read_recordings(folder: Path) -> Trainings:
    """Comparisons in the benchmark's own JSON, whoever made them."""
    results, durations, raw = [], [], {}
    for path, content in comparisons(folder).items():
        for key, model in HEADS.items():
            found = content.get(key)
            if not isinstance(found, dict):
                continue
            try:
                results.append(
                    {
                        "model": model,
                        "backend": path.stem,
                        "status": "ok",
                        "reason": "",
                        **_recorded(found),
                        "file": path.name,
                    }
                )
                durations += list(_durations({"model": model, "backend": path.stem}, found["duration_stats"]))
            except (KeyError, TypeError, AttributeError) as error:
                raise BadDataError(f"{key} lacks {error}", where=path) from error
            raw[f"{path.stem}/{key}"] = found
    return Trainings(
        _frame(results, RESULT_COLUMNS), _frame([], EPOCH_COLUMNS), pd.DataFrame(durations), raw, []
    )


def comparison(run: Run, found: Trainings) -> dict[str, Any]:
    """The benchmark's JSON; where a head ran on several backends, the first that succeeded."""
    config = run.manifest.config
    names = ("max_duration", "hidden_dim", "num_layers", "epochs", "batch_size")
    document: dict[str, Any] = {
        "task": "timit",
        "timestamp": run.manifest.created_utc,
        "corpus": config.get("data"),
        "config": {name: config[name] for name in names},
    }
    for key, model in HEADS.items():
        first = next((raw for raw in found.raw.values() if raw["model"] == model), None)
        if first is not None:
            times = {
                name: first[name]
                for name in ("training_time_per_epoch", "total_training_time", "inference_time", "backend")
            }
            document[key] = {**first["test"], **times}
    return document


def read_examination(run: Run) -> Examination:
    cells: list[dict[str, Any]] = []
    probes: list[dict[str, Any]] = []
    guards: list[dict[str, Any]] = []
    lacking: list[str] = []
    reproducer, place, fixed = None, "", None
    for record in run.manifest.steps:
        status, reason = _outcome(record)
        part = str(record.step.labels["part"])
        if status != "ok":
            lacking.append(f"{record.step.name}: {reason}")
            continue
        found = read_json(run.folder(record.step) / f"{part}.json")
        if part == "cells":
            cells += found["cells"]
            fixed = found["fixed_length"]
        else:
            probes, guards, reproducer, place = (
                found["probes"],
                found["guards"],
                found["reproducer"],
                record.step.folder,
            )
    return Examination(cells, probes, pd.DataFrame(guards), reproducer, place, fixed, lacking)


def read_checks(run: Run) -> tuple[pd.DataFrame, list[str]]:
    """A row per check of every backend; a step that failed is one row."""
    rows, lacking = [], []
    for record in run.manifest.steps:
        status, reason = _outcome(record)
        backend = str(record.step.labels["backend"])
        if status != "ok":
            lacking.append(f"{record.step.name}: {reason}")
            rows.append(
                {
                    "backend": backend,
                    "check": "the step itself",
                    "shape": "",
                    "dtype": "",
                    "value": None,
                    "limit": None,
                    "verdict": "fail",
                    "text": reason,
                }
            )
            continue
        rows += [
            {"backend": backend, **row}
            for row in read_json(run.folder(record.step) / "checks.json")["checks"]
        ]
    return pd.DataFrame(rows), lacking


def _outcome(record: Any) -> tuple[str, str]:
    if record.outcome is None:
        return "missing", "did not run"
    return WORDS.get(record.outcome.status, "failed"), record.outcome.reason


def _result(found: dict[str, Any]) -> dict[str, Any]:
    return {
        **_recorded({**found, **found["test"]}),
        "peak_mem_bytes": found["peak_memory_bytes"],
        "best_epoch": found["best_epoch"],
        "device": found["device_name"],
    }


def _recorded(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "phone_error_rate": found["phone_error_rate"],
        "boundary_f1": found["boundary_f1"],
        "boundary_f1_2": found["boundary_f1_tolerances"]["2"],
        "segment_f1": found["segment_f1"],
        "duration_kl": found.get("duration_kl"),
        "epoch_time_s": found["training_time_per_epoch"],
        "total_time_s": found["total_training_time"],
        "inference_time_s": found["inference_time"],
    }


def _durations(case: dict[str, str], stats: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for phone, row in stats["per_phone"].items():
        yield {**case, "phone": phone, **row}


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    """All columns, numbers as numbers even where a whole column is absent."""
    frame = pd.DataFrame(rows).reindex(columns=columns)
    words = ("model", "backend", "status", "reason", "device", "file")
    numbers: pd.DataFrame = frame.astype(
        {name: "float64" for name in columns if name not in words and frame[name].dtype == object}
    )
    return numbers
