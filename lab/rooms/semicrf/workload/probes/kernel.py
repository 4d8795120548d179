"""Probes of one partition function: lab's own forms, or the user's kernel.

Each asks one question and is held against the enumeration of every segmentation, or against float64 from the
definition where there are too many. They go from the simple to the hard, so that the first that fails says
where to look. Limits of all but the last are wide: what only lost digits is `precision`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain, naive
from lab.rooms.semicrf.model.problem import Problem, inside, make_problem
from lab.rooms.semicrf.workload.cases import (
    Case,
    Partition,
    Row,
    Solution,
    difference,
    finite_number,
    mass_error,
    poison_free_memory,
    random_case,
    same_bits,
    solve,
    words_of,
)

REPEATS = 20
WIDE, WIDE_GRADIENT = 0.004, 0.05
"""Relative errors of log Z and of gradients that tell another model or a wrong pass from lost digits."""
LEDGER_LIMIT = 2e-2
DIGITS, GRADIENT_DIGITS = 1e-5, 2e-3
"""What float32 leaves of log Z, relative to its size, and of a posterior."""
GROWTH = (50, 100, 200)
ENUMERATED = 500
"""Segmentations up to which a case is enumerated."""
SENTINEL = -1e8
"""A kernel may have a finite number for what is impossible: a log Z below this is read as -inf."""
PADDING = 5
Answer = tuple[bool, float, float, str]
"""Whether a probe is clean, its value, its limit, and the answer in a sentence."""


@dataclass(frozen=True)
class Kernel:
    """A partition function, the device it runs on, and what it has of the model."""

    name: str
    partition: Partition
    device: torch.device
    own_case: Case | None = None
    """Scores and parameters of the user's model, if a corpus was given."""
    longest: int | None = None
    """The only longest duration that it has (1: a linear chain)."""
    ends: bool = True
    """Whether it takes scores of the first and the last label."""
    infeasible: bool = True
    """Whether it can be asked for a sequence that nothing fits."""
    modelled: Callable[[Partition], Partition] = lambda partition: partition
    """The model that it computes, made of one without its peculiarities."""

    def solve(self, case: Case, weight_B: Tensor | None = None) -> Solution:
        return solve(case.to(self.device, torch.float32), self.partition, weight_B)

    def exact(self, case: Case, weight_B: Tensor | None = None) -> Solution:
        """What the definition gives in float64 on the CPU, of the same float32 numbers."""
        _, frames, labels = case.score_BTC.shape
        longest = len(case.duration_KC)
        few, short = labels * (labels + 1) ** (frames - 1) <= ENUMERATED, frames * longest <= 600
        plain = enumerated if few else (naive if short else log_domain).log_partition
        case = case.to("cpu", torch.float32).to(dtype=torch.float64)
        return solve(case, self.modelled(lambda **model: plain(make_problem(**model))), weight_B)

    def case(self, seed: int, *shape: int, lengths: Sequence[int] = (), **options: Any) -> Case:
        """A random case (B, T, K, C) that the kernel can take; sequences have T frames or these lengths."""
        batch, frames, longest, classes = shape
        case = random_case(seed, (batch, frames, self.longest or longest, classes), **options)
        case = replace(case, lengths_B=torch.tensor(lengths or [frames] * batch))
        if self.longest is not None:
            case = without(case, "duration_KC")
        return case if self.ends else without(case, "start_C", "end_C")


def enumerated(problem: Problem) -> Tensor:
    """log Z by the list of all segmentations."""
    scores = (naive.enumerate_segmentations(problem, b)[1] for b in range(problem.shape[0]))
    return torch.stack([log_domain.logsumexp(score_N, 0) for score_N in scores])


def kernel_probes(kernel: Kernel) -> Iterator[Row]:
    """Every probe that can be asked of this kernel; one that raises has failed."""
    for title, cause, probe in PROBES:
        try:
            answer = probe(kernel)
        except Exception as error:  # noqa: BLE001  a crash of a probe is its answer
            answer = False, math.nan, 0.0, words_of(error)
        if answer is not None:
            yield row(title, cause, *answer, backend=kernel.name)


def row(probe: str, cause: str, clean: bool, value: float, limit: float, text: str, backend: str = "") -> Row:
    number = finite_number(value)
    answer = {"clean": bool(clean), "value": number, "limit": limit, "text": text}
    return {"probe": probe, "cause": cause, "backend": backend, **answer}


def without(case: Case, *names: str) -> Case:
    """The case with zeros for these scores."""
    return replace(case, **{name: torch.zeros_like(getattr(case, name)) for name in names})


def log_z_error(found_B: Tensor, right_B: Tensor) -> Tensor:
    """The error of each log Z relative to its size, at least 1; inf for NaN."""
    found_B = found_B.double().cpu()
    found_B = found_B.masked_fill(found_B < SENTINEL, -math.inf)
    error_B = (found_B - right_B).abs() / right_B.abs().nan_to_num(posinf=1.0).clamp(min=1)
    return torch.where(found_B == right_B, torch.zeros_like(error_B), error_B).nan_to_num(nan=math.inf)


