"""What `backward` is called on, and which model it belongs to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lab.rooms.nan.watch.guard.gradients import Collector
from lab.rooms.nan.watch.guard.journal import Journal
from lab.rooms.nan.watch.guard.scaling import Scaling, find_scaler, scale_of
from lab.rooms.nan.watch.lane import recomputing
from lab.rooms.nan.watch.shared import rehooked
from lab.rooms.nan.watch.unseen_by_compile import hidden

_OLD = not hasattr(torch._C, "_current_graph_task_id")  # such a torch may run backward in another thread
MOST_LOOKS = 3  # for the scaler behind a loss, each of which goes through all objects of the program


class Losses:
    """Takes the loss of each backward that made gradients of this model."""

    def __init__(self, journal: Journal, collector: Collector, scaling: Scaling, *, on_gpu: bool) -> None:
        self._journal, self._collector, self._scaling = journal, collector, scaling
        # On a GPU gradients come in autograd's own threads.
        self._passed = collector.anywhere if on_gpu or _OLD else collector.here
        self._looks_for_scaler = MOST_LOOKS

    @hidden
    def begins(self, tensors: Any) -> tuple[int, int] | None:
        """(when, how many gradients had passed); None inside of a backward, as a checkpoint runs one."""
        try:
            return self._passed_before(tensors)
        except Exception as error:  # a note, never an exception in the program
            self._journal.failure("a backward begins", error)
            return None

    @hidden
    def ended(self, tensors: Any, begun: tuple[int, int] | None) -> None:
        if begun is not None:
            try:
                self._take(tensors, begun)
            except Exception as error:
                self._journal.failure("a backward ends", error)

    def _passed_before(self, tensors: Any) -> tuple[int, int] | None:
        if self._journal.ended or recomputing():
            return None
        rehooked.put_on()
        if self._scaling.scaler is None and self._looks_for_scaler and (scale := scale_of(tensors)):
            self._looks_for_scaler -= 1
            self._scaling.adopt(find_scaler(scale))
        return self._journal.now(), self._passed()

    def _take(self, tensors: Any, begun: tuple[int, int]) -> None:
        """The loss belongs to this model if gradients of it passed; and then all of them are counted."""
        moment, passed = begun
        if self._journal.ended or self._passed() == passed:
            return
        for tensor in tensors if isinstance(tensors, (tuple, list)) else [tensors]:
            if isinstance(tensor, Tensor) and not self._is_clean(tensor):
                made_by = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
                self._collector.take("loss", made_by, tensor, moment)
        if self._collector.waits:
            self._collector.flush()

    def _is_clean(self, loss: Tensor) -> bool:
        """Whether one look is enough; magnitudes of losses are of no interest."""
        passing = self._collector.passing
        return passing is not None and passing.clean("loss", (loss,)) >= 0
