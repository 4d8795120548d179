"""One epoch: the pass over the training set, the metrics of a split, and the line for people."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from lab.errors import StepFailed
from lab.rooms.semicrf import metrics
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.model.corpus.utterances import Corpus, Utterance, batches
from lab.rooms.semicrf.model.training import (
    Tagger,
    epoch_order,
    to_batch,
    train_step,
    validator_of,
)
from lab.rooms.semicrf.model.validation import drift_messages
from lab.rooms.semicrf.workload.common import log
from lab.workload.rank import RankContext


def train_epoch(
    module: nn.Module,
    tagger: Tagger,
    optimizer: torch.optim.Optimizer,
    train: list[Utterance],
    config: TrainConfig,
    epoch: int,
    context: RankContext,
    device: torch.device,
) -> dict[str, Any]:
    """One pass; -> loss (mean per utterance), grad_norm, seconds. Ranks take every n-th utterance of one
    order.
    """
    module.train()
    order = epoch_order(len(train), config.seed, epoch)
    even = (
        len(order) - len(order) % context.world_size
    )  # every rank takes as many steps, or they would wait forever
    mine = order[context.rank : even : context.world_size]
    losses, norms = [], []
    synchronize(device)
    begin = time.perf_counter()
    for chosen in batches(train, config.batch_size, mine):
        validator = validator_of(tagger)
        if validator:
            validator.settle()
        loss, norm = train_step(module, optimizer, to_batch(chosen, device), config.clip)
        losses.append(loss)
        norms.append(norm)
    synchronize(device)
    seconds = time.perf_counter() - begin
    if (validator := validator_of(tagger)) is not None:
        validator.settle(wait=True)
        validator.settle(wait=True)
    loss = torch.stack(losses).mean()
    if context.world_size > 1:
        dist.all_reduce(loss)
        loss = loss / context.world_size
    found = float(loss)
    if not math.isfinite(found):
        raise StepFailed(f"the loss of epoch {epoch} is {found}", fix="lab run semicrf diagnose says why")
    return {
        "epoch": epoch,
        "loss": found,
        "grad_norm": float(torch.stack(norms).max()),
        "train_s": seconds,
        "lr": optimizer.param_groups[0]["lr"],
    }


def evaluated(
    tagger: Tagger, corpus: Corpus, utterances: list[Utterance], config: TrainConfig, device: torch.device
) -> dict[str, Any]:
    """Metrics of a split, and the seconds that decoding took."""
    tagger.eval()
    synchronize(device)
    begin = time.perf_counter()
    predicted = []
    for chosen in batches(utterances, config.batch_size, np.arange(len(utterances))):
        predicted += tagger.segments(to_batch(chosen, device))
    synchronize(device)
    seconds = time.perf_counter() - begin
    reference = [list(u.segments) for u in utterances]
    # The linear head and split runs give neighbours of one label; a phone is what lies between changes of
    # label.
    found = metrics.score(
        [metrics.merged(r) for r in reference],
        [metrics.merged(p) for p in predicted],
        corpus.phones,
        config.max_duration,
    )
    return {**found, "decode_s": seconds}


def report_epoch(row: dict[str, Any], tagger: Tagger, config: TrainConfig, epoch: int) -> None:
    row["transition_max"], row["duration_max"] = tagger.head.magnitudes()  # type: ignore[operator]
    for level, text in drift_messages(epoch, row["transition_max"], row["duration_max"]):
        log.log(getattr(logging, level), text)
    if epoch % config.log_every == 0 or epoch in (1, config.epochs):
        log.info(
            "epoch %d/%d  loss %.3f  dev PER %.3f  boundary F1 %.3f  grad norm %.2f  %.2f s",
            epoch,
            config.epochs,
            row["loss"],
            row["phone_error_rate"],
            row["boundary_f1"],
            row["grad_norm"],
            row["train_s"],
        )


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
