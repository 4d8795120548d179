"""float32 against float64 as sequences grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from lab.rooms.semicrf.workload.cases.solution import solve
from lab.rooms.semicrf.workload.probes.kernel import Bench
from lab.rooms.semicrf.workload.probes.row import Row, row

GROWTH = (50, 100, 200, 400)  # frames at which float32 is held against float64


def precision_rows(bench: Bench) -> Iterator[Row]:
    """|d log Z| against float64 as a sequence grows: rounding grows smoothly, a fault jumps."""
    dice = torch.Generator().manual_seed(5)
    classes, longest = bench.case.score_BTC.shape[2], len(bench.case.duration_KC)
    for frames in GROWTH:
        score = torch.randn(1, frames, classes, generator=dice)
        case = replace(bench.case, score_BTC=score, lengths_B=torch.tensor([frames]))
        exact = solve(case.to("cpu", torch.float64), "torch").logZ_B
        log_z_B = solve(case.to(bench.device, torch.float32), bench.backend).logZ_B.double().cpu()
        gap, limit = float((log_z_B - exact).abs().max()), 1e-8 * float(exact.abs().max()) + 2e-5
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
