"""What `backward` is called on, and which model it belongs to."""

from __future__ import annotations

import math
from functools import partial
from threading import get_ident
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from lab.rooms.nan.watch.guard.between import local
from lab.rooms.nan.watch.guard.borders import Borders
from lab.rooms.nan.watch.guard.gradients import Collector
from lab.rooms.nan.watch.guard.scaling import factors_of, is_scale_of
from lab.rooms.nan.watch.guard.state import StepState
from lab.rooms.nan.watch.shared import TAKES_OFF, rehooked
from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

_in_backward = getattr(torch._C, "_current_graph_task_id", None)
_OLD = _in_backward is None  # such a torch may run backward in another thread
MOST_LOSSES = 1000  # of one step whose graphs are kept: without what these saved, which backward let go

# When it began, how many gradients had passed then, and what scaled the loss if a scaler did.
Begun = tuple[int, int] | tuple[int, int, Any]


class AskedLoss(str):
    """The node of a loss that the program asked about."""


class Losses:
    """Takes the loss of each backward that made gradients of this model."""

    def __init__(self, state: StepState, collector: Collector, borders: Borders) -> None:
        self._state, self._collector, self._scaling = state, collector, state.scaling
        # On a GPU gradients come in autograd's own threads.
        self._passed = collector.anywhere if state.on_gpu or _OLD else collector.here
        self._looks_for_scaler = 0  # 1: one scales of which it is not known whether it is this model's
        self._used: dict[int, ref[Any]] = {}  # those scalers, by id
        self._borders = borders
        self.asked_waits = False  # a number that the program asked about is bad, or was not read yet

    @passes_on
    def begins(self, tensors: Any) -> Begun | None:
        """What `ended` needs to know; None inside of a backward, as a checkpoint runs one."""
        if self._state.ended or (_in_backward is not None and _in_backward() != -1):
            return None
        try:
            local.between.end()
            if TAKES_OFF:
                rehooked.put_on()
            start = self._state.now(), self._passed()
            scaler = self._scaler_of(tensors) if self._looks_for_scaler else None
            if scaler is None:
                return start
            self._scaling.candidates[get_ident()] = scaler
            return *start, scaler
        except Exception as error:  # a note, never an exception in the program
            self._state.failure("a backward begins", error)
            return None

    @passes_on
    def ended(self, tensors: Any, start: Begun | None) -> None:
        """The loss belongs to this model if gradients of it passed; and then all of them are counted."""
        if start is None:
            return
        if len(start) > 2:
            self._scaling.candidates.pop(get_ident(), None)
        if self._state.ended:
            return
        try:
            if self._passed() == start[1]:
                return
            self._borders.backward_was_taken()
            self._state.loss_in = self._state.step
            if len(start) > 2:
                self._meet(start[2])
            losses = [*tensors] if isinstance(tensors, (tuple, list)) else [tensors]
            if len(self._borders.losses) < MOST_LOSSES:
                for tensor in losses:
                    if (node := getattr(tensor, "grad_fn", None)) is not None:
                        self._borders.losses.append(node)
            self._take(losses, start[0])
            if self._collector.waits:
                self._collector.flush()
        except Exception as error:
            self._state.failure("a backward ends", error)

    @hidden
    def _meet(self, scaler: Any) -> None:
        self._scaling.met(scaler)
        used = [candidate for reference in [*self._used.values()] if (candidate := reference()) is not None]
        self._looks_for_scaler = int(not all(map(self._scaling.knows, used)))

    @hidden
    def _take(self, tensors: list[Any], moment: int) -> None:
        local.between.is_loss(tensors)
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                made_by = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
                self._collector.take("loss", made_by, tensor, moment)

    def asked(self, tensor: Tensor, value: float | None) -> None:
        """The program asks about a single number that still has a graph; its value, where that is known."""
        if self._state.ended or (_in_backward is not None and _in_backward() != -1):
            return
        try:
            passage = self._borders.passage_to(tensor.grad_fn)
            if passage is None:
                return
            passage.asked = True
            if value is None and not self._state.on_gpu:
                value = float(tensor.detach()) if tensor.is_floating_point() else None
            if value is not None and math.isfinite(value):
                self._state.looked_at["loss"] += 1
                return
            made_by = AskedLoss(tensor.grad_fn.name() if tensor.grad_fn is not None else "")
            local.between.is_loss([tensor])
            self._collector.take("loss", made_by, tensor.detach(), self._state.now())
            self.asked_waits = True
        except Exception as error:
            self._state.failure("a number that the program asked about", error)

    @passes_on
    def scaled_by(self, scaler: Any) -> None:
        """A scaler scales something."""
        if id(scaler) not in self._used:
            self._used[id(scaler)] = ref(scaler, partial(self._forget, id(scaler)))
            self._looks_for_scaler |= not self._scaling.knows(scaler)

    def _forget(self, key: int, gone: ref[Any]) -> None:
        if self._used.get(key) is gone:  # another may have its id by now
            del self._used[key]

    @hidden
    def _scaler_of(self, losses: Any) -> Any:
        """The one that scaled these."""
        if not (factors := factors_of(losses)):
            return None
        used = [scaler for candidate in [*self._used.values()] if (scaler := candidate()) is not None]
        for copied in (
            (False, True) if self._scaling.scaler is None else (False,)
        ):  # to compare may wait for a GPU
            for candidate in used:
                if is_scale_of(candidate, factors, copied=copied):
                    return candidate
        return None
