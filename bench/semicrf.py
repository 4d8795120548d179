"""Semi-CRF against flash-semicrf 0.2.0 in one process: times, memory, errors, bits.

Bars: on a GPU forward 60x, forward+backward 150x; on a CPU 20x.

LAB_BENCH_FLASH_SEMICRF names a folder made by `pip install --no-deps --target FOLDER flash-semicrf==0.2.0`.
On a GPU the peer's Triton kernels run, else its PyTorch reference. The contenders take turns, after a warm-up
that for the peer is a short sequence and, where others follow, its first call. log Z and the duration
gradient of every contender stand beside its times, as errors against the float64 torch form. Limits, for a
call of the peer may take most of a minute:

    LAB_BENCH_SHAPES="64,1000,100,24;32,1000,500,24"   B,T,K,C of the shapes
    LAB_BENCH_ROUNDS=3                                 how often the contenders take turns
    LAB_BENCH_PEER_S=60                                seconds for the peer per shape; a call finishes

`python -m bench.semicrf_long` runs chromosome-long sequences of lab alone.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from bench.table import Row, at_least, measured

Shape = tuple[int, int, int, int]
GPU_SHAPES: list[Shape] = [
    (64, 1000, 100, 24),
    (64, 1000, 100, 32),
    (32, 1000, 500, 24),
    (2, 10000, 100, 24),
    (32, 400, 30, 39),
]
CPU_SHAPES: list[Shape] = [(4, 500, 30, 24), (2, 2000, 100, 16), (32, 400, 30, 39)]
BARS = {"cuda": (60.0, 150.0), "cpu": (20.0, 20.0)}
"""How many times the peer's time, forward and forward+backward."""
REPEATS = {"cuda": 20, "cpu": 10}
"""Runs of lab that must agree in every bit, and its timed calls of a round."""
WARM_UPS = {"cuda": 20, "cpu": 1}
WARM_FRAMES = 200
VARIABLE = "LAB_BENCH_FLASH_SEMICRF"


@dataclass
class Contender:
    """One way to compute: `forward()` gives log Z (B,), `train()` log Z and the duration gradient.

    `leaves` are the tensors that get gradients.
    """

    name: str
    forward: Callable[[], Any]
    train: Callable[[], tuple[Any, Any]]
    leaves: list[Any]
    limit_s: float = float("inf")
    ms: dict[str, list[float]] = field(default_factory=lambda: {"forward": [], "train": []})
    bytes: dict[str, int] = field(default_factory=dict)
    errors: tuple[float, float] = (float("nan"), float("nan"))

    def call(self, kind: str, device: str) -> Any:
        """One timed call; -> its result.

        Records milliseconds and the peak of the device's memory beyond what was in use.
        """
        for leaf in self.leaves:
            leaf.grad = None
        results = []
        before = begin_memory(device)
        self.ms[kind].append(elapsed_ms(lambda: results.append(getattr(self, kind)()), device))
        self.bytes[kind] = max(self.bytes.get(kind, 0), peak_bytes(device) - before)
        return results[0]

    def settle(self) -> None:
        """Leave out the first call of a kind where there are others: it compiles for a new length."""
        self.ms = {kind: values[1:] or values for kind, values in self.ms.items()}

    @property
    def spent_s(self) -> float:
        return sum(map(sum, self.ms.values())) / 1e3


def main() -> None:
    import torch

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "one CPU thread"
    print(
        f"torch {torch.__version__} on {name}; medians in ms (quartiles); "
        "B,T,K,C = batch, frames, longest segment, labels"
    )
    peer = find_peer()
    rounds = int(os.environ.get("LAB_BENCH_ROUNDS", "3"))
    for shape in shapes(GPU_SHAPES if device == "cuda" else CPU_SHAPES):
        compare(shape, device, peer, rounds)


def shapes(usual: list[Shape]) -> list[Shape]:
    """LAB_BENCH_SHAPES, or the usual ones."""
    text = os.environ.get("LAB_BENCH_SHAPES")
    if not text:
        return usual
    try:
        found = [tuple(map(int, one.split(","))) for one in text.split(";")]
    except ValueError:
        found = [()]
    if any(len(one) != 4 or min(one) < 1 for one in found):
        sys.exit(f"LAB_BENCH_SHAPES={text!r}: give B,T,K,C of each shape, separated by ';'")
    return [(b, t, k, c) for b, t, k, c in found]


