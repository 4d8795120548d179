"""Faults to plant, to see whether the diagnosis names them. Each stands for one met in the wild."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lab.errors import UsageError
from lab.rooms.semicrf.config import FAULTS
from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.autograd import Alarm, log_partition
from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.problem import Posteriors, Problem, make_problem

Partition = Callable[..., Tensor]
IN_KERNEL = ("overread", "race", "stale")
_CALLS = itertools.count()  # of the whole process: a race does not restart with each training


def planted(name: str | None, partition: Partition = api.log_partition) -> Partition:
    """The partition with a kernel fault in it; unchanged for a fault that lies elsewhere."""
    if name is not None and name not in FAULTS:
        raise UsageError(f"no fault {name!r}", fix=", ".join(FAULTS))
    faulty = {"overread": _overread, "race": _race, "stale": _stale}
    return faulty.get(name or "", lambda sound: sound)(partition)


def stale_messages(*, backend: str = "auto", **model: Any) -> Tensor:
    """log Z whose way back finds some messages of the first sequence half as large again: the compiled GPU
    form audits its counts while it makes them, so a fault in the counts would come after its audit.
    """
    problem = make_problem(**model)
    engine = api.engine_for(api.resolve_backend(backend, problem.score_BTC), problem)

    def forward(problem: Problem, keep: bool = True) -> Any:
        state = engine.forward(problem, keep, count=False)
        if keep:
            for name in ("arrived", "source"):
                state.buffer(name)[2] *= 1.5  # before, and after, the third frame
        return state

    stale = SimpleNamespace(forward=forward, backward=engine.backward, differentiate=engine.differentiate)
    return log_partition(stale, None, problem)


def _overread(partition: Partition) -> Partition:
    """Two frames past a sequence's end are read where the tensor has them."""

    def faulty(*, lengths_B: Tensor | None = None, **model: Any) -> Tensor:
        if lengths_B is not None:
            lengths_B = (lengths_B + 2).clamp(max=model["score_BTC"].shape[1])
        return partition(lengths_B=lengths_B, **model)

    return faulty


def _race(partition: Partition) -> Partition:
    """Every third call one sequence's message is stale, at a moving frame; every ninth it is NaN."""

    def faulty(*, score_BTC: Tensor, **model: Any) -> Tensor:
        call = next(_CALLS)
        if call % 3 == 2:
            stale = torch.zeros_like(score_BTC)
            b, t = call % len(score_BTC), call % max(1, score_BTC.shape[1] // 2)
            stale[b, t] = float("nan") if call % 9 == 8 else 5.0
            stale[b, t, 0] = 0.0
            score_BTC = score_BTC + stale
        return partition(score_BTC=score_BTC, **model)

    return faulty


def _stale(partition: Partition) -> Partition:
    """The posteriors of the first frames of the first sequence are e^0.5 times too large.

    Every number stays finite; only the mass is not 1. The counts are changed where the alarm gets them, as a
    kernel that reads a stale checkpoint would.
    """

    def faulty(*, lengths_B: Tensor | None = None, alarm: Alarm | None = None, **model: Any) -> Tensor:
        frames = model["score_BTC"].shape[1]

        def spoil(posteriors: Posteriors) -> None:
            whole_B = torch.full_like(posteriors.mass_frame_B, frames)
            ends_B = whole_B if lengths_B is None else lengths_B.to(whole_B.device)
            posteriors.label_BTC[0, : 1 + int(ends_B[0]) // 4] *= math.exp(0.5)
            error_B, frame_B = mass(posteriors.label_BTC, ends_B, posteriors.log_z_B)
            posteriors.mass_error_B.copy_(error_B)
            posteriors.mass_frame_B.copy_(frame_B)
            if posteriors.imbalance_B is not None:
                posteriors.imbalance_B.copy_(error_B)
            if alarm is not None:
                alarm(posteriors)

        return partition(lengths_B=lengths_B, alarm=spoil, **model)

    return faulty
