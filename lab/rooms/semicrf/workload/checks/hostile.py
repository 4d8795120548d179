"""Input chosen to break a kernel; what must not change a bit: a repeat, another batch, poisoned memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from lab.core.words import plural
from lab.rooms.semicrf.model.problem import inside
from lab.rooms.semicrf.workload.cases import (
    Case,
    bits_equal,
    poison_free_memory,
    random_case,
    same_bits,
    solve,
)
from lab.rooms.semicrf.workload.checks.values import FORBIDDEN, SMALL, Row, Subject, as_row, drawn

LIMITS = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Errors of any value, relative beyond 1."""


def infeasible(subject: Subject) -> Iterator[Row]:
    """An infeasible sequence has log Z = -inf and gradients 0; the others of its batch are right."""
    case = drawn(subject.seed + 400, (3, 9, 4, 3))
    case = replace(case, lengths_B=torch.tensor([9, 7, 5]))
    score = case.score_BTC.clone()
    score[1, 3] = FORBIDDEN
    closed = {
        "a frame that no label may cover": replace(case, score_BTC=score),
        "no duration at all": replace(case, duration_KC=torch.full_like(case.duration_KC, FORBIDDEN)),
        "no start": replace(case, start_C=torch.full_like(case.start_C, FORBIDDEN)),
    }
    for name, closed_case in closed.items():
        for dtype, limit in LIMITS.items():
            tensor, error = worst_value(subject, closed_case.to(dtype=dtype))
            text = f"worst {error:.2g} ({tensor})"
            yield as_row(f"infeasible: {name}", (3, 9, 4, 3), dtype, error, limit, text)


def hostile(subject: Subject) -> Iterator[Row]:
    """Random hostile batches: log Z and every gradient, value by value, against the definition in float64."""
    for dtype, limit in LIMITS.items():
        dice = torch.Generator().manual_seed(subject.seed)
        worst, where_worst, compared = 0.0, "", 0
        for batch in range(subject.batches):
            case, kinds = hostile_case(dice)
            case = case.to(dtype=dtype)
            compared += len(case.lengths_B)
            name, error = worst_value(subject, case)
            if error > worst:
                worst = error
                where_worst = f" ({name} of batch {batch}: {kinds})"
        text = f"{plural(compared, 'sequence')}, worst {worst:.2g}{where_worst}"
        yield as_row("hostile batches", "", dtype, worst, limit, text)


def worst_value(subject: Subject, case: Case) -> tuple[str, float]:
    """(which tensor, error) of the value farthest from the definition's, relative beyond 1; inf for NaN.

    Counts that the audit had to mend are an error too: the values are right, the backend is not.
    """
    solution, exact = subject.solve(case), solve(case.to("cpu", torch.float64), "naive")
    if solution.mended:
        return f"mended: {solution.mended}", math.inf
    return max(solution.errors(exact).items(), key=lambda item: item[1])


def hostile_case(dice: torch.Generator, frames: int = 24) -> tuple[Case, str]:
    """(case, what is hostile in it): masks of -inf and of large finite numbers, length 1, K > T, C = 1,
    grammar rows without a way out, and soft penalties of 40 to 700, which are where a product of two scaled
    messages underflows.
    """

    def roll(high: int) -> int:
        return int(torch.randint(0, high, (1,), generator=dice))

    def masked(case: Case, name: str, value: float, share: float) -> Case:
        values = getattr(case, name)
        return replace(case, **{name: values.masked_fill(chance(values, dice, share), value)})

    shape = (1 + roll(4), 1 + roll(frames), 1 + roll(30), 1 + roll(9))
    case = random_case(dice, *shape, scale=(1.0, 30.0, 1e4)[roll(3)], dtype=torch.float32)
    changes: dict[str, Callable[[Case], Case]] = {
        "-2e12": lambda c: masked(c, "score_BTC", -2e12, 0.1),
        "-1e30": lambda c: masked(c, "score_BTC", -1e30, 0.1),
        "masked scores": lambda c: masked(c, "score_BTC", FORBIDDEN, 0.1),
        "masked transitions": lambda c: masked(c, "transition_CC", FORBIDDEN, 0.5),
        "masked durations": lambda c: masked(c, "duration_KC", FORBIDDEN, 0.5),
        "empty grammar row": lambda c: replace(c, transition_CC=emptied(c.transition_CC)),
        "length 1": lambda c: replace(c, lengths_B=torch.ones_like(c.lengths_B)),
        "one free duration": lambda c: one_free(c, 450.0 + 70 * roll(4)),
        "NaN padding": lambda c: c.padded(2, math.nan),
    }
    chosen = [name for name in changes if roll(3) == 0]
    for name in chosen:
        case = changes[name](case)
    for name in ("score_BTC", "transition_CC", "duration_KC", "start_C", "end_C"):
        if roll(3) == 0:
            case = replace(case, **{name: penalised(getattr(case, name), dice)})
            chosen.append(f"soft {name.partition('_')[0]}")
    return case, ", ".join(chosen) or "plain"


