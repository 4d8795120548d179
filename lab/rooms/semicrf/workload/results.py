"""What a training leaves: epochs.jsonl while it runs, result.json at its end."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from lab.errors import writing
from lab.rooms.semicrf.workload.common import log
from lab.rooms.semicrf.workload.epochs import evaluated
from lab.rooms.semicrf.workload.training import TrainingTask
from lab.workload.start import write_json


def write_result(task: TrainingTask, rows: list[dict[str, Any]], best: dict[str, Any], out: Path) -> None:
    """result.json: the best dev epoch's weights on the test set."""
    if "weights" in best:
        task.tagger.load_state_dict(best.pop("weights"))
    corpus, device = task.corpus, task.device
    test = evaluated(task, corpus.test)
    times = [row["train_s"] for row in rows[1:] or rows]  # the first epoch includes compilation
    result = {
        "model": task.model,
        "backend": task.backend,
        "device": device.type,
        "device_name": device_name(device),
        "corpus": corpus.origin,
        "utterances": {s: len(getattr(corpus, s)) for s in ("train", "dev", "test")},
        "notes": [list(note) for note in corpus.notes],
        "best_epoch": best.get("epoch"),
        "test": {k: v for k, v in test.items() if k != "decode_s"},
        "training_time_per_epoch": float(np.median(times)),
        "total_training_time": sum(row["train_s"] for row in rows),
        "inference_time": test["decode_s"],
        "peak_memory_bytes": peak_memory(device),
        "over_long_segments": task.over_long_segments,
        "parameters": sum(p.numel() for p in task.tagger.parameters()),
    }
    write_json(out / "result.json", result)
    text, per = "%s on %s: test PER %.3f, %.2f s per epoch", test["phone_error_rate"]
    log.info(text, task.model, task.backend, per, result["training_time_per_epoch"])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def journal(out: Path) -> Iterator[Any]:
    """epochs.jsonl, one flushed line per epoch."""
    path = out / "epochs.jsonl"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    with file:

        def note(row: dict[str, Any]) -> None:
            with writing(path):
                columns = {k: v for k, v in row.items() if k != "duration_stats"}
                file.write(msgspec.json.encode(columns) + b"\n")
                file.flush()

        yield note


def peak_memory(device: torch.device) -> int | None:
    """Peak GPU memory in bytes; None on a CPU, where the manifest has the process's peak resident set."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
