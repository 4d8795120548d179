"""The objective linter: is exp(-loss) a probability? It enumerates tiny cases and assumes nothing.

An objective is a function from scores, parameters and a gold path to an NLL. The linter lists all outcomes of
a tiny instance (T <= 7, C <= 3, K <= 4) and asks: do they sum to 1, is every NLL >= 0, do a shift of all
labels, padding and batching leave it unchanged, and does any direction of the parameters take it below 0? A
loss that fails has no minimum to converge to: its parameters drift, whatever the kernels do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lab.rooms.semicrf.model.head import SemiCRF, run_starts
from lab.rooms.semicrf.workload.guide import guide_nll

FRAMES, CLASSES, DURATIONS = 5, 3, 4
SUM_TOLERANCE, NLL_TOLERANCE = 1e-12, 1e-9
STEPS = (1.0, 10.0, 100.0, 1000.0)
Model = tuple[Tensor, Tensor, Tensor, Tensor]
"""transition, duration, start, end."""


@dataclass(frozen=True)
class Objective:
    """An objective in float64: `nll(score_BTC, model, labels_BT, starts_BT, lengths_B)`.

    `outcomes`: the gold path names a segmentation, or only labels (then segments are its maximal runs).
    """

    name: str
    nll: Callable[..., Tensor]
    transition_CC: Tensor
    duration_KC: Tensor
    start_C: Tensor
    end_C: Tensor
    outcomes: str = "segmentations"

    def __call__(
        self, score: Tensor, labels: Tensor, starts: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        if lengths is None:
            lengths = torch.full((len(score),), score.shape[1])
        model = (self.transition_CC, self.duration_KC, self.start_C, self.end_C)
        return self.nll(score, model, labels, starts, lengths).detach()


@dataclass(frozen=True)
class Finding:
    """One question about the objective: the value found, its limit, and the answer in words."""

    check: str
    ok: bool
    value: float
    limit: float
    text: str


def lint_objective(target: SemiCRF | Objective, *, seed: int = 0) -> list[Finding]:
    """Every question in turn; all are `ok` for an objective that is a probability."""
    objective = tiny(target) if isinstance(target, SemiCRF) else target
    dice = torch.Generator().manual_seed(seed)
    classes = len(objective.transition_CC)
    score = torch.randn(1, FRAMES, classes, dtype=torch.float64, generator=dice)
    labels, starts = outcomes(objective, FRAMES)
    nll_N = objective(score.expand(len(labels), -1, -1), labels, starts)
    return [
        _sums_to_one(objective, nll_N),
        _never_negative(nll_N),
        _shift(objective, score, labels, starts, nll_N),
        *_batching(objective, score, labels, starts, nll_N),
        *_directions(objective, score),
    ]


def tiny(head: SemiCRF, *, classes: int = CLASSES, durations: int = DURATIONS) -> Objective:
    """The head's own loss on the first few labels and durations of its parameters, in float64 on the CPU."""
    c, k = min(classes, head.transition_CC.shape[0]), min(durations, head.duration_KC.shape[0])
    small = SemiCRF(c, k, backend=head.backend, over_long="split").double()
    small.partition, small.gold = head.partition, head.gold

    def nll(score: Tensor, model: Model, labels: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
        with torch.no_grad():
            parameters = (small.transition_CC, small.duration_KC, small.start_C, small.end_C)
            for parameter, value in zip(parameters, model, strict=True):
                parameter.copy_(value)
            return small.loss(score, lengths, labels, starts, reduction="none")

    cut = [
        p.detach().double().cpu().clone()
        for p in (head.transitions()[:c, :c], head.duration_KC[:k, :c], head.start_C[:c], head.end_C[:c])
    ]
    return Objective("this model", nll, cut[0], cut[1], cut[2], cut[3])


def guide_objective(transition_CC: Tensor, duration_KC: Tensor, version: str = "0.2.0") -> Objective:
    """The published objective (see guide.guide_nll), to be linted beside ours."""

    def nll(score: Tensor, model: Model, labels: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
        return guide_nll(score, *model[:2], labels, lengths, version=version)

    zero_C = torch.zeros(len(transition_CC), dtype=torch.float64)
    return Objective(
        f"guide, {version}", nll, transition_CC.double(), duration_KC.double(), zero_C, zero_C, "labels"
    )


def outcomes(objective: Objective, frames: int) -> tuple[Tensor, Tensor]:
    """(labels_NT, starts_NT) of all outcomes over `frames` frames."""
    longest, classes = objective.duration_KC.shape
    if objective.outcomes == "labels":
        labels = torch.tensor(list(itertools.product(range(classes), repeat=frames)))
        return labels, run_starts(labels)
    paths = list(tilings(frames, longest, classes))
    labels = torch.tensor([[c for k, c in path for _ in range(k)] for path in paths])
    starts = torch.tensor([[index == 0 for k, _ in path for index in range(k)] for path in paths])
    return labels, starts


def tilings(frames: int, longest: int, classes: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every segmentation as (duration, label) pairs."""
    if frames == 0:
        yield ()
    for k in range(1, min(longest, frames) + 1):
        for label in range(classes):
            for tail in tilings(frames - k, longest, classes):
                yield ((k, label), *tail)


def _sums_to_one(objective: Objective, nll_N: Tensor) -> Finding:
    """Over segmentations the sum is 1; over label sequences at most 1, the rest being equal neighbours."""
    total = float(torch.exp(-nll_N).sum())
    over = total - 1 if objective.outcomes == "labels" else abs(total - 1)
    ok = over <= SUM_TOLERANCE
    kind = "label sequences" if objective.outcomes == "labels" else "segmentations"
    text = f"exp(-NLL) over all {len(nll_N)} {kind} sums to {total:.6g}" + (
        "" if ok else "; a probability sums to 1"
    )
    return Finding("sum of probabilities", ok, total, 1.0, text)


def _never_negative(nll_N: Tensor) -> Finding:
    lowest = float(nll_N.min())
    ok = lowest >= -NLL_TOLERANCE
    return Finding("NLL >= 0", ok, lowest, 0.0, f"the lowest NLL of any outcome is {lowest:.6g}")


def _shift(objective: Objective, score: Tensor, labels: Tensor, starts: Tensor, nll_N: Tensor) -> Finding:
    """A number added to all labels of one frame is in every segmentation's score, so it must cancel."""
    shifted = score + torch.linspace(-3, 3, score.shape[1], dtype=torch.float64)[None, :, None]
    change = float((objective(shifted.expand(len(labels), -1, -1), labels, starts) - nll_N).abs().max())
    return Finding(
        "shift of a frame",
        change <= 1e-9,
        change,
        1e-9,
        f"adding a number to all labels of a frame moves the NLL by {change:.3g}",
    )


def _batching(
    objective: Objective, score: Tensor, labels: Tensor, starts: Tensor, nll_N: Tensor
) -> Iterator[Finding]:
    few = torch.arange(0, len(labels), max(1, len(labels) // 8))
    pad = torch.full((1, 3, score.shape[2]), float("nan"), dtype=torch.float64)
    padded = torch.cat([score, pad], dim=1)
    blank = torch.zeros(len(few), 3, dtype=labels.dtype)
    frames = torch.full((len(few),), score.shape[1])
    with_pad = objective(
        padded.expand(len(few), -1, -1),
        torch.cat([labels[few], blank], 1),
        torch.cat([starts[few], blank.bool()], 1),
        frames,
    )
    yield _same(
        "padding (NaN in it)", float((with_pad - nll_N[few]).abs().nan_to_num(nan=float("inf")).max())
    )
    turned = objective(score.expand(len(few), -1, -1), labels[few].flip(0), starts[few].flip(0)).flip(0)
    yield _same("batch order", float((turned - nll_N[few]).abs().max()))
    alone = torch.cat([objective(score, labels[at : at + 1], starts[at : at + 1]) for at in few.tolist()])
    yield _same("batch size", float((alone - nll_N[few]).abs().max()))


def _same(check: str, change: float) -> Finding:
    return Finding(check, change <= 1e-12, change, 1e-12, f"{check} moves the NLL by {change:.3g}")


def _directions(objective: Objective, score: Tensor) -> Iterator[Finding]:
    """Step far along directions that wrong normalisation leaves open, with gold paths that would profit."""
    longest, classes = objective.duration_KC.shape
    tilt = torch.arange(longest, dtype=torch.float64)[:, None].expand(longest, classes)
    labels = torch.stack([torch.zeros(2 * longest, dtype=torch.int64), torch.arange(2 * longest) % classes])
    starts = run_starts(labels)
    long = score.new_zeros(2, 2 * longest, classes)
    transition, duration = objective.transition_CC, objective.duration_KC
    first_label = torch.eye(classes, dtype=torch.float64)[0]
    walks: dict[str, Callable[[float], tuple[Objective, Tensor]]] = {
        "duration tilt": lambda far: (replace(objective, duration_KC=duration + far * tilt), long),
        "falling duration tilt": lambda far: (replace(objective, duration_KC=duration - far * tilt), long),
        "constant transition": lambda far: (replace(objective, transition_CC=transition + far), long),
        "falling constant transition": lambda far: (replace(objective, transition_CC=transition - far), long),
        "emission of a long run": lambda far: (objective, long + far * first_label),
    }
    for name, walk in walks.items():
        lowest, distance = min((_least(*walk(far), labels, starts), far) for far in STEPS)
        ok = lowest >= -NLL_TOLERANCE
        text = f"the lowest NLL along it is {lowest:.4g}"
        text += "" if ok else f" at a step of {distance:g}: the loss has no lower bound"
        yield Finding(f"direction: {name}", ok, lowest, 0.0, text)


def _least(objective: Objective, score: Tensor, labels: Tensor, starts: Tensor) -> float:
    """The lowest NLL; below 0 by no more than rounding at the numbers' magnitude counts as 0."""
    nll = objective(score, labels, starts)
    tables = (score, objective.transition_CC, objective.duration_KC)
    size = max(1.0, *(float(torch.nan_to_num(table, neginf=0.0).abs().max()) for table in tables))
    lowest = float(nll.min())
    return 0.0 if -1e-12 * size * score.shape[1] <= lowest < 0 else lowest
