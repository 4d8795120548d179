"""Input chosen to break a kernel: infeasible sequences, masks, extreme scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from lab.core.words import plural
from lab.rooms.semicrf.workload.cases.case import Case, random_case
from lab.rooms.semicrf.workload.cases.solution import solve
from lab.rooms.semicrf.workload.checks.subject import FORBIDDEN, Row, Subject, as_row, drawn


def infeasible(subject: Subject) -> Iterator[Row]:
    """An infeasible sequence has log Z = -inf and gradients 0; the others of its batch keep their bits."""
    case = drawn(subject.seed + 400, (3, 9, 4, 3))
    case = replace(case, lengths_B=torch.tensor([9, 7, 5]))
    score = case.score_BTC.clone()
    score[1, 3] = FORBIDDEN
    closed = {
        "a frame that no label may cover": replace(case, score_BTC=score),
        "no duration at all": replace(case, duration_KC=torch.full_like(case.duration_KC, FORBIDDEN)),
        "no start": replace(case, start_C=torch.full_like(case.start_C, FORBIDDEN)),
    }
    for name, case_closed in closed.items():
        for dtype in (torch.float64, torch.float32):
            typed = case_closed.to(dtype=dtype)
            solution, exact = subject.solve(typed), solve(typed.to(dtype=torch.float64), "naive")
            wrong = int((torch.isneginf(solution.logZ_B.cpu()) != torch.isneginf(exact.logZ_B)).sum())
            dead = torch.isneginf(exact.logZ_B)
            wild = solution.first_nonfinite(typed.lengths_B)
            mass = float(solution.score_BTC.cpu()[dead].abs().max()) if bool(dead.any()) else 0.0
            text = (
                f"not finite: {wild}"
                if wild
                else f"{plural(wrong, 'sequence')} misjudged, largest gradient {mass:g}"
            )
            yield as_row(
                f"infeasible: {name}",
                (3, 9, 4, 3),
                dtype,
                wrong + mass,
                0,
                text,
                ok=not (wrong or mass or wild),
            )


def hostile(subject: Subject) -> Iterator[Row]:
    """Random hostile batches: log Z and every gradient, value by value, against the definition in float64."""
    for dtype, limit in ((torch.float64, 1e-6), (torch.float32, 1e-4)):
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


def one_free_duration(subject: Subject) -> Iterator[Row]:
    """One duration is free and the others cost 450 to 660: z may be tiny beside the messages' own scales."""
    shapes = ((1, 6, 2, 1), (2, 7, 2, 3), (2, 11, 3, 2), (2, 30, 2, 4))
    for shape in shapes:
        for dtype, limit in ((torch.float64, 1e-6), (torch.float32, 1e-4)):
            errors = {
                cost: worst_value(subject, one_free(subject.seed + 700, shape, cost).to(dtype=dtype))
                for cost in (450, 500, 550, 600, 660)
            }
            cost, (name, error) = max(errors.items(), key=lambda item: item[1][1])
            yield as_row(
                "one free duration",
                shape,
                dtype,
                error,
                limit,
                f"worst {error:.2g} ({name} at a cost of {cost})",
            )


def one_free(seed: int, shape: tuple[int, int, int, int], cost: float) -> Case:
    """A case of whole sequences in which every duration but the longest costs `cost`."""
    case = drawn(seed, shape)
    duration_KC = torch.full_like(case.duration_KC, -cost)
    duration_KC[-1] = 0.0
    return replace(case, duration_KC=duration_KC, lengths_B=torch.full_like(case.lengths_B, shape[1]))


def worst_value(subject: Subject, case: Case) -> tuple[str, float]:
    """(which tensor, error) of the value farthest from the definition's, relative beyond 1; inf for NaN.

    Counts that the audit had to mend are an error too: the values are right, the backend is not.
    """
    solution, exact = subject.solve(case), solve(case.to("cpu", torch.float64), "naive")
    errors = {
        name: largest_error(value.double().cpu(), right)
        for (name, value), (_, right) in zip(solution.tensors(), exact.tensors(), strict=True)
    }
    if solution.mended:
        return f"mended: {solution.mended}", math.inf
    return max(errors.items(), key=lambda item: item[1])


def largest_error(value: Tensor, right: Tensor) -> float:
    same = (value == right) | (torch.isnan(value) & torch.isnan(right))
    error = torch.where(same, torch.zeros_like(right), (value - right).abs() / (1 + right.abs()))
    return float(torch.nan_to_num(error, nan=math.inf).max())


def hostile_case(dice: torch.Generator, frames: int = 24) -> tuple[Case, str]:
    """(case, what is hostile in it): masks of -inf and of large finite numbers, length 1, K > T, C = 1,
    grammar rows without a way out, and soft penalties of 40 to 700, which are where a product of two scaled
    messages underflows.
    """

    def roll(high: int) -> int:
        return int(torch.randint(0, high, (1,), generator=dice))

    shape = (1 + roll(4), 1 + roll(frames), 1 + roll(30), 1 + roll(9))
    case = random_case(dice, *shape, scale=(1.0, 30.0, 1e4)[roll(3)], dtype=torch.float32)
    changes: dict[str, Callable[[Case], Case]] = {
        "-2e12": lambda c: replace(c, score_BTC=c.score_BTC.masked_fill(chance(c.score_BTC, dice), -2e12)),
        "-1e30": lambda c: replace(c, score_BTC=c.score_BTC.masked_fill(chance(c.score_BTC, dice), -1e30)),
        "masked scores": lambda c: replace(
            c, score_BTC=c.score_BTC.masked_fill(chance(c.score_BTC, dice), FORBIDDEN)
        ),
        "masked transitions": lambda c: replace(
            c, transition_CC=c.transition_CC.masked_fill(chance(c.transition_CC, dice, 0.5), FORBIDDEN)
        ),
        "masked durations": lambda c: replace(
            c, duration_KC=c.duration_KC.masked_fill(chance(c.duration_KC, dice, 0.5), FORBIDDEN)
        ),
        "empty grammar row": lambda c: replace(c, transition_CC=emptied(c.transition_CC)),
        "length 1": lambda c: replace(c, lengths_B=torch.ones_like(c.lengths_B)),
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


def penalised(values: Tensor, dice: torch.Generator) -> Tensor:
    """A random half of the values less 40 to 700."""
    penalty = 40 + 660 * torch.rand(values.shape, generator=dice)
    return torch.where(chance(values, dice, 0.5), values - penalty, values)


def chance(values: Tensor, dice: torch.Generator, share: float = 0.1) -> Tensor:
    return torch.rand(values.shape, generator=dice) < share


def emptied(transition: Tensor) -> Tensor:
    emptied_CC = transition.clone()
    emptied_CC[0] = FORBIDDEN
    return emptied_CC
