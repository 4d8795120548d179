"""What a backend makes of a case, and how it compares: bits, posterior mass, float64."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.finish import MendedCounts
from lab.rooms.semicrf.workload.cases.case import Case, Partition


@dataclass(frozen=True)
class Solution:
    """log Z and the gradients of its sum; posteriors are the gradient by the scores.

    `mended` is the warning with which the backend's counts were computed again: these gradients are right,
    and the backend is not.
    """

    logZ_B: Tensor
    score_BTC: Tensor
    transition_CC: Tensor
    duration_KC: Tensor
    start_C: Tensor
    end_C: Tensor
    mended: str | None = None

    def tensors(self) -> list[tuple[str, Tensor]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self) if field.name != "mended"]

    def first_nonfinite(self, lengths_B: Tensor) -> str | None:
        """The first invalid tensor; log Z may be -inf, and its gradients are then 0."""
        for name, tensor in self.tensors():
            bad = torch.isnan(tensor) | (tensor == float("inf"))
            if name != "logZ_B":
                bad = ~torch.isfinite(tensor)
            if bool(bad.any()):
                place = " ".join(map(str, bad.nonzero()[0].tolist()))
                return f"{'log Z' if name == 'logZ_B' else 'gradient of ' + name} at [{place}]"
        return None


def solve(case: Case, partition: Partition | str, weight_B: Tensor | None = None) -> Solution:
    """log Z and all gradients of its sum, or of the sum with these weights, by one forward and one backward
    pass of a partition function or of a backend.
    """
    if isinstance(partition, str):
        partition = functools.partial(api.log_partition, backend=partition)
    names = ("score_BTC", "transition_CC", "duration_KC", "start_C", "end_C")
    leaves = {name: getattr(case, name).detach().clone().requires_grad_() for name in names}
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        logZ_B = partition(**leaves, lengths_B=case.lengths_B)
        # An infeasible sequence has log Z = -inf: its incoming gradient must not turn 0 into NaN: it stays.
        torch.autograd.backward(logZ_B, torch.ones_like(logZ_B) if weight_B is None else weight_B.to(logZ_B))
    grads = {
        name: leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for name, leaf in leaves.items()
    }
    return Solution(logZ_B.detach(), **grads, mended=_mended(raised))


def _mended(raised: Sequence[warnings.WarningMessage]) -> str | None:
    """The first warning of mended counts; every other warning is passed on."""
    messages = [str(warning.message) for warning in raised if issubclass(warning.category, MendedCounts)]
    for warning in raised:
        if not issubclass(warning.category, MendedCounts):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return messages[0] if messages else None


def same_bits(left: Solution, right: Solution) -> bool:
    return all(bits_equal(a, b) for (_, a), (_, b) in zip(left.tensors(), right.tensors(), strict=True))


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Equal to the last bit, NaN included."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


def mass_lines(case: Case, solution: Solution) -> dict[str, float]:
    """How far the posterior mass is from balancing, per line of the ledger; 0 is perfect.

    Each gradient of log Z is an expected count, so: labels cover every frame once, durations add up to the
    length, every sequence starts and ends once, and there is one transition fewer than segments. `range` is
    how far a posterior leaves 0 to 1, which coverage does not show. Infeasible sequences have no mass.
    """
    alive = torch.isfinite(solution.logZ_B).cpu()
    lengths = case.lengths_B * alive
    inside = torch.arange(case.score_BTC.shape[1]) < lengths[:, None]
    mass = solution.score_BTC.double().sum(2).cpu()
    steps = torch.arange(1, len(case.duration_KC) + 1, dtype=torch.float64)
    durations = solution.duration_KC.double().cpu()
    count, frames, segments = float(alive.sum()), float(lengths.sum()), float(durations.sum())
    return {
        "coverage": float((mass - inside.double()).abs().max()),
        "range": float(torch.maximum(solution.score_BTC - 1, -solution.score_BTC).max().clamp(min=0)),
        "duration": abs(float((steps[:, None] * durations).sum()) - frames) / max(1.0, frames),
        "start": abs(float(solution.start_C.double().sum()) - count) / max(1.0, count),
        "end": abs(float(solution.end_C.double().sum()) - count) / max(1.0, count),
        "segments": abs(float(solution.transition_CC.double().sum()) + count - segments) / max(1.0, segments),
    }


def difference(case: Case, solution: Solution) -> str | None:
    """What in `solution` differs from the plain float64 reference by more than float32 may; None if nothing
    does.
    """
    if solution.mended:
        return solution.mended
    exact = solve(case.to("cpu", torch.float64), "naive")
    bad = solution.first_nonfinite(case.lengths_B)
    if bad:
        return f"not finite: {bad}; float64 has log Z = {exact.logZ_B.tolist()}"
    frames = exact.score_BTC.shape[1]
    logZ, posterior = solution.logZ_B.double().cpu(), solution.score_BTC[:, :frames].double().cpu()
    gap = _gap(logZ, exact.logZ_B)
    if gap > 1e-7 * float(_finite(exact.logZ_B).abs().max()) + 1e-4:
        return f"log Z differs by {gap:.3g}: {logZ.tolist()} against {exact.logZ_B.tolist()} in float64"
    off = (posterior - exact.score_BTC).abs()
    if float(off.max()) > 1e-4:
        b, t, c = (off > 1e-4).nonzero()[0].tolist()
        return f"posteriors differ by {float(off.max()):.3g}, first at b={b} t={t} c={c}"
    return None


def _gap(left: Tensor, right: Tensor) -> float:
    """The largest difference; equal infinities differ by 0."""
    apart = torch.where(left == right, torch.zeros_like(left), (left - right).abs())
    return float(apart.max())


def _finite(values: Tensor) -> Tensor:
    return torch.where(torch.isfinite(values), values, torch.zeros_like(values))
