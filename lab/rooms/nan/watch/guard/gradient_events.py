"""Bad gradients and losses as events: which stage each belongs to, and how sure its place is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lab.rooms.nan.watch.guard.borders import Borders
from lab.rooms.nan.watch.guard.gradients import Collector, Taken
from lab.rooms.nan.watch.guard.headroom import Headroom
from lab.rooms.nan.watch.guard.journal import WORDS, Journal, named
from lab.rooms.nan.watch.guard.parameters import Unhooked
from lab.rooms.nan.watch.guard.record import Strategy
from lab.rooms.nan.watch.guard.weights import Weights


class GradientEvents:
    """Takes in the counts of gradients."""

    def __init__(
        self,
        journal: Journal,
        collector: Collector,
        borders: Borders,
        weights: Weights,
        headroom: Headroom,
        strategy: Strategy,
        forward_doubt: Callable[[int], str],
        weight_doubt: Callable[[str], str],
        name_anew: Callable[[], None],
    ) -> None:
        self._journal, self._collector, self._borders = journal, collector, borders
        self._weights, self._headroom, self._strategy = weights, headroom, strategy
        self._forward_doubt = forward_doubt  # why the forwards of a step may have made what its loss shows
        self._weight_doubt = weight_doubt  # why code of others may have made what a module's weight shows
        self._name_anew = name_anew  # modules that have moved
        self.unknown = 0  # tensors that could not be counted in time

    def settle(self) -> None:
        """Wait for all counts so far, and take them in in order of time."""
        for taken, rows in self._collector.settled():
            self._take(taken, rows)

    def _take(self, taken: list[Taken], rows: np.ndarray) -> None:
        self.unknown += int((rows[:, 0] < 0).sum())
        self._headroom.met_all([(one.stage, one.type) for one in taken], rows[:, 4])
        bad = rows[:, :3].sum(axis=1) > 0
        if not bad.any():
            return
        self._name_anew()
        self._weights.read_what_was_updated(before=taken[0].time)
        for at in np.flatnonzero(bad):
            self._was_bad(taken[at], rows[at])

    def _was_bad(self, one: Taken, row: np.ndarray) -> None:
        stage, module, place, unsure, why = self._place(one)
        self._journal.event(
            one.time, stage, module, "", row, one, unsure=unsure, why=why, place=place, step=one.step
        )

    def _place(self, one: Taken) -> tuple[str, str, str, str, str]:
        """(stage, module, place, why unsure, why)"""
        if one.stage == "act_grads":
            return (*self._borders.place(one), "")
        if one.stage == "loss":
            place = f"in the loss ({one.key})" if one.key else "in the loss"
            return "loss", "", place, self._forward_doubt(one.step), ""
        name = self._weights.names.get(int(one.key), "?")
        owners = self._weights.owners.get(int(one.key), [""])
        module = owners[0]
        if one.stage == "param_grads":
            unsure = f"{name} is shared by {', '.join(map(named, owners))}" if len(owners) > 1 else ""
            unsure = unsure or self._weight_doubt(module)
            if outside := self._borders.outside_use(self._weights.parameter(name)):
                unsure = outside
            if self._weights.has_hooks(name):
                unsure = f"the program has a hook on {name}, which may have made it"
            place = f"in backward of {named(module)}: the gradient of {name}"
            return "param_grads", module, place, unsure, ""
        if isinstance(one.key, Unhooked):
            unsure = "it was not seen as it accumulated: backward made it, or code after backward"
            place = f"in the gradient of {name}, which the update takes"
            return "param_grads", module, place, unsure, ""
        place = f"{WORDS[one.stage]} {name}"
        if one.stage == "after_reduce" and self._strategy.name == "FSDP":
            unsure = "it was reduced over ranks: another rank's part, or this rank's own weight gradient"
            return one.stage, module, place, unsure, ""
        if one.stage == "after_reduce":
            why = (
                "this rank's own gradients were clean: the reduction brought it from another rank, or "
                "made it (a sum that overflows, a communication hook)"
            )
            return one.stage, module, place, "", why
        why = "finite when backward ended: unscaling, clipping or other code changed it"
        return one.stage, module, place, "", why
