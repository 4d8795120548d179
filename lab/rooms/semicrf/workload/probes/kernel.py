"""Probes of one partition function: lab's own forms, or the user's kernel.

Each asks one question and is held against the enumeration of every segmentation, or against float64 from the
definition where there are too many. They go from the simple to the hard, so that the first that fails says
where to look. Limits of all but the last are wide: what only lost digits is `precision`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lab.rooms.semicrf.model import log_domain, naive
from lab.rooms.semicrf.model.problem import inside, make_problem
from lab.rooms.semicrf.workload.cases import (
    Case,
    Partition,
    Solution,
    difference,
    mass_error,
    poison_free_memory,
    random_case,
    same_bits,
    solve,
)
from lab.rooms.semicrf.workload.probes import Row, row

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
        few = labels * (labels + 1) ** (frames - 1) <= ENUMERATED
        plain = enumerated if few else from_definition if frames * longest <= 600 else by_log_domain
        return solve(case.to("cpu", torch.float32).to(dtype=torch.float64), self.modelled(plain), weight_B)

    def case(self, seed: int, batch: int, frames: int, longest: int, classes: int, **options: Any) -> Case:
        """A random case that the kernel can take, as long as `frames` in every sequence."""
        dice = torch.Generator().manual_seed(seed)
        case = random_case(dice, batch, frames, self.longest or longest, classes, **options)
        case = replace(case, lengths_B=torch.full_like(case.lengths_B, frames))
        if self.longest is not None:
            case = replace(case, duration_KC=torch.zeros_like(case.duration_KC))
        return case if self.ends else without(case, "start_C", "end_C")


def enumerated(**model: Any) -> Tensor:
    """log Z by the list of all segmentations."""
    problem = make_problem(**model)
    scores = (naive.enumerate_segmentations(problem, b)[1] for b in range(problem.shape[0]))
    return torch.stack([log_domain.logsumexp(score_N, 0) for score_N in scores])


def from_definition(**model: Any) -> Tensor:
    return naive.log_partition(make_problem(**model))


def by_log_domain(**model: Any) -> Tensor:
    return log_domain.log_partition(make_problem(**model))


def kernel_probes(kernel: Kernel) -> Iterator[Row]:
    """Every probe that can be asked of this kernel; one that raises has failed."""
    for title, cause, probe in PROBES:
        try:
            answer = probe(kernel)
        except Exception as error:  # noqa: BLE001  a crash of a probe is its answer
            words = (str(error).splitlines() or [""])[0]
            answer = False, math.nan, 0.0, f"{type(error).__name__}: {words}"
        if answer is not None:
            yield row(title, cause, *answer, backend=kernel.name)


def without(case: Case, *names: str) -> Case:
    """The case with zeros for these scores."""
    return replace(case, **{name: torch.zeros_like(getattr(case, name)) for name in names})


def log_z_error(found_B: Tensor, right_B: Tensor) -> Tensor:
    """The error of each log Z relative to its size, at least 1; inf for NaN."""
    found_B = found_B.double().cpu()
    found_B = found_B.masked_fill(found_B < SENTINEL, -math.inf)
    error_B = (found_B - right_B).abs() / right_B.abs().nan_to_num(posinf=1.0).clamp(min=1)
    return torch.where(found_B == right_B, torch.zeros_like(error_B), error_B).nan_to_num(nan=math.inf)


def agrees(kernel: Kernel, *cases: Case, limit: float = WIDE) -> Answer:
    """log Z of each case against the exact one."""
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
    case = kernel.case(6, 4, 6, 4, 2, scale=2.0)
    return agrees(kernel, replace(case, lengths_B=torch.tensor([6, 1, 4, 5])))


def _padding(kernel: Kernel) -> Answer:
    """Padding, NaN included, and the former content of memory must not change the result."""
    case = kernel.case(7, 3, 7, 3, 3)
    case = replace(case, lengths_B=torch.tensor([7, 5, 2])).padded(0, 0.0)
    plain = kernel.solve(case)
    poison_free_memory(kernel.device)
    dirty = kernel.solve(case.padded(PADDING, math.nan))
    frames = case.score_BTC.shape[1]
    within = inside(frames, case.lengths_B, kernel.device)[..., None]
    apart = (dirty.score_BTC[:, :frames] - plain.score_BTC).masked_fill(~within, 0.0)
    moved = max(float(log_z_error(dirty.logZ_B, plain.logZ_B.double().cpu()).max()), float(apart.abs().max()))
    wild = dirty.first_nonfinite(case.lengths_B)
    if wild or not moved <= DIGITS:
        text = (
            f"NaN past the ends gives {wild} not finite" if wild else "NaN past the ends changes the result"
        )
        return False, moved, DIGITS, text
    return True, moved, DIGITS, "NaN past the ends and in free memory changes nothing"


def _masks(kernel: Kernel) -> Answer:
    """-inf in scores and parameters, and a sequence of the batch that nothing fits."""
    base = kernel.case(8, 2, 6, 3, 3)
    score, transition, closed = base.score_BTC.clone(), base.transition_CC.clone(), base.score_BTC.clone()
    score[:, 2, 1:] = -math.inf
    transition[0, 1] = transition[2, 2] = -math.inf
    closed[1, 3] = -math.inf
    cases = [replace(base, score_BTC=score), replace(base, transition_CC=transition)]
    if kernel.longest is None:
        duration = base.duration_KC.clone()
        duration[1] = -math.inf
        cases.append(replace(base, duration_KC=duration))
    cases += [replace(base, score_BTC=closed)] if kernel.infeasible else []
    for case in cases:
        wild = kernel.solve(case).first_nonfinite(case.lengths_B)
        if wild:
            return False, math.inf, 0.0, f"-inf in the scores gives a {wild} that is not finite"
    return agrees(kernel, *cases)


def _composition(kernel: Kernel) -> Answer:
    """Each sequence alone, and the batch in reverse order, against the whole batch."""
    case = kernel.case(9, 4, 12, 3, 3)
    case = replace(case, lengths_B=torch.tensor([12, 9, 4, 12]))
    case = replace(
        case, score_BTC=case.score_BTC * torch.tensor([1.0, 40.0, 1.0, 0.1]).view(4, 1, 1).double()
    )
    together = kernel.solve(case).logZ_B
    order = [3, 2, 1, 0]
    turned = kernel.solve(case.rows(order)).logZ_B.flip(0)
    alone = torch.cat([kernel.solve(case.rows([b])).logZ_B for b in range(4)])
    gap = max(float(log_z_error(x, together.double().cpu()).max()) for x in (turned, alone))
    apart = int((together != turned).sum() + (together != alone).sum())
    if gap > DIGITS:
        return False, gap, DIGITS, f"log Z of a sequence moves by {gap:.2g} of its size with its batch"
    text = f"{apart} of 8 log Z change in their last bits" if apart else "log Z keeps its bits in any batch"
    return True, gap, DIGITS, text


def _gradients(kernel: Kernel) -> Answer:
    """By every input, of a loss that weighs each sequence by itself."""
    case = kernel.case(10, 3, 6, 3, 2, scale=1.5)
    case = replace(case, lengths_B=torch.tensor([6, 4, 1]))
    for weights, words in (([1.0, 1.0, 1.0], ""), ([2.0, -0.5, 1.0], " of a loss that weighs its sequences")):
        weight_B = torch.tensor(weights)
        name, error = gradient_error(kernel, case, weight_B)
        if not error <= WIDE_GRADIENT:
            text = f"the gradient by {name}{words} is off by {error:.2g}"
            return False, error, WIDE_GRADIENT, text
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
    cases = [replace(case, score_BTC=case.score_BTC * 150)]
    cases.append(replace(case, transition_CC=case.transition_CC * 150))
    for spread in cases:
        wild = kernel.solve(spread).first_nonfinite(case.lengths_B)
        if wild:
            return False, math.inf, 0.0, f"scores of some hundred give a {wild} that is not finite"
    return agrees(kernel, *cases)


def _long(kernel: Kernel) -> Answer:
    """Past every multiple of K that a ring buffer may have."""
    return agrees(kernel, *(kernel.case(13, 1, frames, 4, 3) for frames in (9, 13, 30)))


def _precision(kernel: Kernel) -> Answer:
    """The digits of log Z and its gradient, in a short sequence and as it grows."""
    case = kernel.case(14, 3, 20, 4, 3)
    name, off = gradient_error(kernel, case, torch.ones(3))
    if not off <= GRADIENT_DIGITS:
        return (
            False,
            off,
            GRADIENT_DIGITS,
            f"of {case.score_BTC.shape[1]} frames the gradient by {name} is off by {off:.2g}",
        )
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
