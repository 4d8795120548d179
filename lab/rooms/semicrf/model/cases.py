"""A case: one batch of scores and parameters, apart from any network; what backends make of it; and how it shrinks.

A case can be saved as `case.npz` and run again by the few lines of `reproduce.py` beside it.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.core.files import write_atomic
from lab.errors import BadDataError
from lab.rooms.semicrf.model import api

Partition = Callable[..., Tensor]
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Case:
    """score (B, T, C), transition (C, C), duration (K, C), lengths (B,), start and end (C,)."""

    score_BTC: Tensor
    transition_CC: Tensor
    duration_KC: Tensor
    lengths_B: Tensor
    start_C: Tensor
    end_C: Tensor

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Case:
        """Floats to `dtype`, all but the lengths to `device`."""
        moved = {
            field.name: getattr(self, field.name).to(device=device, dtype=dtype)
            for field in fields(self)
            if field.name != "lengths_B"
        }
        return replace(self, **moved)

    def rows(self, index: list[int]) -> Case:
        lengths = self.lengths_B[index]
        return replace(
            self, score_BTC=self.score_BTC[index][:, : max(1, int(lengths.max()))], lengths_B=lengths
        )

    def cut(self, frames: int) -> Case:
        """The first `frames` frames of every sequence."""
        return replace(self, score_BTC=self.score_BTC[:, :frames], lengths_B=self.lengths_B.clamp(max=frames))

    def without_first(self, frames: int) -> Case:
        return replace(self, score_BTC=self.score_BTC[:, frames:], lengths_B=self.lengths_B - frames)

    def padded(self, frames: int, value: float) -> Case:
        """`frames` more frames, and `value` wherever no sequence is."""
        size, length, classes = self.score_BTC.shape
        more = self.score_BTC.new_zeros(size, frames, classes)
        score = torch.cat([self.score_BTC, more], dim=1)
        inside = torch.arange(length + frames) < self.lengths_B[:, None]
        return replace(
            self, score_BTC=torch.where(inside[..., None].to(score.device), score, score.new_full((), value))
        )

    def save(self, path: Path) -> None:
        data = io.BytesIO()
        np.savez_compressed(
            data, **{f.name: getattr(self, f.name).detach().cpu().numpy() for f in fields(self)}
        )
        write_atomic(path, data.getvalue())

    @classmethod
    def load(cls, path: Path) -> Case:
        """Raises BadDataError for a file that is no case; nothing in it is executed."""
        try:
            with zipfile.ZipFile(path) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                    raise BadDataError("this case unpacks to more than 1 GiB", where=path)
            with np.load(path, allow_pickle=False) as arrays:
                return cls(**{field.name: torch.from_numpy(arrays[field.name]) for field in fields(cls)})
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise BadDataError(f"not a case of this room: {error}", where=path) from error


@dataclass(frozen=True)
class Solution:
    """log Z and the gradients of its sum; posteriors are the gradient by the scores."""

    logZ_B: Tensor
    score_BTC: Tensor
    transition_CC: Tensor
    duration_KC: Tensor
    start_C: Tensor
    end_C: Tensor

    def tensors(self) -> list[tuple[str, Tensor]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    def first_nonfinite(self, lengths_B: Tensor) -> str | None:
        """The first tensor that is not as it must be; log Z may be -inf, and its gradients are then 0."""
        for name, tensor in self.tensors():
            bad = torch.isnan(tensor) | (tensor == float("inf"))
            if name != "logZ_B":
                bad = ~torch.isfinite(tensor)
            if bool(bad.any()):
                place = " ".join(str(at) for at in bad.nonzero()[0].tolist())
                return f"{'log Z' if name == 'logZ_B' else 'gradient of ' + name} at [{place}]"
        return None


def solve(case: Case, backend: str, partition: Partition = api.log_partition) -> Solution:
    """log Z and all gradients by one forward and backward pass."""
    names = ("score_BTC", "transition_CC", "duration_KC", "start_C", "end_C")
    leaves = {name: getattr(case, name).detach().clone().requires_grad_() for name in names}
    logZ_B = partition(
        leaves["score_BTC"],
        leaves["transition_CC"],
        leaves["duration_KC"],
        case.lengths_B,
        start_C=leaves["start_C"],
        end_C=leaves["end_C"],
        backend=backend,
    )
    # An infeasible sequence has log Z = -inf: its incoming gradient must not turn 0 into NaN, so it is left in.
    logZ_B.sum().backward()  # type: ignore[no-untyped-call]
    grads = {
        name: leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for name, leaf in leaves.items()
    }
    return Solution(logZ_B.detach(), **grads)


def same_bits(one: Solution, other: Solution) -> bool:
    return all(bits_equal(a, b) for (_, a), (_, b) in zip(one.tensors(), other.tensors(), strict=True))


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Equal to the last bit, NaN included."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.contiguous().view(whole), b.contiguous().view(whole))


def ledger(case: Case, found: Solution) -> dict[str, float]:
    """How far the posterior mass is from balancing, per line of the ledger; 0 is perfect.

    Each gradient of log Z is an expected count, so: labels cover every frame once, durations add up to the length,
    every sequence starts and ends once, and there is one transition less than segments. `range` is how far a posterior
    leaves 0 to 1, which coverage does not see. Infeasible sequences have no mass.
    """
    alive = torch.isfinite(found.logZ_B).cpu()
    lengths = case.lengths_B * alive
    inside = torch.arange(case.score_BTC.shape[1]) < lengths[:, None]
    mass = found.score_BTC.double().sum(2).cpu()
    steps = torch.arange(1, len(case.duration_KC) + 1, dtype=torch.float64)
    durations = found.duration_KC.double().cpu()
    count, frames, segments = float(alive.sum()), float(lengths.sum()), float(durations.sum())
    return {
        "coverage": float((mass - inside.double()).abs().max()),
        "range": float(torch.maximum(found.score_BTC - 1, -found.score_BTC).max().clamp(min=0)),
        "duration": abs(float((steps[:, None] * durations).sum()) - frames) / max(1.0, frames),
        "start": abs(float(found.start_C.double().sum()) - count) / max(1.0, count),
        "end": abs(float(found.end_C.double().sum()) - count) / max(1.0, count),
        "segments": abs(float(found.transition_CC.double().sum()) + count - segments) / max(1.0, segments),
    }


def poison_free_memory(device: torch.device, amount_bytes: int = 256 << 20) -> None:
    """Fill memory that the allocator will hand out next with NaN, so that reading what was never written shows."""
    blocks = [
        torch.full((max(1, amount_bytes >> shift) // 4,), float("nan"), device=device)
        for shift in range(1, 16)
    ]
    del blocks


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case found that still fails: one sequence, then as few frames as halving from both ends leaves."""
    for b in range(len(case.lengths_B)):
        if fails(case.rows([b])):
            case = case.rows([b])
            break
    for smaller in (_without_last, Case.without_first):
        step = int(case.lengths_B.max()) // 2
        while step >= 1:
            rest = int(case.lengths_B.min()) - step
            if rest >= 1 and fails(smaller(case, step)):
                case = smaller(case, step)
                step = min(step, int(case.lengths_B.max()) // 2)
            else:
                step //= 2
    return case


def _without_last(case: Case, frames: int) -> Case:
    return case.cut(int(case.lengths_B.max()) - frames)


REPRODUCE = '''"""Run the case beside this file on one backend and hold it against float64. Exit code 1: it still fails."""
import pathlib
import sys

import torch

from lab.rooms.semicrf.model.cases import Case, difference, solve
from lab.rooms.semicrf.model.faults import planted

BACKEND, PLANT, PADDING = {backend!r}, {plant!r}, {padding!r}
case = Case.load(pathlib.Path(__file__).with_name("case.npz"))
device = "cuda" if torch.cuda.is_available() else "cpu"
tested = case.to(device)
if PADDING:
    tested = tested.padded(PADDING, float("nan"))
partition = planted(PLANT)
for attempt in range(1, 21):  # a race shows in one of many runs
    text = difference(case, solve(tested, BACKEND, partition))
    if text:
        sys.exit(f"run {{attempt}}: {{text}}")
print("20 runs agree with float64")
'''


def difference(case: Case, found: Solution) -> str | None:
    """What of `found` is not within float32's tolerance of the plain float64 reference; None if all is."""
    exact = solve(case.to("cpu", torch.float64), "naive")
    bad = found.first_nonfinite(case.lengths_B)
    if bad:
        return f"not finite: {bad}; float64 has log Z = {exact.logZ_B.tolist()}"
    frames = exact.score_BTC.shape[1]
    logZ, posterior = found.logZ_B.double().cpu(), found.score_BTC[:, :frames].double().cpu()
    gap = _gap(logZ, exact.logZ_B)
    if gap > 1e-7 * float(_finite(exact.logZ_B).abs().max()) + 1e-4:
        return f"log Z differs by {gap:.3g}: {logZ.tolist()} against {exact.logZ_B.tolist()} in float64"
    off = (posterior - exact.score_BTC).abs()
    if float(off.max()) > 1e-4:
        b, t, c = (off > 1e-4).nonzero()[0].tolist()
        return f"posteriors differ by {float(off.max()):.3g}, first at b={b} t={t} c={c}"
    return None


def _gap(one: Tensor, other: Tensor) -> float:
    """The greatest difference; equal infinities differ by 0."""
    apart = torch.where(one == other, torch.zeros_like(one), (one - other).abs())
    return float(apart.max())


def _finite(values: Tensor) -> Tensor:
    return torch.where(torch.isfinite(values), values, torch.zeros_like(values))


def save_reproducer(case: Case, folder: Path, *, backend: str, plant: str | None, padding: int) -> list[str]:
    """case.npz and reproduce.py in `folder`; -> their names."""
    case.save(folder / "case.npz")
    write_atomic(folder / "reproduce.py", REPRODUCE.format(backend=backend, plant=plant, padding=padding))
    return ["case.npz", "reproduce.py"]


def random_case(
    dice: Any,
    batch: int,
    frames: int,
    longest: int,
    classes: int,
    *,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """Normal scores and parameters, lengths 1..frames with one full; `dice` is a torch.Generator."""

    def normal(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=dice, dtype=dtype)

    lengths = torch.randint(1, frames + 1, (batch,), generator=dice)
    lengths[0] = frames
    return Case(
        normal(batch, frames, classes),
        normal(classes, classes),
        normal(longest, classes),
        lengths,
        normal(classes),
        normal(classes),
    )