def find_peer() -> Callable[..., Any] | None:
    """The peer's streaming function, from the folder that the variable names."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        print(f"skipped the peer: {VARIABLE} does not name a folder that holds flash-semicrf==0.2.0")
        return None
    sys.path.append(folder)
    from flash_semicrf.streaming import semi_crf_streaming_forward

    return semi_crf_streaming_forward


def problem_of(shape: Shape, device: str) -> Any:
    """Normal scores; transition and duration a tenth of that; `start` as the peer's first segment has."""
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
    import torch

    from lab.rooms.semicrf.model.api import log_partition

    leaves = own_leaves(problem.floats()[:3], dtype)
    start_C, lengths_B = problem.start_C.to(dtype), problem.lengths_B

    def forward() -> Any:
        with torch.no_grad():
            return log_partition(*leaves, lengths_B, start_C=start_C, backend=backend)

    def train() -> tuple[Any, Any]:
        for leaf in leaves:
            leaf.grad = None
        log_z_B = log_partition(*leaves, lengths_B, start_C=start_C, backend=backend)
        log_z_B.sum().backward()
        return log_z_B.detach(), leaves[2].grad

    return Contender(f"lab {backend} {str(dtype).removeprefix('torch.')}", forward, train, leaves)


def own_leaves(values: Iterable[Any], dtype: Any) -> list[Any]:
    """Copies in `dtype` that belong to one contender, and so do their gradients."""
    return [value.detach().to(dtype, copy=True).requires_grad_() for value in values]


def theirs(problem: Any, peer: Callable[..., Any], options: dict[str, Any], dtype: Any) -> Contender:
    """The peer on the same model: cumulative scores in float64 on a GPU, where its kernels want them."""
    import torch

    score_BTC = problem.score_BTC.detach().to(dtype)
    cumulative = torch.cat([torch.zeros_like(score_BTC[:, :1]), score_BTC.cumsum(1)], 1)
    leaves = own_leaves((cumulative, problem.transition, problem.duration_KC), dtype)
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
    limit_s = float(os.environ.get("LAB_BENCH_PEER_S", "60"))
    return Contender(f"flash-semicrf {label}", forward, train, leaves, limit_s)


def peers(problem: Any, device: str, peer: Callable[..., Any] | None) -> list[Contender]:
    """The peer in every precision that it has on this device."""
    import torch

    if peer is None:
        return []
    if device == "cpu":
        return [theirs(problem, peer, {"use_triton": False}, torch.float32)]
    precisions = ("float32", "float64") if "precision" in inspect.signature(peer).parameters else (None,)
    return [theirs(problem, peer, {"precision": p} if p else {}, torch.float64) for p in precisions]


def compare(shape: Shape, device: str, peer: Callable[..., Any] | None, rounds: int) -> None:
    """Warm up, let all take turns, and print times, memory, errors, bits and bars."""
    import torch

    print(f"\n{shape}", flush=True)
    problem = problem_of(shape, device)
    exact = ours(problem, torch.float64, "torch").train()
    labs = [ours(problem, getattr(torch, dtype), backend) for dtype, backend in lab_forms(device)]
    batch, frames, longest, labels = shape
    short = (batch, min(frames, max(WARM_FRAMES, longest + 20)), longest, labels)
    warm = labs + peers(problem_of(short, device), device, peer)
    found = labs + peers(problem, device, peer)
    found = [one for one, first in zip(found, warm, strict=True) if works(first, WARM_UPS[device])]
    for _ in range(rounds):
        for one in found:
            take_turn(one, device, REPEATS[device] if one in labs else 1, exact)
    for one in found[len(labs) :]:
        one.settle()
    clocks(device)
    show(found, device)
    bits(found[0], device)
    bars(found[0], found[len(labs) :], device, shape)


def lab_backend(device: str) -> str:
    return lab_forms(device)[0][1]


def lab_forms(device: str) -> list[tuple[str, str]]:
    """(dtype, backend), the one that the bars are for first.

    What is compiled, and on a CPU torch.
    """
    if device == "cuda":
        return [("float32", "native"), ("float64", "native")]
    from lab.rooms.semicrf.model.native import missing_reason

    reason = missing_reason("cpu")
    if reason:
        print(f"skipped lab native: {reason.splitlines()[0]}")
    return [*([] if reason else [("float32", "native")]), ("float32", "torch")]


def works(one: Contender, warm_ups: int = 1) -> bool:
    """Compile the kernels and let the GPU reach its clocks; a peer that fails is a line with its reason."""
    try:
        for _ in range(1 if one.limit_s < float("inf") else warm_ups):
            one.train()
            one.forward()
    except Exception as error:
        if one.limit_s == float("inf"):
            raise
        print(f"  {one.name} does not run: {type(error).__name__}: {str(error).splitlines()[0]}")
        return False
    return True


