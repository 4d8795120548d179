"""Chromosome-long sequences of lab alone: seconds, memory, accuracy, share of the limit.

Bar: 1 GB beyond the inputs. The limit is derived from what this device does in the same run: bytes that must
move at the rate of a copy, multiply-adds at the rate of a float32 matrix product, and frames that follow one
another at the time of a step, which a problem of the same length with segments of at most 2 frames shows.
LAB_BENCH_SHAPES names other shapes, as in bench/semicrf.py.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from bench.semicrf import Shape, clocks, elapsed_ms, lab_backend, ours, problem_of, shapes
from bench.table import Row, measured

SHAPES: list[Shape] = [(1, 100_000, 100, 24), (1, 100_000, 1000, 24), (1, 400_000, 3000, 24)]
SHORTEST = 2
"""The longest segment of the problem that shows the time of a step."""
TIMES = 3
BAR_BYTES = 1e9


@dataclass(frozen=True)
class Rates:
    """What the device reaches: bytes and multiply-adds in a second."""

    bytes: float
    adds: float


def main() -> None:
    import torch

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rates = measured_rates(device)
    print(
        f"torch {torch.__version__}: a copy moves {rates.bytes / 1e9:.0f} GB/s, "
        f"a float32 matrix product does {rates.adds / 1e12:.2f}e12 multiply-adds/s"
    )
    for shape in shapes(SHAPES):
        report(shape, device, rates)


def report(shape: Shape, device: str, rates: Rates) -> None:
    """One shape: times and memory, errors, limit."""
    import torch

    print(f"\n{shape}", flush=True)
    batch, frames, longest, labels = shape
    one = ours(problem_of(shape, device), torch.float32, lab_backend(device))
    for _ in range(1 + TIMES):
        for kind in one.ms:
            one.call(kind, device)
    clocks(device)
    step_s = step_seconds((batch, frames, min(SHORTEST, longest), labels), device)
    for kind, title in (("forward", "forward"), ("train", "forward+backward")):
        seconds = statistics.median(one.ms[kind][1:]) / 1e3
        within = "met" if one.bytes[kind] <= BAR_BYTES else "MISSED"
        memory = f"{one.bytes[kind] / 1e9:.3f} GB beyond the inputs (bar 1 GB: {within})"
        print(f"  {title}: {seconds:.4f} s (median of {TIMES})" + (f", {memory}" if device == "cuda" else ""))
        print(f"    {limit(shape, kind, step_s, rates, seconds)}")
        measured(
            Row(
                f"a long sequence, {title} on {device}",
                size=f"B,T,K,C = {','.join(map(str, shape))}",
                cost=f"{seconds:.4f} s",
                memory_mb=one.bytes[kind] / 1e6 if device == "cuda" else None,
                limit="≤ 1 GB" if device == "cuda" else "",
                met=within == "met" if device == "cuda" else None,
            )
        )
    print(f"  {accuracy(problem_of(shape, device), device)}")


def step_seconds(shape: Shape, device: str) -> float:
    """Seconds per frame when only the order of frames costs time: forward, shortest segments."""
    import torch

    one = ours(problem_of(shape, device), torch.float32, lab_backend(device))
    for _ in range(1 + TIMES):
        one.call("forward", device)
    return statistics.median(one.ms["forward"][1:]) / 1e3 / shape[1]


def limit(shape: Shape, kind: str, step_s: float, rates: Rates, seconds: float) -> str:
    """The limit's three numbers in words, and which share of it was reached.

    Bytes: scores are read once by each direction, and the gradient is written. Multiply-adds: C^2 + K C of a
    frame in each direction, and as many again for the counts of transitions and of durations. Both directions
    run side by side.
    """
    batch, frames, longest, labels = shape
    passes, training = (1, 0) if kind == "forward" else (2, 1)
    moved = 4 * batch * frames * labels * (passes + training)
    adds = batch * frames * (labels**2 + min(longest, frames) * labels) * (passes + training)
    parts = {
        f"{moved / 1e9:.3f} GB": moved / rates.bytes,
        f"{adds:.2g} multiply-adds": adds / rates.adds,
        f"{frames} steps x {1e6 * step_s:.3f} us": frames * step_s,
    }
    words = ", ".join(f"{what} = {least:.2g} s" for what, least in parts.items())
    return f"limit {max(parts.values()):.4f} s ({words}); reached {100 * max(parts.values()) / seconds:.0f} %"


def accuracy(problem: Any, device: str) -> str:
    """float32 against the float64 kernels: log Z, posteriors, duration counts; and both mass errors."""
    import torch

    from lab.rooms.semicrf.model.api import posteriors

    found = {}
    for dtype in (torch.float32, torch.float64):
        floats = [value.to(dtype) for value in problem.floats()]
        found[dtype] = posteriors(
            *floats[:3], problem.lengths_B, start_C=floats[3], end_C=floats[4], backend=lab_backend(device)
        )
    narrow, wide = found[torch.float32], found[torch.float64]
    gap = float((narrow.log_z_B - wide.log_z_B).abs().max())
    label = float((narrow.label_BTC.double() - wide.label_BTC).abs().max())
    duration = float((narrow.duration_BKC - wide.duration_BKC).abs().max() / wide.duration_BKC.abs().max())
    masses = ", ".join(
        f"{name} {float(x.mass_error_B.max()):.1e}" for name, x in (("float32", narrow), ("float64", wide))
    )
    return (
        f"float32 against float64: |d log Z| {gap:.1e} of {float(wide.log_z_B[0]):.0f}, "
        f"posteriors {label:.1e}, duration counts {duration:.1e} relative; worst mass error {masses}"
    )


def measured_rates(device: str) -> Rates:
    """A copy and a float32 matrix product on this device, the best of a few."""
    import torch

    count, side = (1 << 27, 4096) if device == "cuda" else (1 << 22, 512)
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    square = torch.ones(side, side, device=device)
    exact = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    copied = min(elapsed_ms(lambda: target.copy_(source), device) for _ in range(5))
    product = min(elapsed_ms(lambda: square @ square, device) for _ in range(5))
    torch.backends.cuda.matmul.allow_tf32 = exact
    return Rates(2 * 4 * count / copied * 1e3, side**3 / product * 1e3)


if __name__ == "__main__":
    main()
