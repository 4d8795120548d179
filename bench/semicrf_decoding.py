"""Viterbi against the forward pass. Bar on a CPU: 2x the forward pass.

Before timing, scores and paths are checked against the torch form. Timed are the user's calls, with their
checks and lists of segments. In the random model nearly every frame is a segment of its own: the longest
paths that there are.

    python -m bench.semicrf_decoding --device cuda
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

from bench.semicrf import Shape, clocks, elapsed_ms, problem_of, shapes, spread
from bench.table import Row, at_most, measured

SHAPES: list[Shape] = [(64, 1000, 100, 24), (4, 500, 30, 24), (2, 2000, 100, 16)]
BAR = 2.0
TIMES = 15


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    device = parser.parse_known_args()[0].device
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if device == "cuda" else "one CPU thread"
    print(f"torch {torch.__version__} on {name}; medians of {TIMES} in ms (quartiles); (B, T, K, C)")
    for shape in shapes(SHAPES):
        compare(shape, device)


def compare(shape: Shape, device: str) -> None:
    """One shape: check, then time all in turn, and print their ratios."""
    from lab.rooms.semicrf.model import api

    print(f"\n{shape}", flush=True)
    problem = problem_of(shape, device)
    check(problem)
    model, start = problem.floats()[:3], {"start_C": problem.start_C}
    calls: dict[str, Callable[[], Any]] = {
        "forward": lambda: api.log_partition(*model, backend="native", **start),
        "Viterbi": lambda: api.viterbi(*model, **start),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(TIMES + 1):
        for name, call in calls.items():
            spent = elapsed_ms(call, device)
            times[name] += [spent] if turn else []
    clocks(device)
    forward = statistics.median(times["forward"])
    for name, values in times.items():
        ratio = statistics.median(values) / forward
        bar = (
            ""
            if name == "forward" or device == "cuda"
            else f"  bar {BAR:.0f}x: {'met' if ratio <= BAR else 'MISSED'}"
        )
        print(f"  {name:20}{spread(values):>34}{ratio:>8.2f}x{bar}")
        if name != "forward" and device == "cpu":
            limit, met = at_most(ratio, BAR, "x")
            measured(
                Row(
                    f"semi-CRF on {device}: {name}",
                    size=f"B,T,K,C = {','.join(map(str, shape))}",
                    cost=f"{spread(values)} ms",
                    peer=f"forward {forward:.3f} ms",
                    ratio=1 / ratio,
                    limit=f"{limit} the time",
                    met=met,
                )
            )


def check(problem: Any) -> None:
    """Stop where the compiled form differs from the torch form, or its paths have other scores."""
    import torch

    from lab.rooms.semicrf.model import api, naive

    score_B, found = api.viterbi(**problem.arguments(), backend="native")
    expected_B, expected = api.viterbi(**problem.arguments(), backend="torch")
    gap = float((score_B - expected_B).abs().max())
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    print(f"  Viterbi against torch: scores within {gap:.1e}, {same} of {len(found)} paths the same")
    worths = torch.stack([naive.path_score(problem, b, path) for b, path in enumerate(found)])
    worth = float((worths - expected_B).abs().max())
    print(f"  the paths' own scores within {worth:.1e}")
    if not max(gap, worth) < 1e-6:
        raise SystemExit("decoding is wrong: see above")


if __name__ == "__main__":
    main()
