"""Probes of the objective: is the loss a probability, and does a training with it come to rest?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from lab.rooms.semicrf.model.head import SemiCRF
from lab.rooms.semicrf.workload.probes import Row, row
from lab.rooms.semicrf.workload.probes.linter import lint_objective

DRIFT_STEPS = 100


def objective_probes(head: SemiCRF) -> Iterator[Row]:
    """Is the loss a probability, and does a small training with it converge?"""
    for finding in lint_objective(head):
        yield row(
            f"linter: {finding.check}", "objective", finding.ok, finding.value, finding.limit, finding.text
        )
    yield drift_probe(head)


def drift_probe(head: SemiCRF) -> Row:
    """Train the parameters alone on a tiny problem.

    If the objective is a probability, the gradient falls as they grow, and NLL >= 0.
    """
    dice = torch.Generator().manual_seed(3)
    classes, longest, frames = 4, 6, 20
    state = torch.random.get_rng_state()
    torch.manual_seed(3)
    small = SemiCRF(classes, longest, backend=head.backend)
    torch.random.set_rng_state(state)
    small.partition, small.gold = head.partition, head.gold
    score = 0.1 * torch.randn(4, frames, classes, generator=dice)
    labels = torch.randint(0, classes, (4, frames // 5), generator=dice).repeat_interleave(5, dim=1)
    optimizer = torch.optim.Adam(small.parameters(), lr=0.2)
    losses, norms = [], []
    for _ in range(DRIFT_STEPS):
        optimizer.zero_grad()
        loss = small.loss(score, None, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        norms.append(
            math.sqrt(sum(float(p.grad.pow(2).sum()) for p in small.parameters() if p.grad is not None))
        )
        optimizer.step()
    largest = max(small.magnitudes())
    clean = min(losses) >= -1e-6
    text = (
        f"{DRIFT_STEPS} steps on a tiny problem: loss {losses[0]:.2f} to {losses[-1]:.2f}, gradient norm "
        f"{norms[0]:.2f} to {norms[-1]:.2f}, largest parameter {largest:.1f}"
    )
    return row(
        "parameters come to rest",
        "objective",
        clean,
        min(losses),
        0.0,
        text
        + (
            ""
            if clean
            else ": below 0, so the loss is not a likelihood and the parameters grow without bound"
        ),
    )
