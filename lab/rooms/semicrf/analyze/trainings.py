"""Trainings as tables, of a run of `train` or `compare`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.core.run import Run
from lab.errors import BadDataError
from lab.rooms.semicrf.layout import HEADS, outcome_of, read_json

RESULT_COLUMNS = [
    *("model", "backend", "status", "reason"),
    *("phone_error_rate", "boundary_f1", "boundary_f1_2", "segment_f1", "duration_kl"),
    *("epoch_time_s", "total_time_s", "inference_time_s", "peak_mem_bytes", "peak_rss_bytes"),
    *("best_epoch", "device", "file"),
]
# An epoch's columns as its line of epochs.jsonl names them, where the line may lack them.
EPOCH_EXTRAS = ("boundary_f1", "grad_norm", "transition_max", "duration_max", "train_s", "lr")
EPOCH_COLUMNS = ["model", "backend", "epoch", "loss", "dev_per", *EPOCH_EXTRAS]
TEXT_COLUMNS = ("model", "backend", "status", "reason", "device", "file")
TIMES = ("training_time_per_epoch", "total_training_time", "inference_time")
SIZES = ("max_duration", "hidden_dim", "num_layers", "epochs", "batch_size")


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
    for record in run.manifest.steps:
        step, labels = record.step, record.step.labels
        case = {"model": str(labels["model"]), "backend": str(labels["backend"])}
        status, reason = outcome_of(record)
        row: dict[str, Any] = {**case, "status": status, "reason": reason}
        folder = run.folder(step)
        epochs += [{**case, **epoch} for epoch in read_epochs(folder / "epochs.jsonl", missing)]
        if status == "ok":
            result = read_json(folder / "result.json")
            raw[step.name] = result
            rss = record.outcome.peak_mem_bytes if record.outcome else None
            row.update(_result(result), peak_rss_bytes=rss, file=f"{step.folder}/result.json")
            durations += list(_durations(case, result["test"]["duration_stats"]))
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
            document[key] = {**result["test"], **{name: result[name] for name in (*TIMES, "backend")}}
    return document


def _result(result: dict[str, Any]) -> dict[str, Any]:
    test = result["test"]
    return {
        **{name: test[name] for name in ("phone_error_rate", "boundary_f1", "segment_f1", "duration_kl")},
        "boundary_f1_2": test["boundary_f1_tolerances"]["2"],
        "epoch_time_s": result["training_time_per_epoch"],
        "total_time_s": result["total_training_time"],
        "inference_time_s": result["inference_time"],
        "peak_mem_bytes": result["peak_memory_bytes"],
        "best_epoch": result["best_epoch"],
        "device": result["device_name"],
    }


def _durations(case: dict[str, str], stats: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for phone, row in stats["per_phone"].items():
        yield {**case, "phone": phone, **row}


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    """All columns, numbers as numbers even where a whole column is absent."""
    frame = pd.DataFrame(rows).reindex(columns=columns)
    empty = [name for name in columns if name not in TEXT_COLUMNS and frame[name].dtype == object]
    numbers: pd.DataFrame = frame.astype(dict.fromkeys(empty, "float64"))
    return numbers
