"""What guarding a training step costs: forward, backward and AdamW, with the guard and without, in turns.

On a GPU: a 7B-shaped Mistral in bfloat16 (random weights, fused AdamW), 2,048 tokens. On a CPU: a small
transformers of some 75 and 15 ms a step and a tiny one, by the thread's own CPU time, because a busy machine
makes wall time of milliseconds useless. Each round begins a new guard, whose first steps look closer and
only warm up, and then takes one period: a guard reads weights, state and, on a CPU, magnitudes in one step
of eight. A time is the mean over the period of the medians over rounds, so that the dear step counts. Bars:
6 % on a GPU; on a CPU 12 % of 75 ms and 30 % of 15 ms, none of the tiny one, of which a guard in Python takes
as much as of any. "Bare hooks" is what no guard in Python can do without.
LAB_BENCH_LAYERS and LAB_BENCH_TOKENS change the shape. What watching costs an inference is `nan_watch`.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.table import Row, at_most, measured

BARS = {"7B shape, bfloat16": 1.06, "transformer, 75 ms": 1.12, "transformer, 15 ms": 1.30}
PERIOD = 8  # steps
# On a GPU or not. A guard reads weights in each of its first 8 steps, on a CPU magnitudes in the first 32.
ROUNDS, WARM_UP = {True: 9, False: 7}, {True: 8, False: 36}


def main() -> None:
    import torch

    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        torch.set_num_threads(1)
    for name, make in (GPU_CASES if on_gpu else CPU_CASES).items():
        measure(name, make, on_gpu)
        if on_gpu:
            torch.cuda.empty_cache()


def measure(name: str, make: Callable[[], tuple[Any, Any, Callable[[], Any]]], on_gpu: bool) -> None:
    """Plain and guarded rounds in turns, and one of each way of reacting beside them."""
    from lab import nan

    model, optimizer, loss = make()
    took: dict[str, list[list[float]]] = {"plain": [], "guard": [], "guard, replay": []}
    if not on_gpu:
        took["bare hooks"] = []

    def one_round(way: str) -> None:
        if way == "plain":
            took[way].append(steps(optimizer, loss, on_gpu))
            return
        if way == "bare hooks":
            with bare_hooks(model):
                took[way].append(steps(optimizer, loss, on_gpu))
            return
        on_bad = "replay" if "replay" in way else "keep"
        with nan.guard(model, optimizer, on_bad=on_bad) as guard:
            took[way].append(steps(optimizer, loss, on_gpu))
        assert guard.status == "clean", (guard.status, guard.not_seen(), guard.notes)

    for turn in range(ROUNDS[on_gpu]):
        for way in list(took)[:: 1 if turn % 2 else -1]:
            one_round(way)
    plain, bar = typical(took["plain"]), BARS.get(name)
    for way, rows in took.items():
        times = [one for row in rows for one in row]
        low, _, high = statistics.quantiles(times, n=4)
        middle = typical(rows)
        judged = way == "guard" and bar is not None
        limit, met = at_most(middle / plain, bar, "x") if judged and bar is not None else ("", None)
        measured(
            Row(
                f"a training step, {way}: {name}",
                size="on a GPU" if on_gpu else "one CPU thread",
                cost=f"{1e3 * middle:.3f} ms ({1e3 * low:.3f} to {1e3 * high:.3f}, {len(times)} rounds)",
                peer="" if way == "plain" else f"plain {1e3 * plain:.3f} ms",
                ratio=None if way == "plain" else plain / middle,
                limit=f"{limit} the time" if judged else "",
                met=met,
            )
        )
        verdict = f"   bar {bar:g}x: {'met' if met else 'MISSED'}" if judged else ""
        print(
            f"{name:28} {way:14} {1e3 * middle:9.3f} ms ({1e3 * low:.3f} to {1e3 * high:.3f}, "
            f"{len(times)} rounds)  x{middle / plain:.3f}{verdict}"
        )


def typical(rows: list[list[float]]) -> float:
    """(rounds, period) -> seconds of a step: the mean over the period of the medians over rounds."""
    return statistics.fmean(map(statistics.median, zip(*rows, strict=True)))


@contextmanager
def bare_hooks(model: Any) -> Iterator[None]:
    """The floor: what any guard in Python needs that sees all stages, and nothing else.

    Each module's output and the node behind it, each gradient as it accumulates, and before the update one
    product of all of them.
    """
    import torch
    from torch import nn
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    held: list[Any] = []
    plain = nn.Module.__call__

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        out = plain(module, *args, **kwargs)
        for one in out if isinstance(out, tuple) else (out,):
            if isinstance(one, torch.Tensor):
                held.append(one)
                one.grad_fn.register_prehook(lambda grads: held.append(grads[0]))
        return out

    def look(*_: Any) -> None:
        with torch.no_grad():
            flat = torch._C._nn.flatten_dense_tensors(held).numpy()
        assert math.isfinite(flat.dot(flat))
        held.clear()

    handles = [
        one.register_post_accumulate_grad_hook(lambda one: held.append(one.grad))
        for one in model.parameters()
    ]
    handles.append(register_optimizer_step_pre_hook(look))
    handles.append(register_optimizer_step_post_hook(lambda *_: None))
    setattr(nn.Module, "__call__", call)  # noqa: B010 - for mypy, too
    try:
        yield
    finally:
        setattr(nn.Module, "__call__", plain)  # noqa: B010
        for handle in handles:
            handle.remove()


def steps(optimizer: Any, loss: Callable[[], Any], on_gpu: bool) -> list[float]:
    """Seconds of each step after the warm-up; on a GPU, which the host runs ahead of, their mean."""
    if on_gpu:
        for _ in range(WARM_UP[on_gpu]):
            step(optimizer, loss)
        began = now(on_gpu)
        for _ in range(PERIOD):
            step(optimizer, loss)
        return [(now(on_gpu) - began) / PERIOD]
    found = []
    for _ in range(WARM_UP[on_gpu] + PERIOD):
        began = now(on_gpu)
        step(optimizer, loss)
        found.append(now(on_gpu) - began)
    return found[WARM_UP[on_gpu] :]


def step(optimizer: Any, loss: Callable[[], Any]) -> None:
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def now(on_gpu: bool) -> float:
    if not on_gpu:
        return time.thread_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def mistral() -> tuple[Any, Any, Callable[[], Any]]:
    import torch

    from lab.rooms.nan.config import NanConfig
    from lab.rooms.nan.workload.cell import choose_cell
    from lab.rooms.nan.workload.model import load

    layers = os.environ.get("LAB_BENCH_LAYERS")
    config = NanConfig(
        experiments=("baseline",),
        model="7b-shape",
        dtype="bfloat16",
        quant="none",
        layers=int(layers) if layers else None,
    )
    model = load(config, choose_cell(config, "baseline")).model.train()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    tokens = int(os.environ.get("LAB_BENCH_TOKENS", "2048"))
    ids = torch.randint(3, 250, (1, tokens), device="cuda")
    return model, optimizer, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss


def transformer(width: int, layers: int, tokens: int) -> tuple[Any, Any, Callable[[], Any]]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(200, width), nn.TransformerEncoder(layer, layers), nn.Linear(width, 200)
    )
    ids = torch.randint(0, 200, (4, tokens))
    return adam(model, lambda: nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))


def adam(model: Any, loss: Callable[[], Any]) -> tuple[Any, Any, Callable[[], Any]]:
    import torch

    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss


GPU_CASES = {"7B shape, bfloat16": mistral}
CPU_CASES = {
    "transformer, 75 ms": lambda: transformer(128, 3, 256),
    "transformer, 15 ms": lambda: transformer(64, 3, 128),
    "transformer, 2 layers of 32": lambda: transformer(32, 2, 16),
}

if __name__ == "__main__":
    main()
