"""One training of the benchmark: one head on one backend; runs where the GPU is.

    python -m lab.rooms.semicrf.workload.train --config train.json --model semicrf --backend auto --out DIR

It writes into DIR `epochs.jsonl` (one line per epoch, flushed), `result.json` (test metrics, times, memory;
whole or not at all) and `environment.json`. The epoch that is scored on the test set is the best on the dev
split.
"""

from __future__ import annotations

import copy
import logging
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from lab.core.words import first_few, plural
from lab.errors import BadDataError, StepFailed, writing
from lab.rooms.semicrf import metrics
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.workload.common import begin, log, log_drift
from lab.rooms.semicrf.workload.corpus.load import load_corpus
from lab.rooms.semicrf.workload.corpus.utterances import Corpus, Utterance, batches
from lab.rooms.semicrf.workload.training import (
    Tagger,
    epoch_order,
    make_tagger,
    over_long_segments,
    to_batch,
    train_step,
)
from lab.workload.start import write_json


def main(argv: Sequence[str] | None = None) -> None:
    args, config, device = begin("train", TrainConfig, argv, "--model", "--backend")
    run(config, args.model, args.backend, args.out, device)


@dataclass(frozen=True)
class TrainingTask:
    """One head (`model`) on one backend."""

    config: TrainConfig
    model: str
    backend: str
    corpus: Corpus
    tagger: Tagger
    device: torch.device


def run(config: TrainConfig, model: str, backend: str, out: Path, device: torch.device) -> None:
    """Train, choose the best epoch on dev, score it on test. Raises StepFailed for a loss not finite."""
    corpus = load_corpus(config)
    tagger = make_tagger(config, corpus, model, backend).to(device)
    task = TrainingTask(config, model, backend, corpus, tagger, device)
    optimizer = torch.optim.AdamW(tagger.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config.epochs)
    log_corpus(task)
    best: dict[str, Any] = {"phone_error_rate": math.inf}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    rows = []
    journal = out / "epochs.jsonl"
    with writing(journal):
        journal.parent.mkdir(parents=True, exist_ok=True)
        journal.write_bytes(b"")
    for epoch in range(1, config.epochs + 1):
        row = train_epoch(task, optimizer, epoch)
        schedule.step()
        row.update(evaluated(task, corpus.dev))
        if row["phone_error_rate"] < best["phone_error_rate"]:
            best = {**row, "weights": copy.deepcopy(tagger.state_dict())}
        report_epoch(task, row)
        rows.append(row)
        columns = {name: value for name, value in row.items() if name != "duration_stats"}
        with writing(journal), journal.open("ab") as file:
            file.write(msgspec.json.encode(columns) + b"\n")
    write_result(task, rows, best, out)


def log_corpus(task: TrainingTask) -> None:
    corpus, config = task.corpus, task.config
    frames = [len(u.features) for u in corpus.train]
    sizes = (len(corpus.train), len(corpus.dev), len(corpus.test), len(corpus.phones))
    text = "%s corpus: %d/%d/%d utterances, %d phones, %d to %d frames; head %s"
    log.info(text, corpus.origin, *sizes, min(frames), max(frames), task.model)
    for note in corpus.notes:
        log.log(logging.WARNING if note.suspect else logging.INFO, note.text)
    over = over_long_segments(corpus, config.max_duration)
    if over and task.model == "semicrf":
        text = "%s longer than --max-duration %d: %s"
        log.info(text, plural(over, "gold segment"), config.max_duration, config.over_long)


