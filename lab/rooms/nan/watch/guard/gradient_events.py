"""Bad gradients and losses as events: which stage each belongs to, and how sure its place is."""

from __future__ import annotations

import numpy as np

from lab.rooms.nan.watch.guard.borders import Borders
from lab.rooms.nan.watch.guard.forwards import GuardedWatch
from lab.rooms.nan.watch.guard.gradients import Collector, Taken
from lab.rooms.nan.watch.guard.losses import AskedLoss
from lab.rooms.nan.watch.guard.parameters import Unhooked
from lab.rooms.nan.watch.guard.state import WORDS, StepState, named
from lab.rooms.nan.watch.guard.weights import Weights


class GradientEvents:
    """Takes in the counts of gradients."""

    def __init__(
        self,
        state: StepState,
        collector: Collector,
        borders: Borders,
        weights: Weights,
        watch: GuardedWatch,
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
        self._state.headroom.met_all([(one.stage, one.type) for one in taken], rows[:, 4])
        bad = rows[:, :3].sum(axis=1) > 0
        if not bad.any():
            return
        self._watch.name_anew()  # what is bad is told by the names of now
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
