"""One training of the benchmark: one head on one backend; runs where the GPU is, one process per rank.

    python -m lab.rooms.semicrf.workload.train --config train.json --model semicrf --backend auto --out DIR

It writes into DIR `epochs.jsonl` (a line per epoch, flushed), `result.json` (test metrics, times, memory; whole or not at
all) and `environment.json`. The epoch that is scored on the test set is the best on the dev split.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import logging
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from lab.errors import StepFailed, UsageError, writing
from lab.rooms.semicrf import metrics
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.model.corpus import Corpus, Utterance, batches, load_corpus
from lab.rooms.semicrf.model.training import (
    Tagger,
    epoch_order,
    make_optimizer,
    make_tagger,
    to_batch,
    train_step,
    validator_of,
)
from lab.rooms.semicrf.model.validation import drift_messages
from lab.workload.environment import gpu_state, versions
from lab.workload.failures import leave
from lab.workload.rank import RankContext, choose_device, process_group
from lab.workload.start import read_config, start, write_json

log = logging.getLogger("lab.semicrf")


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
    if context.world_size > 1:
        leave(0)  # all is written; taking down what gloo and DDP leave behind has aborted a finished rank


def run(
    config: TrainConfig, model: str, backend: str, out: Path, context: RankContext, device: torch.device
) -> None:
    """Train, choose the best epoch on dev, score it on test. Raises StepFailed when the loss stops being finite."""
    corpus = load_corpus(config)
    tagger = make_tagger(config, corpus, model, backend).to(device)
    optimizer, schedule = make_optimizer(tagger, config)
    say_corpus(corpus, config, model, context)
    module: nn.Module = tagger
    if context.world_size > 1:
        module = nn.parallel.DistributedDataParallel(
            tagger, device_ids=[device.index] if device.index is not None else None
        )
    best: dict[str, Any] = {"phone_error_rate": math.inf}
    reset_peak(device)
    rows = []
    with journal(out, context) as note:
        for epoch in range(1, config.epochs + 1):
            row = train_epoch(module, tagger, optimizer, corpus.train, config, epoch, context, device)
            schedule.step()
            if context.rank == 0:
                row.update(evaluated(tagger, corpus, corpus.dev, config, device))
                if row["phone_error_rate"] < best["phone_error_rate"]:
                    best = {**row, "weights": copy.deepcopy(tagger.state_dict())}
                report_epoch(row, tagger, config, epoch)
                rows.append(row)
                note(row)
    if context.rank == 0:
        write_result(tagger, corpus, config, model, backend, rows, best, context, device, out)


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
    """One pass; -> loss (mean per utterance), grad_norm, seconds. Ranks take every n-th utterance of one order."""
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
    """Metrics of a split and the seconds that decoding it took."""
    tagger.eval()
    synchronize(device)
    begin = time.perf_counter()
    predicted = []
    for chosen in batches(utterances, config.batch_size, np.arange(len(utterances))):
        predicted += tagger.segments(to_batch(chosen, device))
    synchronize(device)
    seconds = time.perf_counter() - begin
    reference = [list(u.segments) for u in utterances]
    # The linear head and split runs give neighbours of one label; a phone is what lies between changes of label.
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


def say_corpus(corpus: Corpus, config: TrainConfig, model: str, context: RankContext) -> None:
    if context.rank == 0:
        frames = [len(u.features) for u in corpus.train]
        over = sum(1 for u in corpus.train for s, e, _ in u.segments if e - s > config.max_duration)
        log.info(
            "%s corpus: %d/%d/%d utterances, %d phones, %d to %d frames; head %s",
            corpus.origin,
            len(corpus.train),
            len(corpus.dev),
            len(corpus.test),
            len(corpus.phones),
            min(frames),
            max(frames),
            model,
        )
        if over and model == "semicrf":
            log.info(
                "%d gold segments are longer than --max-duration %d: %s",
                over,
                config.max_duration,
                config.over_long,
            )


def set_up_logging(context: RankContext) -> None:
    """PYTHONLOGLEVEL is read here, as the guide promises."""
    level = os.environ.get("PYTHONLOGLEVEL", "INFO").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise UsageError(
            f"PYTHONLOGLEVEL={level!r} is not a valid level", fix="DEBUG, INFO, WARNING or ERROR"
        )
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stdout, level="WARNING")
    log.setLevel(level if context.rank == 0 else "ERROR")


def write_environment(out: Path, device: torch.device, context: RankContext) -> None:
    write_json(
        out / "environment.json",
        {
            "versions": versions(numpy=np.__version__, triton=triton_version()),
            "device": device.type,
            "world_size": context.world_size,
            "smi": gpu_state(),
        },
    )


def triton_version() -> str | None:
    try:
        import triton
    except ModuleNotFoundError:
        return None
    return str(triton.__version__)


@contextlib.contextmanager
def journal(out: Path, context: RankContext) -> Iterator[Any]:
    """epochs.jsonl, a flushed line per epoch; nothing on other ranks."""
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


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Bytes of GPU memory at most; None on a CPU, where the manifest holds the process's largest resident set."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


if __name__ == "__main__":
    main()
