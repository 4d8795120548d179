"""What watching every module costs a forward, beside hooks that sum NaN and Inf with a wait a module.

On a GPU: a 7B-shaped Mistral in half (random weights), 2,048 tokens of prefill and single decode steps. On a
CPU: the tiny one. Plain and watched take turns in short bursts within one generation, so that a host that
drifts hits both; what is judged is the median over rounds of what watching costs beside the plain forwards of
the same round. LAB_BENCH_LAYERS and LAB_BENCH_TOKENS change the shape. Bars on a GPU: 5 % for prefill, 20 %
for decode.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

from bench.table import Row, measured

BAR_PERCENT = {"prefill": 5.0, "decode": 20.0}
PREFILLS, BURSTS, STEPS = 15, 61, 4  # rounds; the first of each only warms up
PEERS_EVERY = 3  # the others are there to compare with, and slow
PLAIN = "plain"


def main() -> None:
    import torch

    from lab.rooms.nan.config import NanConfig
    from lab.rooms.nan.workload.cell import choose_cell
    from lab.rooms.nan.workload.model import load

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
    print(f"{config.model}, {cell.dtype} on {cell.device}, {tokens} tokens; medians (quartiles), in turns")
    with ExitStack() as stack, torch.no_grad():
        show(measure(model, tokens, ways(model, stack)), on_gpu)


Way = Callable[[], AbstractContextManager[None]]


def ways(model: Any, stack: ExitStack) -> dict[str, Way]:
    """Name -> a context in which the model is watched.

    A watch lasts for the whole bench and steps aside in between.
    """
    import torch

    from lab.rooms.nan.watch.watch import Watch

    def watched(counter: str) -> Way:
        watch = stack.enter_context(Watch(model, counter=counter, keep_rows=False, check_weights=False))
        watch.step_aside()
        return watch.stepping_in

    best = Watch(model, check_weights=False).counter
    found: dict[str, Way] = {PLAIN: nullcontext, f"lab ({best})": watched(best)}
    if torch.cuda.is_available() and best != "norm":
        found["lab (norm)"] = watched("norm")
    return {**found, "hooks with a wait each": lambda: hooks(model)}


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


Times = dict[tuple[str, str], dict[int, list[float]]]  # (way, phase) -> by round, ms


def measure(model: Any, tokens: int, found: dict[str, Way]) -> Times:
    """By round; the first one only warms up."""
    import torch

    from lab.rooms.nan.workload.model import state_name, state_of

    ids = torch.randint(3, 250, (1, tokens), device=next(model.parameters()).device)
    times: Times = {}
    out: Any = None
    for turn in range(PREFILLS):
        for name, way in in_turn(found, turn):
            with way():
                took, out = timed(partial(model, input_ids=ids, use_cache=True), ids)
            times.setdefault((name, "prefill"), {})[turn] = [took]
    for turn in range(BURSTS):
        for name, way in in_turn(found, turn):
            # The same lengths again: one that attention has not seen yet costs tens of ms, which would hide
            # the watch.
            cache = copy.deepcopy(state_of(out))
            held = {state_name(model): cache, "use_cache": True}
            step = partial(model, input_ids=ids[:, :1], **held)
            with way():
                times.setdefault((name, "decode"), {})[turn] = [timed(step, ids)[0] for _ in range(STEPS)]
    return {key: {turn: took[turn] for turn in took if turn} for key, took in times.items()}


def in_turn(found: dict[str, Way], turn: int) -> list[tuple[str, Way]]:
    """Who runs in this round: now plain is first, now the watch; the others now and then."""
    mine = [(name, way) for name, way in found.items() if name == PLAIN or name == ours(found)]
    others = [one for one in found.items() if one not in mine] if turn % PEERS_EVERY == 0 else []
    return (mine if turn % 2 else mine[::-1]) + others


def ours(names: Iterable[str]) -> str:
    return next(name for name in names if name.startswith("lab"))


def timed(run: Callable[[], Any], near: Any) -> tuple[float, Any]:
    """(ms, what it gives)"""
    began = now(near)
    out = run()
    return 1e3 * (now(near) - began), out


def now(near: Any) -> float:
    import torch

    if near.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def show(times: Times, on_gpu: bool) -> None:
    mine = ours(name for name, _ in times)
    for phase in ("prefill", "decode"):
        plain = statistics.median(chain(*times[PLAIN, phase].values()))
        for name in sorted({way for way, _ in times}, key=lambda way: (way != PLAIN, way != mine, way)):
            took = [*chain(*times[name, phase].values())]
            low, middle, high = statistics.quantiles(took, n=4)
            less, percent, more = percents(times, name, phase)
            limit = BAR_PERCENT[phase]
            judged = on_gpu and name == mine
            bar = f"   bar {limit:g} %: {'met' if percent <= limit else 'MISSED'}" if judged else ""
            spread = f"({low:.2f} to {high:.2f}, {len(took)} forwards)"
            rounds = "" if name == PLAIN else f"{percent:+7.1f} % ({less:+.1f} to {more:+.1f} by round)"
            print(f"{phase:8} {name:24} {middle:9.2f} ms {spread}  {rounds}{bar}")
            if name != PLAIN:
                measured(
                    Row(
                        f"watching every module, {phase}: {name}",
                        size="on a GPU" if on_gpu else "a tiny model on this CPU",
                        cost=f"{middle:.2f} ms {spread}",
                        peer=f"plain {plain:.2f} ms",
                        ratio=1 / (1 + percent / 100),
                        limit=f"≤ {limit:g} % more" if judged else "",
                        met=percent <= limit if judged else None,
                        absent="",
                    )
                )


def percents(times: Times, name: str, phase: str) -> list[float]:
    """Quartiles of what it costs beside the plain forwards of the same round: a host drifts between them."""
    plain = times[PLAIN, phase]
    rounds = times[name, phase].items()
    found = [100 * (statistics.median(took) / statistics.median(plain[turn]) - 1) for turn, took in rounds]
    return statistics.quantiles(found, n=4)


if __name__ == "__main__":
    main()
