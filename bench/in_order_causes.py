"""Why short kernels take longer in order than in the model: one factor at a time, on one GPU.

    python -m bench.in_order_causes [--repeats 200]

A softmax and an addition of a decode step run under torch's profiler: back to back, after a gap on the host,
with a fresh output each time, with an input that a kernel wrote just before, with other kernels in between
(they evict its instructions), and after the L2 cache was overwritten. Prints the median kernel time and its
ratio to the first row; the factor whose ratio is near the error of an in-order replay is its cause.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

from bench.table import Row, measured
from lab.rooms.kernels.workload.replay.machine import l2_bytes
from lab.rooms.kernels.workload.replay.main import Observer

GPU = torch.device("cuda", 0)


def wait(us: float) -> None:
    end = time.perf_counter() + us * 1e-6
    while time.perf_counter() < end:
        pass


def factors(
    call: Callable[[], object], fresh: Callable[[], object], source: torch.Tensor
) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Name -> (what happens before, the call)."""
    others = [torch.randn(64, 64 + 16 * k, device=GPU, dtype=torch.float16) for k in range(12)]
    flush = torch.empty(2 * l2_bytes(GPU), dtype=torch.uint8, device=GPU)

    def mix() -> None:
        for one in others:
            torch.relu(one @ one.t()).sum().sqrt().exp()

    return {
        "back to back, same output": (lambda: None, call),
        "host gap 20 us": (lambda: wait(20), call),
        "host gap 100 us": (lambda: wait(100), call),
        "host gap 1000 us": (lambda: wait(1000), call),
        "fresh output": (lambda: None, fresh),
        "input written just before": (lambda: source.mul_(1.0), call),
        "12 other shapes in between": (mix, call),
        "other shapes and gap 100 us": (lambda: (mix(), wait(100)), call),
        "input not in L2": (lambda: flush.zero_(), call),
    }


def median_us(before: Callable[[], object], call: Callable[[], object], repeats: int) -> float:
    observer = Observer(GPU)
    for _ in range(10):
        before()
        call()
    torch.cuda.synchronize()
    with observer.watching():
        for _ in range(repeats):
            before()
            with observer.label("x"):
                call()
    return statistics.median(sum(one.dur_us) for one in observer.seen["x"] if one.dur_us)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    scores = torch.randn(16, 1, 64, device=GPU, dtype=torch.float16)
    hidden = torch.randn(1, 1, 1024, device=GPU, dtype=torch.float16)
    out_scores, out_hidden = torch.empty_like(scores), torch.empty_like(hidden)
    cases = {
        "softmax 16x1x64 fp16": factors(
            lambda: torch.softmax(scores, -1, out=out_scores), lambda: torch.softmax(scores, -1), scores
        ),
        "add 1x1x1024 fp16": factors(
            lambda: torch.add(hidden, hidden, out=out_hidden), lambda: hidden + hidden, hidden
        ),
    }
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {repeats} repeats")
    for name, rows in cases.items():
        print(name)
        first = None
        for factor, (before, call) in rows.items():
            us = median_us(before, call, repeats)
            first = first or us
            measured(Row(f"{name}, {factor}", cost=f"{us:.3f} us", ratio=first / us))


if __name__ == "__main__":
    tempfile.tempdir = tempfile.mkdtemp(prefix="lab-in-order-")
    try:
        with torch.no_grad():
            main()
    finally:
        shutil.rmtree(tempfile.tempdir)
