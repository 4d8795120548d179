"""Forwards in training, and what is bad as events: its stage, its module, and how sure its place is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from lab.rooms.nan.guarded.read import Event
from lab.rooms.nan.watch import seam
from lab.rooms.nan.watch.count import all_clean
from lab.rooms.nan.watch.explain import Judged, Step
from lab.rooms.nan.watch.forward import RECOMPUTE, Forward, Lane
from lab.rooms.nan.watch.guard.borders import Borders
from lab.rooms.nan.watch.guard.gradients import AskedLoss, Collector, Taken, Unhooked
from lab.rooms.nan.watch.guard.reactions import Reactions
from lab.rooms.nan.watch.guard.step import FROM_WEIGHTS, WORDS, StepState, named
from lab.rooms.nan.watch.guard.weights import Weights, row_of
from lab.rooms.nan.watch.roles import Birth
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

    def _aside(
        self, lane: Lane, reason: str, inner: seam.Call, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        if len(self.lost) < MOST_LOST:
            self.lost[self._state.step] = reason
        return super()._aside(lane, reason, inner, module, args, kwargs)

    def take_clean(self, forward: Forward) -> bool:
        if forward.fp8:
            return False
        self.forwards += forward.phase != RECOMPUTE
        self.recomputed += forward.phase == RECOMPUTE
        return True

    def take(self, forward: Forward) -> None:
        rows, clean = forward.rows, all_clean(forward.rows)
        if (
            not clean
            and (rows[:, :3] > 0).any()
            and not (self.has_loss(forward) and self._explainer.all_absorbed(forward))
        ):
            self.name_anew()  # torch does not tell of all that leave the model or move in it
            super().take(forward)
        elif not self.take_clean(forward):
            self.forwards += forward.phase != RECOMPUTE
            self.recomputed += forward.phase == RECOMPUTE
            self._note_saturated(forward)
        if not clean and len(rows) and rows[:, 4].max() > 0:
            dtypes = [dtype for _, dtype in forward.shapes()]
            self._state.within(self._headroom.met, "forward", dtypes, rows[:, 4])

    def has_loss(self, forward: Forward) -> bool:
        return forward.passage is not None

    def wait_for_loss(self, forward: Forward, judged: Judged) -> None:
        def reached(nan: bool) -> None:
            bad = judged.bad
            if (bad is None or not bad.any()) and not nan:
                bad = judged.masks
            if bad is not None and bad.any():
                step = Step(forward.number, forward.phase, forward.query_length, int(bad.sum()))
                self._explainer.explain(step, forward, bad, self._count)
                self._training.forward_was_bad(step, forward)

        forward.let_go()  # shapes stay: they are asked for when the loss is known
        self._state.waits_for_loss(forward.update, reached, partial(self.absorb, judged))

    def passing(self, forward: Forward) -> None:
        self._state.within(self._borders.enter, forward)

    def ends(self, forward: Forward) -> None:
        self._state.within(self._training.forward_ends, forward)

    def _ask_for_memory(self) -> None:
        """After whole steps, a forward may hold more of what the driver has free.

        One that is counted as a whole is read by a few comparisons (`Pattern`), in less time.
        """
        free = torch.cuda.mem_get_info(self._device)[0]
        self.budget_bytes = max(self._least_budget, free // FREE_PART)

    def stepped(self, step: Step, forward: Forward) -> None:
        if step.births:
            self._training.forward_was_bad(step, forward)
        else:
            self._steps.clear()  # a training job has no end of forwards

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


SHARDED = ("FSDP", "tensor parallel")
OUTSIDE = "the program itself calls it: the batch held it, or code between the model's modules made it"


def bad_forward(
    step: Step, forward: Forward, *, state: StepState, watch: Forwards, weights: Weights, reactions: Reactions
) -> None:
    """Turn a bad forward into events, after what weights held before it."""
    birth, moment = step.births[0], forward.time - 0.5
    weights.read_what_was_updated(moment=moment)
    again = watch.read_weights_again if birth.kind == "weights" else watch.weights_of_others
    for weight in again():
        weights.was_bad(weight["name"], row_of(weight), moment=moment - 0.25)
    outside = OUTSIDE if birth.kind == "given" and birth.module else ""
    unsure = birth.unsure or outside or _maybe_another_rank(birth, state, watch)
    number = forward.update if forward.update >= 0 else state.step
    stage, place = _stage_and_place(birth, step.phase)
    event = Event(number, stage, place, moment, birth.module, birth.leaf, unsure=unsure)
    event.extremes = tuple(step.extremes)
    if forward.saved is not None and birth.kind not in ("given", "weights"):
        reactions.name_forward_op(event, birth, forward.saved)
    state.add(event)


def _maybe_another_rank(birth: Birth, state: StepState, watch: Forwards) -> str:
    """Under sharded weights a module's output rests on other ranks too."""
    module = watch.modules.named(birth.module)
    if state.strategy.name not in SHARDED or birth.kind != "output" or module is None:
        return ""
    if not any(hasattr(parameter, "placements") for parameter in module.parameters()):
        return ""
    return (
        f"the weights of {named(birth.module)} are spread over ranks: this rank's part is clean, "
        "another's may not be, or its collective brought it; see the other ranks' records"
    )


