"""The validation points' cost: training steps with them on and off, in turns, in one process; the bar is 3 %."""

from __future__ import annotations

import statistics
import time

import msgspec
import numpy as np
import torch

from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.model.corpus import load_corpus
from lab.rooms.semicrf.model.training import make_tagger, to_batch, train_step, validator_of

STEPS, ROUNDS = 4, 10


def main() -> None:
    """The benchmark's model (BiLSTM, K = 30, 39 phones, batch 32) on this device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = TrainConfig(
        utterances=64, **({} if device.type == "cuda" else {"hidden_dim": 64, "num_layers": 1})
    )
    corpus = load_corpus(config)
    batch = to_batch(corpus.train[: 32 if device.type == "cuda" else 8], device)
    runs = {}
    for on in (False, True):
        tagger = make_tagger(msgspec.structs.replace(config, validate=on), corpus, "semicrf", "auto").to(
            device
        )
        runs[on] = (tagger, torch.optim.AdamW(tagger.parameters(), lr=1e-4))
        step_ms(*runs[on], batch, device, 3)
    times = {on: [] for on in runs}
    for at in range(ROUNDS):
        for on in (False, True) if at % 2 else (True, False):
            times[on].append(step_ms(*runs[on], batch, device, STEPS))
    off, on = (statistics.median(times[which]) for which in (False, True))
    ratios = [b / a for a, b in zip(times[False], times[True], strict=True)]
    low, high = np.percentile(ratios, [25, 75])
    print(f"{device.type}: a step takes {off:.2f} ms, with validation points {on:.2f} ms: "
          f"{100 * (statistics.median(ratios) - 1):+.1f} % (quartiles {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %)")  # fmt: skip


def step_ms(tagger, optimizer, batch, device, steps: int) -> float:
    """Mean time of a step over `steps`, the device drained at both ends; CPU seconds where the CPU does the work."""
    validator = validator_of(tagger)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    drain(device)
    begin = clock()
    for _ in range(steps):
        if validator:
            validator.settle()
        train_step(tagger, optimizer, batch, 5.0)
    drain(device)
    return 1e3 * (clock() - begin) / steps


def drain(device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
