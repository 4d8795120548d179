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


def mass_error(case: Case, solution: Solution) -> float:
    """How far the gradient by the scores is from a probability for each label of each frame: its sum over the
    labels from 1, and a number from 0 to 1; 0 is perfect. Infeasible sequences have no mass.
    """
    alive_B = torch.isfinite(solution.logZ_B).cpu()
    inside_BT = torch.arange(case.score_BTC.shape[1]) < (case.lengths_B * alive_B)[:, None]
    label_BTC = solution.score_BTC.double().cpu()
    beyond = torch.maximum(label_BTC - 1, -label_BTC).max()
    return float(torch.maximum((label_BTC.sum(2) - inside_BT.double()).abs().max(), beyond))


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
    apart = torch.where(logZ == exact.logZ_B, torch.zeros_like(logZ), (logZ - exact.logZ_B).abs())
    gap = float(apart.max())
    if gap > 1e-7 * float(exact.logZ_B.nan_to_num(neginf=0.0).abs().max()) + 1e-4:
        return f"log Z differs by {gap:.3g}: {logZ.tolist()} against {exact.logZ_B.tolist()} in float64"
    off = (posterior - exact.score_BTC).abs()
    if float(off.max()) > 1e-4:
        b, t, c = (off > 1e-4).nonzero()[0].tolist()
        return f"posteriors differ by {float(off.max()):.3g}, first at b={b} t={t} c={c}"
    return None
