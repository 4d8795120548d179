"""What is bad as events: which stage it belongs to, which module, and how sure its place is."""

from __future__ import annotations

import numpy as np

from lab.rooms.nan.watch.explain import Step
from lab.rooms.nan.watch.forward import RECOMPUTE, Forward
from lab.rooms.nan.watch.guard.borders import Borders
from lab.rooms.nan.watch.guard.forwards import Forwards
from lab.rooms.nan.watch.guard.gradients import AskedLoss, Collector, Taken, Unhooked
from lab.rooms.nan.watch.guard.reactions import Reactions
from lab.rooms.nan.watch.guard.step import FROM_WEIGHTS, WORDS, Event, StepState, named
from lab.rooms.nan.watch.guard.weights import Weights
from lab.rooms.nan.watch.roles import Birth

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
        inf = weight["posinf"] + weight["neginf"]
        weights.was_bad(weight["name"], weight["nan"], inf, from_start=False, moment=moment - 0.25)
    outside = OUTSIDE if birth.kind == "given" and birth.module else ""
    unsure = birth.unsure or outside or _maybe_another_rank(birth, state, watch)
    number = forward.update if forward.update >= 0 else state.step
    event = Event(moment, number, *_stage_and_place(birth, step.phase), name=birth.leaf, unsure=unsure)
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


def _stage_and_place(birth: Birth, phase: str) -> tuple[str, str, str]:
    """(stage, module, place) of a birth that the watch found."""
    whose = named(birth.module)
    if birth.kind == "given" and birth.module:
        return "forward", birth.module, f"before forward of {whose}: in {birth.leaf}, which it was given"
    if birth.kind == "given":
        return "batch", birth.module, f"in the batch: {birth.leaf} of {whose}"
    if birth.kind == "weights":
        return "forward", birth.module, f"in forward of {whose}, {FROM_WEIGHTS}"
    if birth.kind == "unknown":
        return "forward", birth.module, birth.place
    spots = birth.place.split(",", 1)
    between = f",{spots[1]}" if spots[1:] else ""
    again = ", in the recomputation of a checkpoint" if phase == RECOMPUTE else ""
    return "forward", birth.module, f"in forward of {whose}{between}{again}"


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
