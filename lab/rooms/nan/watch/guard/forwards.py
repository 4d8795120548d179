"""Forwards in training: the watch that tells the guard of each, and what a bad one says about the step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from lab.rooms.nan.watch import seam
from lab.rooms.nan.watch.batch import Batch
from lab.rooms.nan.watch.count import all_clean
from lab.rooms.nan.watch.explain import Judged
from lab.rooms.nan.watch.forward import Forward, Seen
from lab.rooms.nan.watch.guard.borders import Borders
from lab.rooms.nan.watch.guard.reactions import Reactions
from lab.rooms.nan.watch.guard.state import FROM_WEIGHTS, Event, StepState, named
from lab.rooms.nan.watch.guard.weights import Weights
from lab.rooms.nan.watch.lane import RECOMPUTE, Lane
from lab.rooms.nan.watch.roles import Birth
from lab.rooms.nan.watch.steps import Step
from lab.rooms.nan.watch.unseen_by_compile import passes_on
from lab.rooms.nan.watch.watch import Watch

SHARDED = ("FSDP", "tensor parallel")
FIRST_ASKED, ASK_EVERY = 2, 64  # updates, before and between looks at a GPU's free memory
MOST_BORDERS = 20_000  # gradients at borders that are remembered within a step
MOST_LOST = 10_000  # steps with forwards that could not be counted, of which the reason is kept
FREE_PART = 4  # one part in so many of it may be held
OVERWRITTEN = "tensors were overwritten in place before being counted"
OUTSIDE = "the program itself calls it: the batch held it, or code between the model's modules made it"


class Listener(Protocol):
    """What is told of forwards as they happen."""

    reacts: bool  # to what is bad, beside keeping it

    def new_modules(self) -> None:
        """Modules became part of the model."""

    def forward_begins(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The outermost module is called."""

    def forward_ends(self, forward: Forward) -> None:
        """It returned or raised; its tensors are not counted yet."""

    def forward_was_bad(self, step: Step, forward: Forward) -> None:
        """It was counted, and something bad was made in it."""

    def forward_over(self) -> None:
        """The program goes on behind a forward that returned."""

    def react_if_bad(self) -> None:
        """Here a reaction may stop the program."""


