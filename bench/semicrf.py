"""Semi-CRF against flash-semicrf 0.2.0 in one process (bars: GPU forward 60x, forward+backward 150x; CPU 20x).

LAB_BENCH_FLASH_SEMICRF names a folder made by `pip install --no-deps --target FOLDER flash-semicrf==0.2.0`.
On a GPU the peer's Triton kernels run, else its PyTorch reference. Before any timing, log Z and the duration
gradient of both are compared with the float64 form; LAB_BENCH_ROUNDS says how often the two take turns (2).
Options: `python -m bench.semicrf long` runs the chromosome-long shapes of lab alone, with memory.
"""

from __future__ import annotations

import inspect
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

GPU_SHAPES = [
    (64, 1000, 100, 24),
    (64, 1000, 100, 32),
    (32, 1000, 500, 24),
    (2, 10000, 100, 24),
    (32, 400, 30, 39),
]
CPU_SHAPES = [(4, 500, 30, 24), (2, 2000, 100, 16), (32, 400, 30, 39)]
LONG_SHAPES = [(1, 100_000, 100, 24), (1, 100_000, 1000, 24), (1, 400_000, 3000, 24)]
VARIABLE = "LAB_BENCH_FLASH_SEMICRF"


@dataclass
class Contender:
    """One way to compute: `forward()` gives log Z (B,), `train()` (log Z, duration gradient)."""

    name: str
    forward: Callable[[], Any]
    train: Callable[[], tuple[Any, Any]]


def main() -> None:
    import torch

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "one CPU thread"
    print(
        f"torch {torch.__version__} on {name}; medians, ms; B,T,K,C = batch, frames, longest segment, labels"
    )
    peer = find_peer()
    rounds = int(os.environ.get("LAB_BENCH_ROUNDS", "2"))
    for shape in GPU_SHAPES if device == "cuda" else CPU_SHAPES:
        compare(shape, device, peer, rounds)


