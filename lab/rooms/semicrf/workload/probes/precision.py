"""float32 against float64 as sequences grow, and what the guide's guards change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from lab.rooms.semicrf.workload.cases.case import Case
from lab.rooms.semicrf.workload.cases.solution import mass_lines, solve
from lab.rooms.semicrf.workload.guards import seed_log_partition
from lab.rooms.semicrf.workload.probes.kernel import Bench
from lab.rooms.semicrf.workload.probes.row import Row, finite_number, row

GUARD_FRAMES = 2000
GROWTH = (50, 100, 200, 400)  # frames at which float32 is held against float64


def precision_rows(bench: Bench) -> Iterator[Row]:
    """|d log Z| against float64 as a sequence grows: rounding grows smoothly, a fault jumps."""
    dice = torch.Generator().manual_seed(5)
    classes, longest = bench.case.score_BTC.shape[2], len(bench.case.duration_KC)
    for frames in GROWTH:
        score = torch.randn(1, frames, classes, generator=dice)
        case = replace(bench.case, score_BTC=score, lengths_B=torch.tensor([frames]))
        exact = solve(case.to("cpu", torch.float64), "torch").logZ_B
        found = solve(case.to(bench.device, torch.float32), bench.backend).logZ_B.double().cpu()
        gap, limit = float((found - exact).abs().max()), 1e-8 * float(exact.abs().max()) + 2e-5
        yield {
            **row(
                f"float32 at T={frames}, K={longest}",
                "precision",
                gap <= limit,
                gap,
                limit,
                f"log Z is {gap:.2g} from float64",
            ),
            "backend": bench.backend,
        }


def guard_rows(case: Case) -> Iterator[dict[str, Any]]:
    """What the guide's guards change, on this case and on two where they matter: exact values beside guarded
    ones.
    """
    frames = GUARD_FRAMES
    dice = torch.Generator().manual_seed(7)
    classes = case.score_BTC.shape[2]
    small = replace(
        case.to("cpu", torch.float32),
        score_BTC=case.score_BTC[:1, : int(case.lengths_B[0])].cpu().float(),
        lengths_B=case.lengths_B[:1],
    )
    long = replace(
        small,
        score_BTC=torch.randn(1, frames, classes, generator=dice) + 2.0,
        lengths_B=torch.tensor([frames]),
    )
    closed = replace(small, duration_KC=torch.full_like(small.duration_KC, -math.inf))
    for name, one in (
        ("a batch of this run", small),
        (f"T={frames}: one cumulative sum", long),
        ("no duration is allowed", closed),
    ):
        exact = solve(one.to(dtype=torch.float64), "torch")
        guarded = solve(one, "guards", seed_log_partition)
        yield {
            "case": name,
            "logZ_exact": finite_number(exact.logZ_B[0]),
            "logZ_guards": finite_number(guarded.logZ_B[0]),
            "posterior_error": float((guarded.score_BTC.double() - exact.score_BTC).abs().max()),
            "mass_error_exact": mass_lines(one, exact)["coverage"],
            "mass_error_guards": mass_lines(one, guarded)["coverage"],
            "transition_gradient_error": float(
                (guarded.transition_CC.double() - exact.transition_CC).abs().max()
            ),
        }