class GuardedWatch(Watch):
    """The guard's watch over forwards: it tells the guard when they begin, pass and end."""

    def __init__(
        self, state: StepState, borders: Borders, listener: Listener, allow: Sequence[str] = ()
    ) -> None:
        super().__init__(
            state.model, counter=state.count, keep_rows=False, modules=state.modules, allow=allow
        )
        self._state, self._borders, self._headroom = state, borders, state.headroom
        self._listener = listener
        self.lost: dict[int, str] = {}  # steps with a forward that could not be counted -> why
        self._least_budget, self._ask_at = self.budget_bytes, FIRST_ASKED
        self._device = next((parameter.device for parameter in state.model.parameters()), torch.device("cpu"))

    def meet_new_modules(self) -> None:
        super().meet_new_modules()
        self._state.safely(self._listener.new_modules)

    @passes_on
    def begins(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._state.step >= self._ask_at and self._device.type == "cuda":
            self._ask_at = self._state.step + ASK_EVERY
            self._state.within(self._ask_for_memory)
        self._state.within(self._listener.forward_begins, forward, module, args, kwargs)

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
            self._state.within(self._headroom.met_tensors, "forward", dtypes, counted.counts[:, 4])

    def has_loss(self, forward: Forward) -> bool:
        return forward.passage is not None

    def wait_for_loss(self, forward: Forward, counted: Seen, judged: Judged) -> None:
        def reached(nan: bool) -> None:
            bad = judged.bad
            if (bad is None or not bad.any()) and not nan:
                bad = judged.masks
            if bad is not None and bad.any():
                step = Step(forward.number, forward.phase, forward.query_length, int(bad.sum()))
                self._explainer.explain(step, forward, counted, bad, self._steps, self._count)
                self._listener.forward_was_bad(step, forward)

        for batch in counted.batches:
            batch.let_go()  # shapes stay: they are asked for when the loss is known
        self._state.waits_for_loss(forward.update, reached, partial(self.absorb, judged))

    def passing(self, forward: Forward, batch: Batch) -> None:
        if self._headroom.due(self._state.step) and len(batch.tensors) > 1:
            given_out = [tensor for tensor, out in zip(batch.tensors, batch.outputs(), strict=True) if out]
            self._state.safely(self._headroom.sample, "activation", given_out)
        self._state.within(self._borders.attach, forward, batch)

    def ends(self, forward: Forward) -> None:
        self._state.within(self._listener.forward_ends, forward)

    def _ask_for_memory(self) -> None:
        """After whole steps, what the driver has free is nobody's: of that, a forward may hold more.

        One that is counted as a whole is read by a template, in half the time.
        """
        free = torch.cuda.mem_get_info(self._device)[0]
        self.budget_bytes = max(self._least_budget, free // FREE_PART)

    def stepped(self, step: Step, forward: Forward) -> None:
        if step.births:
            self._listener.forward_was_bad(step, forward)
        else:
            self._steps.clear()  # a training job has no end of forwards

    @passes_on
    def react(self, forward: Forward) -> None:
        if not self._waiting:  # else it is clean
            self._listener.react_if_bad()
        self._listener.forward_over()

    def read_weights_again(self) -> list[dict[str, Any]]:
        """What weights and buffers hold now that is bad."""
        return self._explainer.check_weights(self._count)

    def weights_of_others(self) -> list[dict[str, Any]]:
        """Bad weights of modules other than the one that a birth was seen in, which it may have used."""
        return self._explainer.bad_weights

    def module_called(self, name: str) -> nn.Module | None:
        return self.modules.named(name)


class BadForwards:
    """Turns a bad forward into events."""

    def __init__(self, state: StepState, watch: GuardedWatch, weights: Weights, reactions: Reactions) -> None:
        self._state, self._watch, self._weights, self._reactions = state, watch, weights, reactions

    def take(self, step: Step, forward: Forward) -> None:
        birth = step.births[0]
        moment = forward.time - 0.5
        self._weights.read_what_was_updated(moment=moment)
        number = forward.update if forward.update >= 0 else self._state.step
        again = self._watch.read_weights_again if birth.kind == "weights" else self._watch.weights_of_others
        for weight in again():
            inf = weight["posinf"] + weight["neginf"]
            self._weights.was_bad(weight["name"], weight["nan"], inf, from_start=False, moment=moment - 0.25)
        outside = OUTSIDE if birth.kind == "given" and birth.module else ""
        unsure = birth.unsure or outside or self._maybe_another_rank(birth)
        event = Event(moment, number, *_stage_and_place(birth, step.phase), name=birth.leaf, unsure=unsure)
        event.extremes = tuple(step.extremes)
        if forward.saved is not None and birth.kind not in ("given", "weights"):
            self._reactions.name_forward_op(event, birth, forward.saved)
        self._state.add(event)

    def _maybe_another_rank(self, birth: Birth) -> str:
        """Under sharded weights a module's output rests on other ranks too."""
        module = self._watch.module_called(birth.module)
        if self._state.strategy.name not in SHARDED or birth.kind != "output" or module is None:
            return ""
        if not any(hasattr(parameter, "placements") for parameter in module.parameters()):
            return ""
        return (
            f"the weights of {named(birth.module)} are spread over ranks: this rank's part is clean, "
            "another's may not be, or its collective brought it; see the other ranks' records"
        )


def _stage_and_place(birth: Birth, phase: str) -> tuple[str, str, str]:
    """(stage, module, place in words) of a birth that the watch found."""
    whose = named(birth.module)
    if birth.kind == "given" and birth.module:
        return "forward", birth.module, f"before forward of {whose}: in {birth.leaf}, which it was given"
    if birth.kind == "given":
        return "batch", birth.module, f"in the batch: {birth.leaf} of {whose}"
    if birth.kind == "weights":
        return "forward", birth.module, f"in forward of {whose}, {FROM_WEIGHTS}"
    if birth.kind in ("unknown", "cache"):
        return "forward", birth.module, birth.place
    spots = birth.place.split(",", 1)
    between = f",{spots[1]}" if spots[1:] else ""
    again = ", in the recomputation of a checkpoint" if phase == RECOMPUTE else ""
    return "forward", birth.module, f"in forward of {whose}{between}{again}"