def find_peer() -> Callable[..., Any] | None:
    """The peer's streaming function, from the folder that the variable names."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        print(f"skipped the peer: {VARIABLE} does not name a folder that holds flash-semicrf==0.2.0")
        return None
    sys.path.append(folder)
    from flash_semicrf.streaming import semi_crf_streaming_forward

    return semi_crf_streaming_forward


def problem_of(shape: tuple[int, int, int, int], device: str) -> Any:
    """Normal scores; transition and duration a tenth of that. `start` is what the peer gives its first segment."""
    import torch

    from lab.rooms.semicrf.model.problem import make_problem

    batch, frames, longest, labels = shape
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(device)

    transition = normal(labels, labels) * 0.1
    score_BTC, duration_KC = normal(batch, frames, labels), normal(longest, labels) * 0.1
    return make_problem(score_BTC, transition, duration_KC, None, torch.logsumexp(transition, 0))


def ours(problem: Any, dtype: Any, backend: str) -> Contender:
    """lab's log partition on the problem's scores in `dtype`."""
    from lab.rooms.semicrf.model.api import log_partition

    leaves = [value.to(dtype).requires_grad_() for value in problem.floats()[:3]]
    start_C, lengths_B = problem.start_C.to(dtype), problem.lengths_B

    def forward() -> Any:
        import torch

        with torch.no_grad():
            return log_partition(*leaves, lengths_B, start_C=start_C, backend=backend)

    def train() -> tuple[Any, Any]:
        for leaf in leaves:
            leaf.grad = None
        log_z_B = log_partition(*leaves, lengths_B, start_C=start_C, backend=backend)
        log_z_B.sum().backward()
        return log_z_B.detach(), leaves[2].grad

    return Contender(f"lab {str(dtype).removeprefix('torch.')}", forward, train)


def theirs(problem: Any, peer: Callable[..., Any], options: dict[str, Any], dtype: Any) -> Contender:
    """The peer on the same model: cumulative scores in float64 on a GPU, where its kernels want them."""
    import torch

    score_BTC = problem.score_BTC.to(dtype)
    cumulative = torch.cat([torch.zeros_like(score_BTC[:, :1]), score_BTC.cumsum(1)], 1)
    leaves = [
        v.requires_grad_() for v in (cumulative, problem.transition.to(dtype), problem.duration_KC.to(dtype))
    ]
    rest = (problem.lengths_B, problem.shape[2])

    def forward() -> Any:
        with torch.no_grad():
            return peer(*leaves, *rest, **options)

    def train() -> tuple[Any, Any]:
        for leaf in leaves:
            leaf.grad = None
        log_z_B = peer(*leaves, *rest, **options)
        log_z_B.sum().backward()
        return log_z_B.detach(), leaves[2].grad

    label = options.get("precision") or str(dtype).removeprefix("torch.")
    return Contender(f"flash-semicrf {label}", forward, train)


def contenders(problem: Any, device: str, peer: Callable[..., Any] | None) -> list[Contender]:
    import torch

    if device == "cpu":
        found = [ours(problem, torch.float32, "torch")]
        return found + ([theirs(problem, peer, {"use_triton": False}, torch.float32)] if peer else [])
    found = [ours(problem, dtype, "triton") for dtype in (torch.float32, torch.float64)]
    if peer:
        precisions = ("float32", "float64") if "precision" in inspect.signature(peer).parameters else (None,)
        options = [{"precision": p} if p else {} for p in precisions]
        found += [theirs(problem, peer, option, torch.float64) for option in options]
    return found


def compare(
    shape: tuple[int, int, int, int], device: str, peer: Callable[..., Any] | None, rounds: int
) -> None:
    """Errors first, then times in turns; a line for each contender."""
    import torch

    problem = problem_of(shape, device)
    exact_z, exact_d = ours(problem, torch.float64, "torch").train()
    found = contenders(problem, device, peer)
    errors = {}
    for one in found:  # also the warm-up: kernels are compiled here
        log_z, gradient = one.train()
        one.forward()
        errors[one.name] = (
            float((log_z - exact_z).abs().max()),
            float((gradient - exact_d).abs().max() / exact_d.abs().max()),
        )
    times: dict[str, tuple[list[float], list[float]]] = {one.name: ([], []) for one in found}
    for _ in range(rounds):
        for one in found:
            repeats = 20 if one.name.startswith("lab") and device == "cuda" else 1
            for into, call in zip(times[one.name], (one.forward, one.train), strict=True):
                into += [elapsed_ms(call, device) for _ in range(repeats)]
    show(shape, found, times, errors)


def show(
    shape: tuple[int, ...], found: list[Contender], times: dict[str, tuple[list[float], list[float]]],
    errors: dict[str, tuple[float, float]],
) -> None:  # fmt: skip
    print(f"\n{shape}")
    print(f"  {'':24} {'fwd':>10} {'fwd+bwd':>10} {'|dlogZ|':>9} {'d dur rel':>9}   times lab's first line")
    base = [statistics.median(values) for values in times[found[0].name]]
    for one in found:
        medians = [statistics.median(values) for values in times[one.name]]
        ratios = "  ".join(f"{m / b:8.1f}x" for m, b in zip(medians, base, strict=True))
        error_z, error_d = errors[one.name]
        print(
            f"  {one.name:24} {medians[0]:10.3f} {medians[1]:10.3f} {error_z:9.1e} {error_d:9.1e}   {ratios}"
        )


def elapsed_ms(call: Callable[[], Any], device: str) -> float:
    """Wall time on the CPU, events on the GPU."""
    import torch

    if device == "cpu":
        begin = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - begin)
    begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin_event.record()
    call()
    end_event.record()
    torch.cuda.synchronize()
    return float(begin_event.elapsed_time(end_event))


def long() -> None:
    """The long shapes: seconds, memory beyond the inputs, and the share of the sequential limit."""
    import torch

    for shape in LONG_SHAPES:
        problem = problem_of(shape, "cuda")
        one = ours(replace(problem), torch.float32, "triton")
        one.train()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        forward_s, train_s = elapsed_ms(one.forward, "cuda") / 1e3, elapsed_ms(one.train, "cuda") / 1e3
        extra_gb = (torch.cuda.max_memory_allocated() - before) / 1e9
        print(
            f"{shape}: forward {forward_s:.3f} s, forward+backward {train_s:.3f} s, {extra_gb:.2f} GB beyond the inputs"
        )


if __name__ == "__main__":
    long() if sys.argv[1:] == ["long"] else main()
