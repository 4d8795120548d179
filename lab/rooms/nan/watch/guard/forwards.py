"""Forwards in training: the watch that tells the guard of each, and what a bad one says about the step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from lab.rooms.nan.watch import seam
from lab.rooms.nan.watch.count import all_clean
from lab.rooms.nan.watch.explain import Judged, Step
from lab.rooms.nan.watch.forward import RECOMPUTE, Batch, Forward, Lane, Seen
from lab.rooms.nan.watch.guard.borders import Borders
from lab.rooms.nan.watch.guard.step import StepState
from lab.rooms.nan.watch.unseen_by_compile import passes_on
from lab.rooms.nan.watch.watch import Watch

FIRST_ASKED, ASK_EVERY = 2, 64  # updates, before and between looks at a GPU's free memory
MOST_BORDERS = 20_000  # gradients at borders that are remembered within a step
MOST_LOST = 10_000  # steps with forwards that could not be counted, of which the reason is kept
FREE_PART = 4  # one part in so many of it may be held
OVERWRITTEN = "tensors were overwritten in place before being counted"


class Forwards(Watch):
    """The batch and the forwards of a step: the watch, which tells the training when they begin and end."""

    def __init__(self, state: StepState, borders: Borders, training: Any, allow: Sequence[str] = ()) -> None:
        super().__init__(
            state.model, counter=state.count, keep_rows=False, modules=state.modules, allow=allow
        )
        self._state, self._borders, self._headroom = state, borders, state.headroom
        self._training = training
        self.lost: dict[int, str] = {}  # steps with a forward that could not be counted -> why
        self._least_budget, self._ask_at = self.budget_bytes, FIRST_ASKED
        self._device = next((parameter.device for parameter in state.model.parameters()), torch.device("cpu"))

    def meet_new_modules(self) -> None:
        super().meet_new_modules()
        self._state.safely(self._training.new_modules)

    @passes_on
    def begins(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._state.step >= self._ask_at and self._device.type == "cuda":
            self._ask_at = self._state.step + ASK_EVERY
            self._state.within(self._ask_for_memory)
        self._state.within(self._training.forward_begins, forward, module, args, kwargs)

    def _take_one(self, forward: Forward) -> None:
        unknown = self.unknown
        super()._take_one(forward)
        reason = forward.failed or (OVERWRITTEN if self.unknown > unknown else "")
        if reason and len(self.lost) < MOST_LOST:
            self.lost[forward.update] = reason[:200]

    @passes_on
    def _aside(
        self, lane: Lane, reason: str, inner: seam.Call, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        if len(self.lost) < MOST_LOST:
            self.lost[self._state.step] = reason
        return super()._aside(lane, reason, inner, module, args, kwargs)

    def take_clean(self, forward: Forward, batch: Batch) -> bool:
        if batch.fp8:
            return False
        self.forwards += forward.phase != RECOMPUTE
        self.recomputed += forward.phase == RECOMPUTE
        return True

    def take(self, forward: Forward, counted: Seen) -> None:
        clean = all_clean(counted.counts)
        if (
            not clean
            and (counted.counts[:, :3] > 0).any()
            and not (self.has_loss(forward) and self._explainer.all_absorbed(counted))
        ):
            self.name_anew()  # torch does not tell of all that leave the model or move in it
            super().take(forward, counted)
        else:
            self.forwards += forward.phase != RECOMPUTE
            self.recomputed += forward.phase == RECOMPUTE
            if any(batch.fp8 for batch in counted.batches):
                self._note_saturated(counted)
        if not clean and len(counted.counts) and counted.counts[:, 4].max() > 0:
            dtypes = [dtype for _, dtype in counted.shapes()]
            self._state.within(self._headroom.met, "forward", dtypes, counted.counts[:, 4])

    def has_loss(self, forward: Forward) -> bool:
        return forward.passage is not None

    def wait_for_loss(self, forward: Forward, counted: Seen, judged: Judged) -> None:
        def reached(nan: bool) -> None:
            bad = judged.bad
            if (bad is None or not bad.any()) and not nan:
                bad = judged.masks
            if bad is not None and bad.any():
                step = Step(forward.number, forward.phase, forward.query_length, int(bad.sum()))
                self._explainer.explain(step, forward, counted, bad, self._count)
                self._training.forward_was_bad(step, forward)

        for batch in counted.batches:
            batch.let_go()  # shapes stay: they are asked for when the loss is known
        self._state.waits_for_loss(forward.update, reached, partial(self.absorb, judged))

    def passing(self, forward: Forward, batch: Batch) -> None:
        self._state.within(self._borders.enter, forward, batch)

    def ends(self, forward: Forward) -> None:
        self._state.within(self._training.forward_ends, forward)

    def _ask_for_memory(self) -> None:
        """After whole steps, a forward may hold more of what the driver has free.

        One that is counted as a whole is read by a template, in half the time.
        """
        free = torch.cuda.mem_get_info(self._device)[0]
        self.budget_bytes = max(self._least_budget, free // FREE_PART)

    def stepped(self, step: Step, forward: Forward) -> None:
        if step.births:
            self._training.forward_was_bad(step, forward)
        else:
            self._steps.clear()  # a training job has no end of forwards

    @passes_on
    def react(self, forward: Forward) -> None:
        if not self._waiting:  # else it is clean
            self._training.react_if_bad()
        self._training.forward_over()

    @property
    def is_inside(self) -> bool:
        """Whether this thread runs a forward of the model."""
        return self._lanes.lane.inside

    def read_weights_again(self) -> list[dict[str, Any]]:
        """What weights and buffers hold now that is bad."""
        return self._explainer.check_weights(self._count)

    def weights_of_others(self) -> list[dict[str, Any]]:
        """Bad weights of modules other than the one that a birth was seen in, which it may have used."""
        return self._explainer.bad_weights