def one_free(case: Case, cost: float) -> Case:
    """Every duration but the longest costs much: z may be tiny beside the messages' own scales."""
    duration_KC = torch.full_like(case.duration_KC, -cost)
    duration_KC[-1] = 0.0
    return replace(case, duration_KC=duration_KC)


def penalised(values: Tensor, dice: torch.Generator) -> Tensor:
    """A random half of the values less 40 to 700."""
    penalty = 40 + 660 * torch.rand(values.shape, generator=dice)
    return torch.where(chance(values, dice, 0.5), values - penalty, values)


def chance(values: Tensor, dice: torch.Generator, share: float) -> Tensor:
    return torch.rand(values.shape, generator=dice) < share


def emptied(transition: Tensor) -> Tensor:
    emptied_CC = transition.clone()
    emptied_CC[0] = FORBIDDEN
    return emptied_CC


def repeats(subject: Subject) -> Iterator[Row]:
    shape = (8, 200, 30, 24)
    case = drawn(subject.seed + 300, shape).to(dtype=torch.float32)
    reference = subject.solve(case)
    apart = sum(not same_bits(reference, subject.solve(case)) for _ in range(subject.repeats - 1))
    text = f"{apart} of {subject.repeats - 1} repeats differ in bits"
    yield as_row("same bits again", shape, torch.float32, apart, 0, text)


def composition(subject: Subject) -> Iterator[Row]:
    """A sequence's log Z and posteriors do not depend on the batch it is in."""
    shape = (7, 90, 12, 24)
    case = drawn(subject.seed + 310, shape).to(dtype=torch.float32)
    together = subject.solve(case)
    apart = 0
    for b in range(shape[0]):
        alone = subject.solve(case.rows([b]))
        frames = alone.score_BTC.shape[1]
        apart += not (
            bits_equal(alone.logZ_B[0], together.logZ_B[b])
            and bits_equal(alone.score_BTC[0], together.score_BTC[b, :frames])
        )
    text = f"{apart} of {shape[0]} sequences change in bits"
    yield as_row("any batch composition", shape, torch.float32, apart, 0, text)


def poison(subject: Subject) -> Iterator[Row]:
    """NaN in padding and in free memory changes no bit."""
    for number, shape in enumerate(SMALL):
        case = drawn(subject.seed + 320 + number, shape).to(dtype=torch.float32)
        plain = subject.solve(case)
        poison_free_memory(subject.device)
        dirty = subject.solve(case.padded(3, math.nan))
        within = inside(shape[1], case.lengths_B, subject.device)[..., None]
        unpadded = torch.where(within, dirty.score_BTC[:, : shape[1]], plain.score_BTC)
        good = bits_equal(dirty.logZ_B, plain.logZ_B) and bits_equal(unpadded, plain.score_BTC)
        wild = dirty.first_nonfinite(case.lengths_B)
        text = f"not finite: {wild}" if wild else "no bit changes" if good else "bits change"
        yield as_row("poisoned memory", shape, torch.float32, 0 if good and not wild else 1, 0, text)
