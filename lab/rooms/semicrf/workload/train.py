"""One training of the benchmark: one head on one backend; runs where the GPU is, one process per rank.

    python -m lab.rooms.semicrf.workload.train --config train.json --model semicrf --backend auto --out DIR

It writes into DIR `epochs.jsonl` (one line per epoch, flushed), `result.json` (test metrics, times, memory;
whole or not at all) and `environment.json`. The epoch that is scored on the test set is the best on the dev
split.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lab.core.words import plural
from lab.errors import UsageError
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.workload.common import log, set_up_logging, write_environment
from lab.rooms.semicrf.workload.corpus.load import load_corpus
from lab.rooms.semicrf.workload.epochs import evaluated, report_epoch, train_epoch
from lab.rooms.semicrf.workload.results import journal, write_result
from lab.rooms.semicrf.workload.task import TrainingTask
from lab.rooms.semicrf.workload.training import make_optimizer, make_tagger
from lab.workload.failures import leave_group
from lab.workload.rank import RankContext, choose_device, process_group
from lab.workload.start import read_config, start


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="lab.rooms.semicrf.workload.train")
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--backend", required=True)
    args, context = start(parser, argv)
    set_up_logging(context)
    device = choose_device(context)
    if context.rank == 0:
        write_environment(args.out, device, context)
    with process_group(context, device) if context.world_size > 1 else contextlib.nullcontext():
        run(read_config(args.config, TrainConfig), args.model, args.backend, args.out, context, device)
    leave_group(context)


def run(
    config: TrainConfig, model: str, backend: str, out: Path, context: RankContext, device: torch.device
) -> None:
    """Train, choose the best epoch on dev, score it on test. Raises StepFailed for a loss not finite."""
    corpus = load_corpus(config)
    if len(corpus.train) < context.world_size:
        few = f"{plural(len(corpus.train), 'training utterance')} for {plural(context.world_size, 'rank')}"
        raise UsageError(few, fix="fewer --ranks, or more data")
    tagger = make_tagger(config, corpus, model, backend).to(device)
    task = TrainingTask(config, model, backend, corpus, tagger, context, device)
    optimizer, schedule = make_optimizer(tagger, config)
    module = distributed(tagger, device) if context.world_size > 1 else tagger
    if context.rank == 0:
        log_corpus(task)
    best: dict[str, Any] = {"phone_error_rate": math.inf}
    reset_peak(device)
    rows = []
    with journal(out, context) as note:
        for epoch in range(1, config.epochs + 1):
            row = train_epoch(task, module, optimizer, epoch)
            schedule.step()
            if context.rank == 0:
                row.update(evaluated(task, corpus.dev))
                if row["phone_error_rate"] < best["phone_error_rate"]:
                    best = {**row, "weights": copy.deepcopy(tagger.state_dict())}
                report_epoch(task, row)
                rows.append(row)
                note(row)
    if context.rank == 0:
        write_result(task, rows, best, out)


def distributed(tagger: nn.Module, device: torch.device) -> nn.Module:
    ids = [device.index] if device.index is not None else None
    return nn.parallel.DistributedDataParallel(tagger, device_ids=ids)


def log_corpus(task: TrainingTask) -> None:
    corpus, config = task.corpus, task.config
    frames = [len(u.features) for u in corpus.train]
    sizes = (len(corpus.train), len(corpus.dev), len(corpus.test), len(corpus.phones))
    text = "%s corpus: %d/%d/%d utterances, %d phones, %d to %d frames; head %s"
    log.info(text, corpus.origin, *sizes, min(frames), max(frames), task.model)
    for note in corpus.notes:
        log.log(logging.WARNING if note.suspect else logging.INFO, note.text)
    over = task.over_long_segments
    if over and task.model == "semicrf":
        text = "%s longer than --max-duration %d: %s"
        log.info(text, plural(over, "gold segment"), config.max_duration, config.over_long)


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


if __name__ == "__main__":
    main()