def _stage_and_place(birth: Birth, phase: str) -> tuple[str, str]:
    """(stage, place) of a birth that the watch found."""
    whose = named(birth.module)
    if birth.kind == "given" and birth.module:
        return "forward", f"before forward of {whose}: in {birth.leaf}, which it was given"
    if birth.kind == "given":
        return "batch", f"in the batch: {birth.leaf} of {whose}"
    if birth.kind == "weights":
        return "forward", f"in forward of {whose}, {FROM_WEIGHTS}"
    if birth.kind == "unknown":
        return "forward", birth.place
    spots = birth.place.split(",", 1)
    between = f",{spots[1]}" if spots[1:] else ""
    again = ", in the recomputation of a checkpoint" if phase == RECOMPUTE else ""
    return "forward", f"in forward of {whose}{between}{again}"


class GradientEvents:
    """Takes in the counts of gradients."""

    def __init__(
        self,
        state: StepState,
        collector: Collector,
        borders: Borders,
        weights: Weights,
        watch: Forwards,
    ) -> None:
        self._state, self._collector, self._borders = state, collector, borders
        self._weights, self._watch = weights, watch
        self.unknown = 0  # tensors that could not be counted in time

    def settle(self) -> None:
        """Wait for all counts so far, and take them in in order of time."""
        for taken, rows in self._collector.settled():
            self._take(taken, rows)

    def _take(self, taken: list[Taken], rows: np.ndarray) -> None:
        self.unknown += int((rows[:, 0] < 0).sum())
        for stage in {entry.stage for entry in taken} if rows[:, 4].max(initial=-1) > 0 else ():
            of_stage = [n for n, entry in enumerate(taken) if entry.stage == stage]
            self._state.headroom.met(stage, [taken[n].type for n in of_stage], rows[of_stage, 4])
        bad = rows[:, :3].sum(axis=1) > 0
        if not bad.any():
            return
        self._watch.name_anew()  # events take the present names
        self._weights.name_anew()
        self._weights.read_what_was_updated(moment=taken[0].time)
        for index in np.flatnonzero(bad):
            self._was_bad(taken[index], rows[index])

    def _was_bad(self, taken: Taken, row: np.ndarray) -> None:
        stage, module, place, unsure, reason = self._place(taken)
        self._state.event(
            taken.time,
            stage,
            module,
            "",
            row,
            taken,
            unsure=unsure,
            reason=reason,
            place=place,
            step=taken.step,
        )

    def _place(self, taken: Taken) -> tuple[str, str, str, str, str]:
        """(stage, module, place, why unsure, why)"""
        if taken.stage == "act_grads":
            return (*self._borders.place(taken), "")
        if taken.stage == "loss":
            place = f"in the loss ({taken.key})" if taken.key else "in the loss"
            reason = "seen where the program asked about it" if isinstance(taken.key, AskedLoss) else ""
            return "loss", "", place, self._forward_doubt(taken.step), reason
        name = self._weights.names.get(int(taken.key), "?")
        owners = self._weights.owners.get(int(taken.key), [""])
        module = owners[0]
        if taken.stage == "param_grads":
            unsure = f"{name} is shared by {', '.join(map(named, owners))}" if len(owners) > 1 else ""
            unsure = unsure or self._weight_doubt(module)
            if outside := self._borders.outside_use(self._weights.parameter(name)):
                unsure = outside
            if self._weights.has_hooks(name):
                unsure = f"the program has a hook on {name}, which may have made it"
            place = f"in backward of {named(module)}: the gradient of {name}"
            return "param_grads", module, place, unsure, ""
        if isinstance(taken.key, Unhooked):
            unsure = "it was not seen as it accumulated: backward made it, or code after backward"
            place = f"in the gradient of {name}, which the update takes"
            return "param_grads", module, place, unsure, ""
        place = f"{WORDS[taken.stage]} {name}"
        if taken.stage == "after_reduce" and self._state.strategy.name == "FSDP":
            unsure = "it was reduced over ranks: another rank's part, or this rank's own weight gradient"
            return taken.stage, module, place, unsure, ""
        if taken.stage == "after_reduce":
            reason = (
                "this rank's own gradients were clean: the reduction brought it from another rank, or "
                "made it (a sum that overflows, a communication hook)"
            )
            return taken.stage, module, place, "", reason
        reason = "finite when backward ended: unscaling, clipping or other code changed it"
        return taken.stage, module, place, "", reason

    def _forward_doubt(self, step: int) -> str:
        """Why a bad loss of this step may have come from a forward that was not seen; "" if it did not."""
        if step in self._watch.lost:
            reason = self._watch.lost[step]
            return f"a forward of this step could not be counted in full, and may have made it: {reason}"
        unseen = step == self._state.step and not self._state.forward_since_update
        if not self._watch.called or unseen:
            return "no forward of this model was seen before it, which may have made it"
        return ""

    def _weight_doubt(self, module: str) -> str:
        """Why a bad gradient of a module's weight may be of other code than its own; "" if it is not."""
        number = self._state.modules.number_of(module)
        if number not in self._watch.called:
            return f"{named(module)} was not called: other code that uses its weights may have made it"
        if number in self._watch.callers:
            return f"what {named(module)} called may have made it; a replay names the operator"
        return ""
