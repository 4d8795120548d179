"""What `backward` is called on, and which model it belongs to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lab.rooms.nan.watch.guard.gradients import Collector
from lab.rooms.nan.watch.guard.journal import Journal
from lab.rooms.nan.watch.guard.scaling import Scaling, find_scaler, scale_of
from lab.rooms.nan.watch.shared import TAKES_OFF, rehooked
from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

_in_backward = getattr(torch._C, "_current_graph_task_id", None)
_OLD = _in_backward is None  # such a torch may run backward in another thread
MOST_LOOKS = 3  # for the scaler behind a loss, each of which goes through all objects of the program


class Losses:
    """Takes the loss of each backward that made gradients of this model."""

    def __init__(self, journal: Journal, collector: Collector, scaling: Scaling, *, on_gpu: bool) -> None:
        self._journal, self._collector, self._scaling = journal, collector, scaling
        # On a GPU gradients come in autograd's own threads.
        self._passed = collector.anywhere if on_gpu or _OLD else collector.here
        self._clean = collector.passing.cleaning("loss") if collector.passing is not None else None
        self._looks_for_scaler = MOST_LOOKS

    @passes_on
    def begins(self, tensors: Any) -> tuple[int, int] | None:
        """(when, how many gradients had passed); None inside of a backward, as a checkpoint runs one."""
        if self._journal.ended or (_in_backward is not None and _in_backward() != -1):
            return None
        try:
            if TAKES_OFF:
                rehooked.put_on()
            if self._scaling.scaler is None and self._looks_for_scaler and (scale := scale_of(tensors)):
                self._look_for_scaler(scale)
            return self._journal.now(), self._passed()
        except Exception as error:  # a note, never an exception in the program
            self._journal.failure("a backward begins", error)
            return None

    @passes_on
    def ended(self, tensors: Any, begun: tuple[int, int] | None) -> None:
        """The loss belongs to this model if gradients of it passed; and then all of them are counted."""
        if begun is None or self._journal.ended:
            return
        try:
            if self._passed() == begun[1]:
                return
            # One look is enough for a clean one: magnitudes of losses are of no interest.
            one = [*tensors] if isinstance(tensors, (tuple, list)) else [tensors]
            if self._clean is None or self._clean(one) < 0:
                self._take(one, begun[0])
            if self._collector.waits:
                self._collector.flush()
        except Exception as error:
            self._journal.failure("a backward ends", error)

    @hidden
    def _take(self, tensors: list[Any], moment: int) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                made_by = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
                self._collector.take("loss", made_by, tensor, moment)

    @hidden
    def _look_for_scaler(self, scale: int) -> None:
        self._looks_for_scaler -= 1
        self._scaling.adopt(find_scaler(scale))