def train_epoch(task: TrainingTask, optimizer: torch.optim.Optimizer, epoch: int) -> dict[str, Any]:
    """One pass -> loss (mean per utterance), largest gradient norm, seconds, learning rate.

    Raises StepFailed for a gradient or loss that is not finite: nothing after it would mean anything.
    """
    config, train, tagger = task.config, task.corpus.train, task.tagger
    tagger.train()
    losses: list[Tensor] = []
    norms: list[Tensor] = []
    names: list[list[str]] = []
    started = synchronized(task.device)
    for chosen in batches(train, config.batch_size, epoch_order(len(train), config.seed, epoch)):
        if tagger.validator:
            tagger.validator.settle()
        names.append([utterance.name for utterance in chosen])
        try:
            loss, norm = train_step(tagger, optimizer, to_batch(chosen, task.device), config.clip)
        except BadDataError as error:
            location = f"{step_of(epoch, len(losses), names[-1])}: {error.location}"
            raise StepFailed(error.problem, location=location, fix=error.fix) from error
        losses.append(loss)
        norms.append(norm)
        if not norm.is_cuda and not bool(torch.isfinite(norm)):
            break
    seconds = synchronized(task.device) - started
    if tagger.validator:
        tagger.validator.settle(wait=True)
    for step in (~torch.isfinite(torch.stack(norms))).nonzero()[:1, 0].tolist():
        raise StepFailed(
            f"the gradient's norm is {float(norms[step])} and the loss {float(losses[step])}",
            location=step_of(epoch, step, names[step]),
            fix="--validate names the sequence and frame; lab run semicrf diagnose finds the cause",
        )
    mean = float(torch.stack(losses).mean())
    if not math.isfinite(mean):
        raise StepFailed(f"the loss of epoch {epoch} is {mean}", fix="lab run semicrf diagnose says why")
    largest, lr = float(torch.stack(norms).max()), optimizer.param_groups[0]["lr"]
    return {"epoch": epoch, "loss": mean, "grad_norm": largest, "train_s": seconds, "lr": lr}


def step_of(epoch: int, step: int, names: list[str]) -> str:
    """Where a training failed: its epoch, its step and the first utterances of the batch."""
    return f"epoch {epoch}, step {step + 1}, utterances {first_few(names)}"


def evaluated(task: TrainingTask, utterances: list[Utterance]) -> dict[str, Any]:
    """Metrics of a split, and the seconds that decoding took."""
    task.tagger.eval()
    started = synchronized(task.device)
    predicted = []
    for chosen in batches(utterances, task.config.batch_size, np.arange(len(utterances))):
        predicted += task.tagger.segments(to_batch(chosen, task.device))
    seconds = synchronized(task.device) - started
    # The linear head and split segments give neighbours of one label; a phone ends where the label changes.
    reference = [metrics.merged(list(u.segments)) for u in utterances]
    predicted = [metrics.merged(segments) for segments in predicted]
    scores = metrics.score(reference, predicted, task.corpus.phones, task.config.max_duration)
    return {**scores, "decode_s": seconds}


def report_epoch(task: TrainingTask, row: dict[str, Any]) -> None:
    """Log the epoch, and add the parameters' magnitudes to its row."""
    epoch, config = row["epoch"], task.config
    row["transition_max"], row["duration_max"] = task.tagger.head.magnitudes()
    log_drift(epoch, row["transition_max"], row["duration_max"])
    if epoch % config.log_every == 0 or epoch in (1, config.epochs):
        text = "epoch %d/%d  loss %.3f  dev PER %.3f  boundary F1 %.3f  grad norm %.2f  %.2f s"
        names = ("loss", "phone_error_rate", "boundary_f1", "grad_norm", "train_s")
        log.info(text, epoch, config.epochs, *(row[name] for name in names))


def write_result(task: TrainingTask, rows: list[dict[str, Any]], best: dict[str, Any], out: Path) -> None:
    """result.json: the best dev epoch's weights on the test set."""
    if "weights" in best:
        task.tagger.load_state_dict(best.pop("weights"))
    corpus, device = task.corpus, task.device
    test = evaluated(task, corpus.test)
    times = [row["train_s"] for row in rows[1:] or rows]  # the first epoch includes compilation
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine()
    result = {
        "model": task.model,
        "backend": task.backend,
        "device": device.type,
        "device_name": name,
        "corpus": corpus.origin,
        "utterances": {split: len(getattr(corpus, split)) for split in ("train", "dev", "test")},
        "notes": [list(note) for note in corpus.notes],
        "best_epoch": best.get("epoch"),
        "test": {name: value for name, value in test.items() if name != "decode_s"},
        "training_time_per_epoch": float(np.median(times)),
        "total_training_time": sum(row["train_s"] for row in rows),
        "inference_time": test["decode_s"],
        # On a CPU the manifest has the process's peak resident set.
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
        "over_long_segments": over_long_segments(corpus, task.config.max_duration),
        "parameters": sum(p.numel() for p in task.tagger.parameters()),
    }
    write_json(out / "result.json", result)
    text, per = "%s on %s: test PER %.3f, %.2f s per epoch", test["phone_error_rate"]
    log.info(text, task.model, task.backend, per, result["training_time_per_epoch"])


def synchronized(device: torch.device) -> float:
    """The time, s, when all that is queued has run."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
