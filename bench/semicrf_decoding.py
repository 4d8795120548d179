"""Decoding against the forward pass: Viterbi, the 5 best, 10 draws. Bar on a CPU: 2x the forward pass.

Before timing, what is found is checked: scores and paths of Viterbi and of the 5 best against the torch form,
and each label's share of the frames in draws against the posteriors. Timed are the user's calls, with their
checks and lists of segments; on a GPU the 5 best and draws go to the host. In the random model nearly every
frame is a segment of its own: the longest paths that there are.

    python -m bench.semicrf_decoding --device cuda
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.semicrf import Shape, clocks, elapsed_ms, problem_of, shapes, spread
from bench.table import Row, at_most, measured

SHAPES: list[Shape] = [(64, 1000, 100, 24), (4, 500, 30, 24), (2, 2000, 100, 16)]
COUNT, SAMPLES = 5, 10
BAR = 2.0
TIMES = 15
CHECKED = (2, 60)
"""Sequences and frames for the torch form's 5 best, which takes seconds."""


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
        f"{COUNT} best": lambda: api.kbest(*model, count=COUNT, **start),
        "1 draw": lambda: api.sample(*model, samples=1, **start),
        f"{SAMPLES} draws": lambda: api.sample(*model, samples=SAMPLES, **start),
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
    """Stop where the compiled form differs from the torch form or from the posteriors."""
    import torch

    from lab.rooms.semicrf.model import decoding

    score_B, found = decoding.viterbi(problem, "native")
    expected_B, expected = decoding.viterbi(problem, "torch")
    gap = float((score_B - expected_B).abs().max())
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    print(f"  Viterbi against torch: scores within {gap:.1e}, {same} of {len(found)} paths the same")
    worth = float((path_scores(problem, found) - expected_B.cpu()).abs().max())
    batch, frames = CHECKED
    part = replace(
        problem,
        score_BTC=problem.score_BTC[:batch, :frames].contiguous(),
        lengths_B=problem.lengths_B[:batch],
    )
    part = replace(part, lengths_B=part.lengths_B.clamp(max=part.score_BTC.shape[1]))
    both = (decoding.best(part, COUNT, "native"), decoding.best(part, COUNT, "torch"))
    scores = [torch.tensor([[score for score, _ in one] for one in way]) for way in both]
    further = float((scores[0] - scores[1]).abs().max())
    distinct = all(len({tuple(path) for _, path in one}) == COUNT for one in both[0])
    sigmas = draw_error(problem)
    print(f"  the paths' own scores within {worth:.1e}; {COUNT} best within {further:.1e}")
    print(f"  labels of draws within {sigmas:.1f} standard deviations of the posteriors")
    if not (max(gap, worth, further) < 1e-6 and distinct and sigmas < 7):
        raise SystemExit("decoding is wrong: see above")


def path_scores(problem: Any, found: list[list[tuple[int, int, int]]]) -> Any:
    import torch

    from lab.rooms.semicrf.model import naive
    from lab.rooms.semicrf.model.decoding import on_host

    here = on_host(problem.detached())
    return torch.tensor([float(naive.path_score(here, b, path)) for b, path in enumerate(found)])


def draw_error(problem: Any) -> float:
    """Distance of a label's number of frames from the expected one, in standard deviations of its mean."""
    import torch

    from lab.rooms.semicrf.model import api, decoding

    few = problem.rows(torch.arange(min(2, problem.shape[0]), device=problem.lengths_B.device))
    labels, draws = few.shape[3], 200
    right_BC = api.marginals(*few.floats()[:3], few.lengths_B, start_C=few.start_C).double().sum(1).cpu()
    worst = 0.0
    for b, drawn in enumerate(decoding.sample(few, draws, None, "native")):
        seen_NC = torch.zeros(draws, labels, dtype=torch.float64)
        for n, path in enumerate(drawn):
            at = torch.tensor(path)
            seen_NC[n].index_add_(0, at[:, 2], (at[:, 1] - at[:, 0]).double())
        spread_C = seen_NC.std(0).clamp(min=1e-3) / draws**0.5
        worst = max(worst, float(((seen_NC.mean(0) - right_BC[b]).abs() / spread_C).max()))
    return worst


if __name__ == "__main__":
    main()
