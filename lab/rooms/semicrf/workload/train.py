"""One training of the benchmark: one head on one backend; runs where the GPU is.

    python -m lab.rooms.semicrf.workload.train --config train.json --model semicrf --backend auto --out DIR

It writes into DIR `epochs.jsonl` (one line per epoch, flushed), `result.json` (test metrics, times, memory;
whole or not at all) and `environment.json`. The epoch that is scored on the test set is the best on the dev
split.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lab.core.words import plural
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.workload.common import log, set_up_logging, write_environment
from lab.rooms.semicrf.workload.corpus.load import load_corpus
from lab.rooms.semicrf.workload.epochs import evaluated, report_epoch, train_epoch
from lab.rooms.semicrf.workload.results import journal, write_result
from lab.rooms.semicrf.workload.training import TrainingTask, make_optimizer, make_tagger
from lab.workload.rank import choose_device
from lab.workload.start import read_config, start


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="lab.rooms.semicrf.workload.train")
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--backend", required=True)
    args, context = start(parser, argv)
    set_up_logging()
    device = choose_device(context)
    write_environment(args.out, device, context)
    run(read_config(args.config, TrainConfig), args.model, args.backend, args.out, device)


def run(config: TrainConfig, model: str, backend: str, out: Path, device: torch.device) -> None:
    """Train, choose the best epoch on dev, score it on test. Raises StepFailed for a loss not finite."""
    corpus = load_corpus(config)
    tagger = make_tagger(config, corpus, model, backend).to(device)
    task = TrainingTask(config, model, backend, corpus, tagger, device)
    optimizer, schedule = make_optimizer(tagger, config)
    log_corpus(task)
    best: dict[str, Any] = {"phone_error_rate": math.inf}
    reset_peak(device)
    rows = []
    with journal(out) as note:
        for epoch in range(1, config.epochs + 1):
            row = train_epoch(task, optimizer, epoch)
            schedule.step()
            row.update(evaluated(task, corpus.dev))
            if row["phone_error_rate"] < best["phone_error_rate"]:
                best = {**row, "weights": copy.deepcopy(tagger.state_dict())}
            report_epoch(task, row)
            rows.append(row)
            note(row)
    write_result(task, rows, best, out)


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
