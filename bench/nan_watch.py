"""What watching every module costs a forward, beside hooks that sum NaN and Inf with a wait a module.

On a GPU: a 7B-shaped Mistral in half (random weights), 2,048 tokens of prefill and single decode steps. On a CPU: the tiny one.
LAB_BENCH_LAYERS and LAB_BENCH_TOKENS change the shape. Bar: at most 15 % on a GPU.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

BAR_PERCENT = 15.0
DECODE_STEPS, ROUNDS = 12, 5


def main() -> None:
    import torch

    from lab.rooms.nan.config import NanConfig
    from lab.rooms.nan.model import choose_cell, load

    on_gpu = torch.cuda.is_available()
    layers = os.environ.get("LAB_BENCH_LAYERS")
    config = NanConfig(
        experiments=("baseline",),
        model="7b-shape" if on_gpu else "tiny",
        layers=int(layers) if layers else None,
    )
    cell = choose_cell(config, "baseline")
    model = load(config, cell).model
    tokens = int(os.environ.get("LAB_BENCH_TOKENS", "2048" if on_gpu else "64"))
    print(
        f"{config.model}, {cell.dtype} on {cell.device}, {tokens} tokens; medians of {ROUNDS} rounds in turns"
    )
    show(measure(model, tokens, ways(model)), on_gpu)


def ways(model: Any) -> dict[str, Callable[[], Any]]:
    """Name -> a context in which the model is watched; in each round every way has its turn."""
    import torch

    from lab.rooms.nan.workload_watch import Watch

    def watched(counter: str | None) -> Callable[[], Any]:
        return lambda: Watch(model, counter=counter, keep_rows=False, check_weights=False)

    best = Watch(model, check_weights=False).counter
    found: dict[str, Callable[[], Any]] = {"plain": lambda: nothing(), f"lab ({best})": watched(None)}
    if torch.cuda.is_available() and best != "norm":
        found["lab (norm)"] = watched("norm")
    return {**found, "hooks with a wait each": lambda: hooks(model)}


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def hooks(model: Any) -> Iterator[None]:
    """The original's way: plain tensor outputs only, two sums and two waits a module."""
    import torch

    def note(_module: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            torch.isnan(output).sum().item()
            torch.isinf(output).sum().item()

    handles = [module.register_forward_hook(note) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def measure(
    model: Any, tokens: int, found: dict[str, Callable[[], Any]]
) -> dict[tuple[str, str], list[float]]:
    """(way, phase) -> ms; the first round only warms up."""
    import torch

    ids = torch.randint(3, 250, (1, tokens), device=next(model.parameters()).device)
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(ROUNDS + 1):
        for name, way in found.items():
            with torch.no_grad(), way():
                for phase, took_ms in one_round(model, ids):
                    if turn:
                        times.setdefault((name, phase), []).append(took_ms)
    return times


def one_round(model: Any, ids: Any) -> Iterator[tuple[str, float]]:
    began = now(ids)
    out = model(input_ids=ids, use_cache=True)
    yield "prefill", 1e3 * (now(ids) - began)
    for at in range(DECODE_STEPS):
        began = now(ids)
        out = model(input_ids=ids[:, :1], past_key_values=out.past_key_values, use_cache=True)
        if at >= 2:
            yield "decode", 1e3 * (now(ids) - began)


def now(near: Any) -> float:
    import torch

    if near.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def show(times: dict[tuple[str, str], list[float]], on_gpu: bool) -> None:
    ours = next(name for name, _ in times if name.startswith("lab"))
    for phase in ("prefill", "decode"):
        plain = statistics.median(times["plain", phase])
        for name in dict.fromkeys(way for way, _ in times):
            took = statistics.median(times[name, phase])
            bar = ""
            if on_gpu and name == ours:
                bar = f"   bar {BAR_PERCENT:g} %: {'met' if 100 * (took / plain - 1) <= BAR_PERCENT else 'MISSED'}"
            print(f"{phase:8} {name:24} {took:9.2f} ms  {100 * (took / plain - 1):+7.1f} %{bar}")


if __name__ == "__main__":
    main()