def take_turn(one: Contender, device: str, repeats: int, exact: tuple[Any, Any]) -> None:
    """Its calls of a round; a peer that has used up its seconds is called no more than once of each kind."""
    for kind in one.ms:
        for _ in range(repeats):
            if one.ms[kind] and one.spent_s > one.limit_s:
                return
            result = one.call(kind, device)
            if kind == "train":
                one.errors = off(result, *exact)
            del result


def off(found: tuple[Any, Any], exact_z: Any, exact_d: Any) -> tuple[float, float]:
    """Largest difference of log Z, and of the duration gradient relative to its largest entry."""
    log_z, gradient = found
    gap = float((gradient - exact_d).abs().max() / exact_d.abs().max())
    return float((log_z - exact_z).abs().max()), gap


def clocks(device: str) -> None:
    """The GPU's clocks, right after work."""
    if device == "cpu":
        return
    fields = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        values = done.stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        values = f"nvidia-smi does not answer: {type(error).__name__}"
    print(f"  {fields}: {values}")


def show(found: list[Contender], device: str) -> None:
    """A line for each contender and kind of call; ratios are to lab's first line of the kind."""
    kinds = {"forward": "forward", "train": "forward+backward"}
    print(
        f"  {'':22}{'':18}{'ms (quartiles)':>34}{'n':>4}{'':>10}"
        f"{'beyond inputs':>15}{'|d log Z|':>11}{'d duration':>12}"
    )
    for one in found:
        for kind, title in kinds.items():
            ratio = statistics.median(one.ms[kind]) / statistics.median(found[0].ms[kind])
            memory = f"{one.bytes[kind] / 1e6:.0f} MB" if device == "cuda" else "-"
            print(
                f"  {one.name:22}{title:18}{spread(one.ms[kind]):>34}{len(one.ms[kind]):>4}"
                f"{ratio:>9.1f}x{memory:>15}{one.errors[0]:>11.1e}{one.errors[1]:>12.1e}"
            )


def spread(values: list[float]) -> str:
    """Median and quartiles."""
    low, high = (
        statistics.quantiles(values, n=4, method="inclusive")[::2]
        if len(values) > 1
        else (values[0], values[0])
    )
    return f"{statistics.median(values):.3f} ({low:.3f} to {high:.3f})"


def bits(one: Contender, device: str) -> None:
    """How many different results the same training step has, in any bit of log Z or of a gradient."""
    seen = set()
    for _ in range(REPEATS[device]):
        log_z_B, _ = one.train()
        values = (log_z_B, *(leaf.grad for leaf in one.leaves))
        whole = b"".join(value.cpu().numpy().tobytes() for value in values)
        seen.add(hashlib.sha256(whole).hexdigest())
    print(f"  {one.name}: {len(seen)} bit pattern(s) of log Z and gradients in {REPEATS[device]} repeats")


def bars(lab: Contender, others: list[Contender], device: str, shape: Shape) -> None:
    """Each bar: lab's float32 against the peer's float32, or against float64 where it has no other."""
    if not others:
        for kind, title in (("forward", "forward"), ("train", "forward+backward")):
            measured(row_of(lab, kind, title, device, shape))
        return
    rival = next((one for one in others if one.name.endswith("float32")), others[0])
    only = "" if rival.name.endswith("float32") else " (it has no float32)"
    for kind, bar in zip(rival.ms, BARS[device], strict=True):
        ratio = statistics.median(rival.ms[kind]) / statistics.median(lab.ms[kind])
        title = "forward" if kind == "forward" else "forward+backward"
        limit, met = at_least(ratio, bar)
        peer = f"{rival.name}{only} {spread(rival.ms[kind])} ms"
        row = row_of(lab, kind, title, device, shape)
        measured(replace(row, peer=peer, ratio=ratio, limit=limit, met=met))


def row_of(lab: Contender, kind: str, title: str, device: str, shape: Shape) -> Row:
    return Row(
        f"semi-CRF, {title}: {lab.name} on {device}",
        size=f"B,T,K,C = {','.join(map(str, shape))}",
        cost=f"{spread(lab.ms[kind])} ms",
        memory_mb=lab.bytes[kind] / 1e6 if device == "cuda" else None,
        absent=f"no peer: {VARIABLE} names none",
    )


def begin_memory(device: str) -> int:
    """Bytes on the device now; the peak is counted from here. On a CPU nothing is counted."""
    if device == "cpu":
        return 0
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak_bytes(device: str) -> int:
    if device == "cpu":
        return 0
    import torch

    return torch.cuda.max_memory_allocated()


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


if __name__ == "__main__":
    main()
