"""The cost of the validation points: training steps with and without them, alternating (bar: 3 %)."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import torch

from bench.table import Row, at_most, measured
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.workload.corpus.load import load_corpus
from lab.rooms.semicrf.workload.training import make_tagger, to_batch, train_step

ROUNDS = {"cuda": 60, "cpu": 20}
STEPS = {"cuda": 5, "cpu": 4}
"""Steps per measurement: few, because a host's clock drifts by more in a second than the points cost."""
BAR = 0.03


def main() -> None:
    """The benchmark's model (BiLSTM, K = 30, 39 phones, batch 32) on this device; a smaller one on a CPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    config = TrainConfig(utterances=64, **({} if on_gpu else {"hidden_dim": 64, "num_layers": 1}))
    corpus = load_corpus(config)
    batch = to_batch(corpus.train[: 32 if on_gpu else 8], device)
    runs = {}
    for on in (False, True):
        tagger = make_tagger(msgspec.structs.replace(config, validate=on), corpus, "semicrf", "auto")
        tagger = tagger.to(device)
        runs[on] = (tagger, torch.optim.AdamW(tagger.parameters(), lr=1e-4))
        step_ms(*runs[on], batch, device, 3)  # kernels are compiled here
    print(f"points of a step: {', '.join(points_of(*runs[True], batch, device))}")
    times: dict[bool, list[float]] = {on: [] for on in runs}
    for at in range(ROUNDS[device.type]):
        for on in (False, True) if at % 2 else (True, False):
            times[on].append(step_ms(*runs[on], batch, device, STEPS[device.type]))
    report(device, times)


def report(device: torch.device, times: dict[bool, list[float]]) -> None:
    off, on = (statistics.median(times[which]) for which in (False, True))
    costs = [b / a - 1 for a, b in zip(times[False], times[True], strict=True)]
    low, high = np.percentile(costs, [25, 75])
    cost = statistics.median(costs)
    limit, met = at_most(100 * cost, 100 * BAR, "% more")
    measured(
        Row(
            f"a training step of the semi-CRF with validation points, {device.type}",
            cost=f"{on:.2f} ms",
            peer=f"without {off:.2f} ms",
            ratio=off / on,
            limit=limit,
            met=met,
        )
    )
    print(
        f"{device.type}: a step takes {off:.2f} ms, with validation points {on:.2f} ms: {100 * cost:+.1f} % "
        f"(quartiles {100 * low:+.1f} to {100 * high:+.1f} %); "
        f"bar: {100 * BAR:.0f} %, {'met' if cost <= BAR else 'MISSED'}"
    )


def points_of(tagger: Any, optimizer: Any, batch: Any, device: torch.device) -> list[str]:
    """The names of the points that one step passes, with their number where there are several."""
    validator, seen = tagger.validator, []
    watch = validator.watch

    def noted(name: str, *more: Any) -> None:
        seen.append(name)
        watch(name, *more)

    validator.watch = noted
    step_ms(tagger, optimizer, batch, device, 1)
    validator.watch = watch
    return [name if count == 1 else f"{count} {name}" for name, count in Counter(seen).items()]


def step_ms(tagger: Any, optimizer: Any, batch: Any, device: torch.device, steps: int) -> float:
    """Mean time per step over `steps`, the device drained at both ends; CPU seconds on a CPU."""
    validator = tagger.validator
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    drain(device)
    begin = clock()
    for _ in range(steps):
        if validator:
            validator.settle()
        train_step(tagger, optimizer, batch, 5.0)
    drain(device)
    return 1e3 * (clock() - begin) / steps


def drain(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
