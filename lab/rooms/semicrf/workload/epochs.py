"""One epoch: the pass over the training set, the metrics of a split, and the line for people."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.errors import BadDataError, StepFailed
from lab.rooms.semicrf import metrics
from lab.rooms.semicrf.model.validation.points import drift_messages
from lab.rooms.semicrf.workload.common import log
from lab.rooms.semicrf.workload.corpus.utterances import Utterance, batches
from lab.rooms.semicrf.workload.training import (
    TrainingTask,
    epoch_order,
    to_batch,
    train_step,
    validator_of,
)

SHOWN = 4  # utterances that an error names


def train_epoch(task: TrainingTask, optimizer: torch.optim.Optimizer, epoch: int) -> dict[str, Any]:
    """One pass -> loss (mean per utterance), largest gradient norm, seconds, learning rate.

    Raises StepFailed for a gradient or loss that is not finite: nothing after it would mean anything.
    """
    config, train = task.config, task.corpus.train
    task.tagger.train()
    order = epoch_order(len(train), config.seed, epoch)
    validator = validator_of(task.tagger)
    losses: list[Tensor] = []
    norms: list[Tensor] = []
    named: list[list[str]] = []
    synchronize(task.device)
    begin = time.perf_counter()
    for chosen in batches(train, config.batch_size, order):
        if validator:
            validator.settle()
        named.append([utterance.name for utterance in chosen])
        try:
            loss, norm = train_step(task.tagger, optimizer, to_batch(chosen, task.device), config.clip)
        except BadDataError as error:
            location = f"{step_of(epoch, len(losses), named[-1])}: {error.location}"
            raise StepFailed(error.problem, location=location, fix=error.fix) from error
        losses.append(loss)
        norms.append(norm)
        if not norm.is_cuda and not bool(torch.isfinite(norm)):
            break
    synchronize(task.device)
    seconds = time.perf_counter() - begin
    if validator:
        validator.settle(wait=True)
        validator.settle(wait=True)
    refuse_nonfinite(norms, losses, named, epoch)
    return {
        "epoch": epoch,
        "loss": mean_loss(torch.stack(losses), epoch),
        "grad_norm": float(torch.stack(norms).max()),
        "train_s": seconds,
        "lr": optimizer.param_groups[0]["lr"],
    }


def refuse_nonfinite(norms: list[Tensor], losses: list[Tensor], named: list[list[str]], epoch: int) -> None:
    """Raises StepFailed for the first step whose gradient is not finite, naming its utterances."""
    wild = (~torch.isfinite(torch.stack(norms))).nonzero()[:, 0].tolist()
    if wild:
        step = wild[0]
        raise StepFailed(
            f"the gradient's norm is {float(norms[step])} and the loss {float(losses[step])}",
            location=step_of(epoch, step, named[step]),
            fix="--validate names the sequence and frame; lab run semicrf diagnose finds the cause",
        )


def step_of(epoch: int, step: int, names: list[str]) -> str:
    """Where a training failed: its epoch, its step and the first utterances of the batch."""
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return f"epoch {epoch}, step {step + 1}, utterances {shown}"


def mean_loss(losses: Tensor, epoch: int) -> float:
    """The mean over batches. Raises StepFailed if it is not finite."""
    value = float(losses.mean())
    if not math.isfinite(value):
        raise StepFailed(f"the loss of epoch {epoch} is {value}", fix="lab run semicrf diagnose says why")
    return value


def evaluated(task: TrainingTask, utterances: list[Utterance]) -> dict[str, Any]:
    """Metrics of a split, and the seconds that decoding took."""
    task.tagger.eval()
    synchronize(task.device)
    begin = time.perf_counter()
    predicted = []
    for chosen in batches(utterances, task.config.batch_size, np.arange(len(utterances))):
        predicted += task.tagger.segments(to_batch(chosen, task.device))
    synchronize(task.device)
    seconds = time.perf_counter() - begin
    # The linear head and split segments give neighbours of one label; a phone ends where the label changes.
    reference = [metrics.merged(list(u.segments)) for u in utterances]
    predicted = [metrics.merged(segments) for segments in predicted]
    scores = metrics.score(reference, predicted, task.corpus.phones, task.config.max_duration)
    return {**scores, "decode_s": seconds}


def report_epoch(task: TrainingTask, row: dict[str, Any]) -> None:
    """Log the epoch, and add the parameters' magnitudes to its row."""
    epoch, config = row["epoch"], task.config
    row["transition_max"], row["duration_max"] = task.tagger.head.magnitudes()  # type: ignore[operator]
    for level, text in drift_messages(epoch, row["transition_max"], row["duration_max"]):
        log.log(getattr(logging, level), text)
    if epoch % config.log_every == 0 or epoch in (1, config.epochs):
        text = "epoch %d/%d  loss %.3f  dev PER %.3f  boundary F1 %.3f  grad norm %.2f  %.2f s"
        names = ("loss", "phone_error_rate", "boundary_f1", "grad_norm", "train_s")
        log.info(text, epoch, config.epochs, *(row[name] for name in names))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
