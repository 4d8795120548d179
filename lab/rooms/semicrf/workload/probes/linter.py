"""Probes of the objective: is exp(-loss) a probability, and does a training with it come to rest?

The linter lists every segmentation of a tiny instance of the model and assumes nothing: do the probabilities
sum to 1, is every NLL >= 0, does a number added to all labels of a frame cancel? A loss that fails has no
minimum to converge to: its parameters drift, whatever the kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from lab.rooms.semicrf.model.head import SemiCRF
from lab.rooms.semicrf.model.naive import segmentations
from lab.rooms.semicrf.workload.cases import Row
from lab.rooms.semicrf.workload.probes.kernel import row

FRAMES, CLASSES, DURATIONS = 5, 3, 4
DRIFT_STEPS = 100
SUM_TOLERANCE, NLL_TOLERANCE = 1e-12, 1e-9


@dataclass(frozen=True)
class Finding:
    """One question about the objective: the value found, its limit, and the answer in a sentence."""

    check: str
    ok: bool
    value: float
    limit: float
    text: str


@torch.no_grad()
def lint_objective(head: SemiCRF, *, seed: int = 0) -> list[Finding]:
    """Every question in turn; all are `ok` for a loss that is a probability."""
    small = tiny(head)
    longest, classes = small.duration_KC.shape
    dice = torch.Generator().manual_seed(seed)
    score = torch.randn(1, FRAMES, classes, dtype=torch.float64, generator=dice)
    shift = torch.linspace(-3, 3, FRAMES, dtype=torch.float64)[None, :, None]
    labels, starts = outcomes(longest, classes)

    def nll(score: Tensor) -> Tensor:
        return small.loss(score.expand(len(labels), -1, -1), None, labels, starts, reduction="none")

    nll_N = nll(score)
    total, lowest = float(torch.exp(-nll_N).sum()), float(nll_N.min())
    change = float((nll(score + shift) - nll_N).abs().max())
    summed = f"exp(-NLL) over all {len(nll_N)} segmentations sums to {total:.6g}; a probability sums to 1"
    moved = f"adding a number to all labels of a frame moves the NLL by {change:.3g}"
    negative = f"the lowest NLL of any segmentation is {lowest:.6g}"
    return [
        Finding("sum of probabilities", abs(total - 1) <= SUM_TOLERANCE, total, 1.0, summed),
        Finding("NLL >= 0", lowest >= -NLL_TOLERANCE, lowest, 0.0, negative),
        Finding("shift of a frame", change <= NLL_TOLERANCE, change, NLL_TOLERANCE, moved),
    ]


def tiny(head: SemiCRF) -> SemiCRF:
    """The head's own loss on the first few labels and durations of its parameters, in float64 on the CPU."""
    c, k = min(CLASSES, head.transition_CC.shape[0]), min(DURATIONS, head.duration_KC.shape[0])
    small = like(head, c, k).double()
    values = (head.transitions()[:c, :c], head.duration_KC[:k, :c], head.start_C[:c], head.end_C[:c])
    parameters = (small.transition_CC, small.duration_KC, small.start_C, small.end_C)
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data.copy_(value)
    return small


def like(head: SemiCRF, classes: int, longest: int) -> SemiCRF:
    """A head of another size with the same loss."""
    small = SemiCRF(classes, longest, backend=head.backend)
    small.partition, small.gold = head.partition, head.gold
    return small


def outcomes(longest: int, classes: int) -> tuple[Tensor, Tensor]:
    """(labels_NT, starts_NT) of every segmentation."""
    paths = list(segmentations(FRAMES, longest, classes))
    labels = torch.tensor([[c for start, end, c in path for _ in range(start, end)] for path in paths])
    starts = [[t == start for start, end, _ in path for t in range(start, end)] for path in paths]
    return labels, torch.tensor(starts)


def objective_probes(head: SemiCRF) -> Iterator[Row]:
    """Is the loss a probability, and does a small training with it converge?"""
    for name, *answer in map(astuple, lint_objective(head)):
        yield row(f"linter: {name}", "objective", *answer)
    yield drift_probe(head)


def drift_probe(head: SemiCRF) -> Row:
    """Train the parameters alone on a tiny problem.

    If the objective is a probability, the gradient falls as they grow, and NLL >= 0.
    """
    dice = torch.Generator().manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        small = like(head, 4, 6)
    score = 0.1 * torch.randn(4, 20, 4, generator=dice)
    labels = torch.randint(0, 4, (4, 4), generator=dice).repeat_interleave(5, dim=1)
    optimizer = torch.optim.Adam(small.parameters(), lr=0.2)
    losses, norms = [], []
    for _ in range(DRIFT_STEPS):
        optimizer.zero_grad()
        loss = small.loss(score, None, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        squares = (p.grad.pow(2).sum() for p in small.parameters() if p.grad is not None)
        norms.append(math.sqrt(sum(map(float, squares))))
        optimizer.step()
    largest = max(small.magnitudes())
    clean = min(losses) >= -1e-6
    text = (
        f"{DRIFT_STEPS} steps on a tiny problem: loss {losses[0]:.2f} to {losses[-1]:.2f}, gradient norm "
        f"{norms[0]:.2f} to {norms[-1]:.2f}, largest parameter {largest:.1f}"
    )
    if not clean:
        text += ": below 0, so the loss is not a likelihood and the parameters grow without bound"
    return row("parameters come to rest", "objective", clean, min(losses), 0.0, text)
