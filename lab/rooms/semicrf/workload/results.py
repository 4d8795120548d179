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
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.model.corpus.utterances import Corpus
from lab.rooms.semicrf.model.training import (
    Tagger,
)
from lab.rooms.semicrf.workload.common import log
from lab.rooms.semicrf.workload.epochs import evaluated
from lab.workload.rank import RankContext
from lab.workload.start import write_json


def write_result(
    tagger: Tagger,
    corpus: Corpus,
    config: TrainConfig,
    model: str,
    backend: str,
    rows: list[dict[str, Any]],
    best: dict[str, Any],
    context: RankContext,
    device: torch.device,
    out: Path,
) -> None:
    """result.json: the best dev epoch's weights on the test set."""
    if "weights" in best:
        tagger.load_state_dict(best.pop("weights"))
    test = evaluated(tagger, corpus, corpus.test, config, device)
    times = [row["train_s"] for row in rows[1:] or rows]  # the first epoch pays for compilation
    over = sum(1 for u in corpus.train for start, end, _ in u.segments if end - start > config.max_duration)
    result = {
        "model": model,
        "backend": backend,
        "ranks": context.world_size,
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine(),
        "corpus": corpus.origin,
        "utterances": {s: len(getattr(corpus, s)) for s in ("train", "dev", "test")},
        "best_epoch": best.get("epoch"),
        "test": {k: v for k, v in test.items() if k != "decode_s"},
        "training_time_per_epoch": float(np.median(times)),
        "total_training_time": sum(row["train_s"] for row in rows),
        "inference_time": test["decode_s"],
        "peak_memory_bytes": peak_memory(device),
        "over_long_segments": over,
        "parameters": sum(p.numel() for p in tagger.parameters()),
    }
    write_json(out / "result.json", result)
    log.info(
        "%s on %s: test PER %.3f, %.2f s an epoch",
        model,
        backend,
        test["phone_error_rate"],
        result["training_time_per_epoch"],
    )


@contextlib.contextmanager
def journal(out: Path, context: RankContext) -> Iterator[Any]:
    """epochs.jsonl, one flushed line per epoch; nothing on other ranks."""
    if context.rank:
        yield lambda row: None
        return
    path = out / "epochs.jsonl"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    with file:

        def note(row: dict[str, Any]) -> None:
            with writing(path):
                kept = {k: v for k, v in row.items() if k != "duration_stats"}
                file.write(msgspec.json.encode(kept) + b"\n")
                file.flush()

        yield note


def peak_memory(device: torch.device) -> int | None:
    """Peak GPU memory in bytes; None on a CPU, where the manifest has the process's peak resident set."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
