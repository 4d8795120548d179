"""The matrix of a diagnosis: short trainings of one backend, each with its outcome."""

from __future__ import annotations

import hashlib
import logging
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from lab.errors import LabError
from lab.rooms.semicrf.config import DiagnoseConfig, TrainConfig
from lab.rooms.semicrf.model.validation.points import drift_messages
from lab.rooms.semicrf.workload.cases import poison_free_memory
from lab.rooms.semicrf.workload.common import log
from lab.rooms.semicrf.workload.corpus.load import load_corpus
from lab.rooms.semicrf.workload.corpus.utterances import Corpus, Utterance, batches, cropped
from lab.rooms.semicrf.workload.probes import finite_number
from lab.rooms.semicrf.workload.training import Tagger, epoch_order, make_tagger, to_batch, train_step

REG = 0.01
POISON_BYTES = 16 << 20  # several times what a step of the smoke preset allocates


def cells(config: DiagnoseConfig, backend: str, device: torch.device, out: Path) -> dict[str, Any]:
    """Every cell of the matrix for one backend: a short training with its outcome."""
    corpus = load_corpus(config.train)
    typical = int(np.median([len(u.features) for u in corpus.train]))
    fixed = cropped(corpus, config.train.fixed_length or max(1, min(200, typical)))
    rows = []
    for lengths, data in (("variable", corpus), ("fixed", fixed)):
        for reg in (0.0, REG):
            for repeat in range(config.repeats):
                for order in range(config.orders):
                    cell = {"backend": backend, "lengths": lengths, "reg": reg, "repeat": repeat}
                    outcome = training(config, data, backend, device, reg, order)
                    rows.append({**cell, "order": order, **outcome})
                    report_cell(rows[-1])
    return {"cells": rows, "fixed_length": len(fixed.train[0].features) if fixed.train else None}


def training(
    config: DiagnoseConfig, corpus: Corpus, backend: str, device: torch.device, reg: float, order: int
) -> dict[str, Any]:
    """Train for `config.steps` steps; -> outcome, the first message of a validation point, a digest of
    weights.
    """
    if not corpus.train:
        return {"outcome": "skipped", "message": "no utterance is as long", "step": 0}
    tagger = prepared(config, corpus, backend, device, reg)
    optimizer = torch.optim.AdamW(tagger.parameters(), lr=config.train.lr)
    trail: list[dict[str, float]] = []
    message = None
    for step, chosen in enumerate(endless(corpus.train, config.train, order)):
        if step == config.steps or message:
            break
        poison_free_memory(device, POISON_BYTES)
        message = one_step(tagger, optimizer, chosen, device, config.train.clip, trail)
    magnitudes = tagger.head.magnitudes()  # type: ignore[operator]
    for level, text in drift_messages(order, *magnitudes):
        log.log(getattr(logging, level), text)
    if message is None and not all(map(math.isfinite, magnitudes)):
        message = "a parameter is not finite after the last step"
    return {
        "outcome": "failed" if message else "passed",
        "message": message,
        "step": len(trail),
        "weights": digest(tagger),
        "lr": config.train.lr,
        "transition_max": finite_number(magnitudes[0]),
        "duration_max": finite_number(magnitudes[1]),
        "trail": trail,
    }


def one_step(
    tagger: Tagger,
    optimizer: torch.optim.Optimizer,
    chosen: list[Utterance],
    device: torch.device,
    clip: float,
    trail: list[dict[str, float]],
) -> str | None:
    """One step; -> what went wrong, in the validation points' words, or None."""
    validator = tagger.head.validator
    try:
        loss, norm = train_step(tagger, optimizer, to_batch(chosen, device), clip)
        validator.settle(wait=True)  # type: ignore[union-attr, operator]
    except (ValueError, RuntimeError, LabError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    trail.append({"loss": float(loss), "grad_norm": float(norm)})
    finite = math.isfinite(trail[-1]["loss"]) and math.isfinite(trail[-1]["grad_norm"])
    if not finite:
        trail[-1] = {}
        return f"loss {float(loss)}, gradient norm {float(norm)}"
    return None


def prepared(
    config: DiagnoseConfig, corpus: Corpus, backend: str, device: torch.device, reg: float
) -> Tagger:
    """The model under test; padding holds NaN where no kernel may look."""
    train = msgspec.structs.replace(config.train, crf_reg=reg, validate=True, dropout=0.0)
    tagger = make_tagger(train, corpus, "semicrf", backend).to(device)
    head: Any = tagger.head
    head.poison_padding = True
    return tagger


def endless(train: list[Utterance], config: TrainConfig, order: int) -> Any:
    """Endless batches; `order` chooses the permutations."""
    epoch = 0
    while True:
        yield from batches(train, config.batch_size, epoch_order(len(train), config.seed + order, epoch))
        epoch += 1


def digest(tagger: Tagger) -> str:
    """A digest of the exact bits of all weights."""
    hashed = hashlib.sha256()
    for value in tagger.state_dict().values():
        hashed.update(value.detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()[:16]


def report_cell(row: dict[str, Any]) -> None:
    names = ("outcome", "backend", "lengths", "reg", "repeat", "order")
    text = "%-6s %-6s lengths %-8s reg %-4g repeat %d order %d  %s"
    log.info(text, *(row[name] for name in names), row["message"] or "")
