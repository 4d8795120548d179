"""A case: one batch of scores and parameters, apart from any network; what a backend makes of it, and how
that compares: bits, posterior mass, float64. The smallest case that still fails is saved as `case.npz`, with
the few lines of `reproduce.py` that run it again.
"""

from __future__ import annotations

import functools
import io
import math
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.core.files import write_atomic
from lab.errors import BadDataError
from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.autograd import MendedCounts
from lab.rooms.semicrf.model.problem import FLOATS, Problem, inside

Partition = Callable[..., Tensor]
Row = dict[str, Any]
"""What a check or a probe found: its name, its value beside its limit, and the answer in a sentence."""
MOST_BYTES = 1 << 30


def finite_number(value: float | Tensor) -> float | None:
    """JSON has no NaN and no infinity."""
    number = float(value)
    return number if math.isfinite(number) else None


def words_of(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


@dataclass(frozen=True)
class Case(Problem):
    """A problem as it was given: nothing in it is admitted yet."""

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Case:
        """Floats to `dtype`, all but the lengths to `device`."""
        moved = {name: value.to(device=device, dtype=dtype) for name, value in self.by_name().items()}
        return replace(self, **moved)

    def only(self, index: list[int]) -> Case:
        """Some sequences, without the padding that is left by the others."""
        lengths = self.lengths_B[index]
        score_BTC = self.score_BTC[index][:, : max(1, int(lengths.max()))]
        return replace(self, score_BTC=score_BTC, lengths_B=lengths)

    def cut(self, frames: int) -> Case:
        """The first `frames` frames of every sequence."""
        return replace(self, score_BTC=self.score_BTC[:, :frames], lengths_B=self.lengths_B.clamp(max=frames))

    def without_last(self, frames: int) -> Case:
        return self.cut(int(self.lengths_B.max()) - frames)

    def without_first(self, frames: int) -> Case:
        return replace(self, score_BTC=self.score_BTC[:, frames:], lengths_B=self.lengths_B - frames)

    def padded(self, frames: int, value: float) -> Case:
        """`frames` more frames, and `value` wherever no sequence is."""
        score = nn.functional.pad(self.score_BTC, (0, 0, 0, frames))
        within = inside(score.shape[1], self.lengths_B, score.device)[..., None]
        return replace(self, score_BTC=score.masked_fill(~within, value))

    def save(self, path: Path) -> None:
        data = io.BytesIO()
        arrays = {name: value.detach().cpu().numpy() for name, value in self.arguments().items()}
        np.savez_compressed(data, **arrays)
        write_atomic(path, data.getvalue())

    @classmethod
    def load(cls, path: Path) -> Case:
        """Raises BadDataError for a file that is not a case; nothing in it is executed."""
        try:
            with zipfile.ZipFile(path) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                    raise BadDataError("a case of more than 1 GiB when unpacked", location=path)
            with np.load(path, allow_pickle=False) as arrays:
                names = ("lengths_B", *FLOATS[:5])
                return cls(**{name: torch.from_numpy(arrays[name]) for name in names})
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise BadDataError(f"not a semi-CRF case: {error}", location=path) from error


def poison_free_memory(device: torch.device, amount_bytes: int = 256 << 20) -> None:
    """Fill free memory with NaN, so that reading what was never written shows."""
    blocks = [
        torch.full((max(1, amount_bytes >> shift) // 4,), float("nan"), device=device)
        for shift in range(1, 16)
    ]
    del blocks


def random_case(
    dice: torch.Generator | int,
    shape: Sequence[int],
    *,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """Normal scores and parameters of a shape (B, T, K, C), by a seed or a generator; lengths 1..T with one
    full.
    """
    batch, frames, longest, classes = shape
    generator = torch.Generator().manual_seed(dice) if isinstance(dice, int) else dice

    def normal(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=dtype)

    lengths_B = torch.randint(1, frames + 1, (batch,), generator=generator)
    lengths_B[0] = frames
    per_frame, pairs, lasting = (batch, frames, classes), (classes, classes), (longest, classes)
    return Case(
        normal(*per_frame), normal(*pairs), normal(*lasting), lengths_B, normal(classes), normal(classes)
    )


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

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if name != "mended"}

    def errors(self, exact: Solution) -> dict[str, float]:
        """The largest error of each tensor's values, relative beyond 1; inf for NaN."""
        values = self.tensors().items()
        return {name: largest_error(value.double().cpu(), getattr(exact, name)) for name, value in values}

    def first_nonfinite(self) -> str | None:
        """The first invalid tensor; log Z may be -inf, and its gradients are then 0."""
        for name, tensor in self.tensors().items():
            bad = torch.isnan(tensor) | (tensor == float("inf"))
            if name != "logZ_B":
                bad = ~torch.isfinite(tensor)
            if bool(bad.any()):
                place = " ".join(map(str, bad.nonzero()[0].tolist()))
                return f"{'log Z' if name == 'logZ_B' else 'gradient of ' + name} at [{place}]"
        return None


def largest_error(value: Tensor, right: Tensor) -> float:
    same = (value == right) | (torch.isnan(value) & torch.isnan(right))
    error = torch.where(same, torch.zeros_like(right), (value - right).abs() / (1 + right.abs()))
    return float(torch.nan_to_num(error, nan=math.inf).max())


def solve(case: Case, partition: Partition | str, weight_B: Tensor | None = None) -> Solution:
    """log Z and all gradients of its sum, or of the sum with these weights, by one forward and one backward
    pass of a partition function or of a backend.
    """
    if isinstance(partition, str):
        partition = functools.partial(api.log_partition, backend=partition)
    leaves = {name: value.detach().clone().requires_grad_() for name, value in case.by_name().items()}
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        logZ_B = partition(**leaves, lengths_B=case.lengths_B)
        # An infeasible sequence has log Z = -inf: its incoming gradient must not turn 0 into NaN: it stays.
        torch.autograd.backward(logZ_B, torch.ones_like(logZ_B) if weight_B is None else weight_B.to(logZ_B))
    grads = {
        name: leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for name, leaf in leaves.items()
    }
    mended = []
    for warning in raised:
        if issubclass(warning.category, MendedCounts):
            mended.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return Solution(logZ_B.detach(), **grads, mended=mended[0] if mended else None)


def same_bits(left: Solution, right: Solution) -> bool:
    return all(bits_equal(value, getattr(right, name)) for name, value in left.tensors().items())


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Equal to the last bit, NaN included."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


def mass_error(case: Case, solution: Solution) -> float:
    """How far the gradient by the scores is from a probability for each label of each frame: its sum over the
    labels from 1, and a number from 0 to 1. Infeasible sequences have no mass.
    """
    alive_B = torch.isfinite(solution.logZ_B).cpu()
    inside_BT = inside(case.score_BTC.shape[1], case.lengths_B * alive_B)
    label_BTC = solution.score_BTC.double().cpu()
    beyond = torch.maximum(label_BTC - 1, -label_BTC).max()
    return float(torch.maximum((label_BTC.sum(2) - inside_BT.double()).abs().max(), beyond))


def difference(case: Case, solution: Solution) -> str | None:
    """What in `solution` differs from the plain float64 reference by more than float32 may, if anything."""
    if solution.mended:
        return solution.mended
    exact = solve(case.to("cpu", torch.float64), "naive")
    bad = solution.first_nonfinite()
    if bad:
        return f"not finite: {bad}; float64 has log Z = {exact.logZ_B.tolist()}"
    frames = exact.score_BTC.shape[1]
    logZ, posterior = solution.logZ_B.double().cpu(), solution.score_BTC[:, :frames].double().cpu()
    gap = float(torch.where(logZ == exact.logZ_B, 0.0, (logZ - exact.logZ_B).abs()).max())
    if gap > 1e-7 * float(exact.logZ_B.nan_to_num(neginf=0.0).abs().max()) + 1e-4:
        return f"log Z differs by {gap:.3g}: {logZ.tolist()} against {exact.logZ_B.tolist()} in float64"
    off = (posterior - exact.score_BTC).abs()
    if float(off.max()) > 1e-4:
        b, t, c = (off > 1e-4).nonzero()[0].tolist()
        return f"posteriors differ by {float(off.max()):.3g}, first at b={b} t={t} c={c}"
    return None


REPRODUCE = '''\
"""Run the case beside this file on one backend and compare it with float64. Exit code 1: it still fails."""
import pathlib
import sys

import torch

from lab.errors import LabError
from lab.rooms.semicrf.workload.cases import Case, difference, solve

BACKEND, PADDING = {backend!r}, {padding!r}
case = Case.load(pathlib.Path(__file__).with_name("case.npz"))
tested = case.to("cuda" if torch.cuda.is_available() else "cpu")
if PADDING:
    tested = tested.padded(PADDING, float("nan"))
for attempt in range(1, 21):  # a race shows in one of many runs
    try:
        text = difference(case, solve(tested, BACKEND))
    except LabError as error:  # of numbers that a sound kernel does not look at
        text = error
    if text:
        sys.exit(f"run {{attempt}}: {{text}}")
print("20 runs agree with float64")
'''


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case found that still fails: one sequence, its frames halved from both ends as far as
    possible.
    """
    for b in range(len(case.lengths_B)):
        if fails(case.only([b])):
            case = case.only([b])
            break
    for smaller in (Case.without_last, Case.without_first):
        step = int(case.lengths_B.max()) // 2
        while step >= 1:
            remaining = int(case.lengths_B.min()) - step
            if remaining >= 1 and fails(smaller(case, step)):
                case = smaller(case, step)
                step = min(step, int(case.lengths_B.max()) // 2)
            else:
                step //= 2
    return case


def save_reproducer(case: Case, folder: Path, *, backend: str, padding: int) -> list[str]:
    """case.npz and reproduce.py in `folder`; -> their names."""
    case.save(folder / "case.npz")
    write_atomic(folder / "reproduce.py", REPRODUCE.format(backend=backend, padding=padding))
    return ["case.npz", "reproduce.py"]