def agrees(kernel: Kernel, *cases: Case, finite: str = "", limit: float = WIDE) -> Answer:
    """log Z of each case against the exact one; with `finite`, the words for what the scores are, whether
    all that comes out is finite is asked first.
    """
    for case in cases if finite else ():
        wild = kernel.solve(case).first_nonfinite()
        if wild:
            return False, math.inf, 0.0, f"{finite} a {wild} that is not finite"
    worst = 0.0
    for case in cases:
        found_B, right_B = kernel.solve(case).logZ_B, kernel.exact(case).logZ_B
        error_B = log_z_error(found_B, right_B)
        b = int(error_B.argmax())
        worst = max(worst, float(error_B[b]))
        if worst > limit:
            text = f"log Z of sequence {b} is {float(found_B[b]):.6g}, and {float(right_B[b]):.6g} is right"
            return False, worst, limit, text
    return True, worst, limit, f"log Z is right to {worst:.1g} of its size"


def _repeats(kernel: Kernel) -> Answer:
    case = kernel.case(1, 4, 12, 4, 3)
    reference = kernel.solve(case)
    apart = sum(not same_bits(reference, kernel.solve(case)) for _ in range(REPEATS - 1))
    text = f"{apart} of {REPEATS - 1} repeats differ from the first in bits"
    return not apart, apart, 0, text if apart else f"{REPEATS} runs, one bit pattern"


def _scores(kernel: Kernel) -> Answer:
    case = kernel.case(2, 1, 3, 4, 3, scale=2.0)
    return agrees(kernel, without(case, "transition_CC", "duration_KC", "start_C", "end_C"))


def _transitions(kernel: Kernel) -> Answer:
    """Their direction shows in a matrix that is not symmetric."""
    case = kernel.case(3, 1, 3, 4, 3, scale=3.0)
    return agrees(kernel, without(case, "duration_KC", "start_C", "end_C"))


def _durations(kernel: Kernel) -> Answer | None:
    """One bias after the other, from too short a sequence to one of several segments."""
    if kernel.longest is not None:
        return None
    case = kernel.case(4, 1, 6, 3, 2)
    square_K = torch.arange(1.0, 4.0, dtype=torch.float64) ** 2  # a long segment outweighs two short ones
    case = replace(case, duration_KC=case.duration_KC + square_K[:, None])
    case = without(case, "score_BTC", "transition_CC", "start_C", "end_C")
    return agrees(kernel, *(case.cut(frames) for frames in range(1, 7)))


def _ends(kernel: Kernel) -> Answer | None:
    return agrees(kernel, kernel.case(5, 1, 4, 3, 3, scale=3.0)) if kernel.ends else None


def _lengths(kernel: Kernel) -> Answer:
    return agrees(kernel, kernel.case(6, 4, 6, 4, 2, scale=2.0, lengths=[6, 1, 4, 5]))


def _padding(kernel: Kernel) -> Answer:
    """Padding, NaN included, and the former content of memory must not change the result."""
    case = kernel.case(7, 3, 7, 3, 3, lengths=[7, 5, 2]).padded(0, 0.0)
    plain = kernel.solve(case)
    poison_free_memory(kernel.device)
    dirty = kernel.solve(case.padded(PADDING, math.nan))
    frames = case.score_BTC.shape[1]
    within = inside(frames, case.lengths_B, kernel.device)[..., None]
    apart = (dirty.score_BTC[:, :frames] - plain.score_BTC).masked_fill(~within, 0.0)
    moved = max(float(log_z_error(dirty.logZ_B, plain.logZ_B.double().cpu()).max()), float(apart.abs().max()))
    wild, clean = dirty.first_nonfinite(), moved <= DIGITS
    if wild:
        return False, moved, DIGITS, f"NaN past the ends gives {wild} not finite"
    changed = "and in free memory changes nothing" if clean else "changes the result"
    return clean, moved, DIGITS, f"NaN past the ends {changed}"


def _masks(kernel: Kernel) -> Answer:
    """-inf in scores and parameters, and a sequence of the batch that nothing fits."""
    base = kernel.case(8, 2, 6, 3, 3)

    def closed(name: str, *places: Any) -> Case:
        values = getattr(base, name).clone()
        for place in places:
            values[place] = -math.inf
        return replace(base, **{name: values})

    cases = [closed("score_BTC", np.s_[:, 2, 1:]), closed("transition_CC", (0, 1), (2, 2))]
    cases += [closed("duration_KC", 1)] if kernel.longest is None else []
    cases += [closed("score_BTC", (1, 3))] if kernel.infeasible else []
    return agrees(kernel, *cases, finite="-inf in the scores gives")


def _composition(kernel: Kernel) -> Answer:
    """Each sequence alone, and the batch in reverse order, against the whole batch."""
    case = kernel.case(9, 4, 12, 3, 3, lengths=[12, 9, 4, 12])
    scale_B11 = torch.tensor([1.0, 40.0, 1.0, 0.1]).view(4, 1, 1).double()
    case = replace(case, score_BTC=case.score_BTC * scale_B11)
    together = kernel.solve(case).logZ_B
    turned = kernel.solve(case.only([3, 2, 1, 0])).logZ_B.flip(0)
    alone = torch.cat([kernel.solve(case.only([b])).logZ_B for b in range(4)])
    gap = max(float(log_z_error(x, together.double().cpu()).max()) for x in (turned, alone))
    apart = int((together != turned).sum() + (together != alone).sum())
    if gap > DIGITS:
        return False, gap, DIGITS, f"log Z of a sequence moves by {gap:.2g} of its size with its batch"
    text = f"{apart} of 8 log Z change in their last bits" if apart else "log Z keeps its bits in any batch"
    return True, gap, DIGITS, text


def _gradients(kernel: Kernel) -> Answer:
    """By every input, of a loss that weighs each sequence by itself."""
    case = kernel.case(10, 3, 6, 3, 2, scale=1.5, lengths=[6, 4, 1])
    for weights, words in (([1.0, 1.0, 1.0], ""), ([2.0, -0.5, 1.0], " of a loss that weighs its sequences")):
        name, error = gradient_error(kernel, case, torch.tensor(weights))
        if not error <= WIDE_GRADIENT:
            return False, error, WIDE_GRADIENT, f"the gradient by {name}{words} is off by {error:.2g}"
    return True, error, WIDE_GRADIENT, "all gradients are those of the enumeration"


def gradient_error(kernel: Kernel, case: Case, weight_B: Tensor) -> tuple[str, float]:
    """The gradient whose worst value is farthest off, relative beyond 1."""
    errors = kernel.solve(case, weight_B).errors(kernel.exact(case, weight_B))
    skipped = {"logZ_B", *(() if kernel.ends else ("start_C", "end_C"))}
    skipped |= set() if kernel.longest is None else {"duration_KC"}
    by_name = {name.partition("_")[0]: error for name, error in errors.items() if name not in skipped}
    return max(by_name.items(), key=lambda item: item[1])


def _mass(kernel: Kernel) -> Answer:
    """The gradient by the scores is a probability for each label of each frame."""
    case = kernel.case(11, 2, 20, 5, 4)
    solution = kernel.solve(case)
    worst = mass_error(case, solution)
    text = solution.mended or f"labels of a frame sum to 1 within {worst:.2g}"
    return worst <= LEDGER_LIMIT and not solution.mended, worst, LEDGER_LIMIT, text


def _large(kernel: Kernel) -> Answer:
    """Scores of some hundred, as a sure network has them."""
    case = kernel.case(12, 2, 6, 3, 2)
    large = (replace(case, **{name: 150 * vars(case)[name]}) for name in ("score_BTC", "transition_CC"))
    return agrees(kernel, *large, finite="scores of some hundred give")


def _long(kernel: Kernel) -> Answer:
    """Past every multiple of K that a ring buffer may have."""
    return agrees(kernel, *(kernel.case(13, 1, frames, 4, 3) for frames in (9, 13, 30)))


def _precision(kernel: Kernel) -> Answer:
    """The digits of log Z and its gradient, in a short sequence and as it grows."""
    case = kernel.case(14, 3, 20, 4, 3)
    name, off = gradient_error(kernel, case, torch.ones(3))
    if not off <= GRADIENT_DIGITS:
        return False, off, GRADIENT_DIGITS, f"of 20 frames the gradient by {name} is off by {off:.2g}"
    errors = {}
    for frames in GROWTH:
        case = kernel.case(15, 1, frames, 5, 4)
        errors[frames] = float(log_z_error(kernel.solve(case).logZ_B, kernel.exact(case).logZ_B).max())
    worst = max(errors.values())
    growth = ", ".join(f"{error:.1g} at T={frames}" for frames, error in errors.items())
    return worst <= DIGITS, worst, DIGITS, f"log Z is off by {growth} of its size"


def _own(kernel: Kernel) -> Answer | None:
    """The scores of the user's model, sequence by sequence."""
    if kernel.own_case is None:
        return None
    text = difference(kernel.own_case, kernel.solve(kernel.own_case))
    return text is None, int(text is not None), 0, text or "log Z and posteriors agree with plain float64"


PROBES: tuple[tuple[str, str, Callable[[Kernel], Answer | None]], ...] = (
    ("same input, same bits", "race", _repeats),
    ("log Z of scores", "kernel", _scores),
    ("transitions", "kernel", _transitions),
    ("durations", "kernel", _durations),
    ("first and last label", "kernel", _ends),
    ("lengths", "boundary", _lengths),
    ("padding and poisoned memory", "boundary", _padding),
    ("masks", "kernel", _masks),
    ("batch order and size", "kernel", _composition),
    ("gradients", "kernel", _gradients),
    ("large scores", "kernel", _large),
    ("longer than the ring", "kernel", _long),
    ("posterior mass", "kernel", _mass),
    ("precision", "precision", _precision),
    ("the model's own scores", "kernel", _own),
)
