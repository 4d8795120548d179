"""Weights and optimizer state as they are between updates: read, and who made what is bad in them.

Bad numbers stay in weights and state, so they are read as often as a share of the time allows, once more when
a forward looks as if its weights were bad, and whenever the verdict is asked for. How often only decides how
many updates a sentence may speak of.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from lab.rooms.nan.watch.count import Counter
from lab.rooms.nan.watch.guard.events import WORDS, Event
from lab.rooms.nan.watch.guard.headroom import Headroom
from lab.rooms.nan.watch.guard.journal import Journal, owner
from lab.rooms.nan.watch.guard.updates import (
    Named,
    named_weights,
    negative_squares,
    parameters_of,
    parts_of,
    state_tensors,
    why_not_finite,
)
from lab.rooms.nan.watch.plain import as_counted, is_unbuilt
from lab.rooms.nan.watch.quiet import quiet

READ_SHARE = 0.03  # of the time between updates, for reading weights and state


class Weights:
    """The weights of one model, their names, and the state that optimizers hold for them."""

    def __init__(
        self,
        model: nn.Module,
        count: Counter,
        journal: Journal,
        headroom: Headroom,
        optimizers: list[Any],
        *,
        on_gpu: bool,
    ) -> None:
        self._model, self._count, self._journal = model, count, journal
        self._headroom, self._on_gpu = headroom, on_gpu
        self.optimizers = optimizers  # those given to the guard
        self.names: dict[int, str] = {}
        self.owners: dict[int, list[str]] = {}
        self.updates_since_read = 0
        self._bad: set[str] = set()
        self._infinite_buffers: set[str] = set()  # from the start on: sentinels
        self._versions_after: dict[int, int] = {}  # at the end of the last update
        self._written_before_update: dict[int, int] = {}  # weight -> step in which other code wrote it
        self._read_seconds, self._step_began, self._step_seconds = 0.0, 0.0, 0.0
        self._versions = -1  # of all weights together, for torch before 2.0

    def learn_names(self) -> None:
        """Of all weights that the model has now; one that is shared has several owners."""
        for name, module in self._model.named_modules():
            for own, parameter in module.named_parameters(recurse=False):
                self.names.setdefault(id(parameter), f"{name}.{own}".lstrip("."))
                owners = self.owners.setdefault(id(parameter), [])
                if name not in owners:
                    owners.append(name)

    def begin(self, bad: Sequence[dict[str, Any]], sentinels: Iterable[str]) -> None:
        """The guard begins; these weights are bad already, and these buffers infinite."""
        self._versions_after = {id(one): version(one) for one in self._model.parameters()}
        self._versions = sum(self._versions_after.values())
        self._infinite_buffers = set(sentinels)
        for one in bad:
            self.was_bad(one["name"], one["nan"], one["posinf"] + one["neginf"], before=True)
        self._step_began = time.perf_counter()

    def is_one_of(self, parameter: Tensor) -> bool:
        return id(parameter) in self.names

    # Around an update

    def before_update(self, parameters: Sequence[Tensor]) -> None:
        """Notice what other code has written since the last update."""
        for one in parameters:
            now = version(one)
            if self._versions_after.get(id(one), now) != now:
                self._written_before_update.setdefault(id(one), self._journal.step)

    def after_update(self, optimizer: Any) -> None:
        """Read what it made if that is worth the time, and remember what it left."""
        now = time.perf_counter()
        self._step_seconds, self._step_began = now - self._step_began, now
        self.updates_since_read += 1
        if self._read_seconds <= READ_SHARE * self._step_seconds * self.updates_since_read:
            self._journal.safely(self.read, [optimizer])
        self._versions_after.update({id(one): version(one) for one in parameters_of(optimizer)})

    def note_versions(self) -> None:
        self._versions = sum(map(version, self._model.parameters()))

    def changed_without_hooks(self) -> bool:
        """For torch before 2.0: whether weights were written since they were looked at last."""
        versions = sum(map(version, self._model.parameters()))
        before, self._versions = self._versions, versions
        return 0 <= before != versions

    # Reading

    def read(self, optimizers: Iterable[Any]) -> None:
        """State and weights after the update that has just ended (the step is not counted up yet)."""
        began = time.perf_counter()
        optimizers = list(optimizers)
        states: list[Named] = []
        for optimizer in optimizers:
            states += parts_of(state_tensors(optimizer, self.names))
        weights = parts_of(named_weights(self._model))
        rows = quiet(self._count, [one for _, one in (*states, *weights)])
        moment = self._journal.now()
        kinds = [("opt_state", one.dtype) for _, one in states]
        kinds += [("weights_after", one.dtype) for _, one in weights]
        self._headroom.met_all(kinds, rows[:, 4])
        self._judge_states(moment, states, rows)
        self._judge_weights(moment, weights, rows[len(states) :], optimizers)
        self._journal.seen["opt_state"] += len(states)
        self._journal.seen["weights_after"] += len(weights)
        self.updates_since_read = 0
        self._written_before_update.clear()
        self._read_seconds = 0.5 * self._read_seconds + 0.5 * (time.perf_counter() - began)

    def _judge_states(self, moment: float, states: Sequence[Named], rows: np.ndarray) -> None:
        for (name, tensor), row in zip(states, rows, strict=False):
            if row[:3].sum() > 0:
                self._journal.event(moment, "opt_state", owner(name), name, row, tensor, why=self._since())
        if not self._on_gpu or self.updates_since_read > 1:
            why = "a sum of squares is below zero"
            for name in negative_squares(states):
                self._journal.event(moment, "opt_state", owner(name), name, None, None, why=why)

    def _judge_weights(
        self, moment: float, weights: Sequence[Named], rows: np.ndarray, optimizers: Sequence[Any]
    ) -> None:
        buffers = {name for name, _ in self._model.named_buffers()}
        for (name, tensor), row in zip(weights, rows, strict=True):
            known = name in self._bad or (name in self._infinite_buffers and not row[0])
            if known or not (row[:2].sum() > 0 or (row[2] > 0 and name not in buffers)):
                continue
            self._bad.add(name)
            if name in buffers:
                unsure = (
                    "a forward or other code wrote it since it was read last, and no module has used it yet"
                )
                self._journal.event(moment, "weights_before", owner(name), name, row, tensor, unsure=unsure)
            else:
                self._update_was_bad(moment, name, row, tensor, optimizers)

    # Who made it

    def _update_was_bad(
        self, moment: float, name: str, row: np.ndarray, tensor: Tensor, optimizers: Sequence[Any]
    ) -> None:
        """A weight is bad after an update: by the update, or by code that wrote it before."""
        why, stage, unsure = self._why(name, optimizers), "weights_after", ""
        if not why and self._was_written_before_update(name):
            stage, why = "weights_before", "written by other code than the optimizer, before the update"
        elif not self.updates_since_read:
            stage = "weights_before"
            why = "written by the program: no optimizer of torch has updated weights since they were read"
        elif not why and (grad := self._gradient_that_went_bad(name)) is not None:
            stage, tensor, row = "clipped", grad, quiet(self._count, [grad])[0]
            why = "finite when it was counted: changed since by code that torch does not see (.data, numpy)"
        elif not why:
            unsure = "its settings do not explain it: other code may have written the weight"
            why = self._since()
        self._journal.event(moment, stage, owner(name), name, row, tensor, why=why, unsure=unsure)

    def _gradient_that_went_bad(self, name: str) -> Tensor | None:
        """The gradient that the last update used, if it is bad though all that was counted was finite."""
        grad = getattr(self._parameter(name), "grad", None)
        if grad is None or self.updates_since_read != 1:
            return None
        parts = quiet(as_counted, grad)[0]
        bad = [one for one, row in zip(parts, quiet(self._count, parts), strict=True) if row[:3].sum() > 0]
        return bad[0] if bad else None

    def _since(self) -> str:
        """If weights were not read after every update: since when this may be."""
        if self.updates_since_read < 2:
            return ""
        return f"made in one of the last {self.updates_since_read} updates: weights are not read after each"

    def _why(self, name: str, optimizers: Iterable[Any]) -> str:
        parameter = self._parameter(name)
        found = (why_not_finite(one, parameter) for one in (*optimizers, *self.optimizers))
        return next((why for why in found if why), "")

    def was_bad(self, name: str, nan: float, inf: float, *, before: bool, moment: float = 0) -> None:
        """Bad weights that a forward met, or that were there at the start."""
        if name in self._bad:
            return
        self._bad.add(name)
        step = self._journal.step
        event = Event(moment, step, "weights_before", owner(name), f"in the weights: {name}", name, nan, inf)
        spoiled = not before and self._was_written_before_update(name)
        if not before and self.updates_since_read and not spoiled and not self._written_since_update(name):
            # The forward before this one was clean, so it was the last update.
            event.stage, event.step = "weights_after", max(step - 1, 0)
            event.place = f"{WORDS['weights_after']} {name}"
            event.why = self._why(name, self.optimizers)
            if not event.why:
                event.unsure = (
                    "weights were not read right after the update: other code may have written them"
                )
        elif spoiled:
            event.step = self._written_before_update[id(self._parameter(name))]
            event.why = "written by other code than the optimizer, before the update"
        elif not before:
            event.why = "changed by something other than the optimizer since they were read last"
        self._journal.add(event)

    def _was_written_before_update(self, name: str) -> bool:
        return id(self._parameter(name)) in self._written_before_update

    def _written_since_update(self, name: str) -> bool:
        """Whether a weight or buffer was written to after the last update, as far as torch counts."""
        tensor = dict(named_weights(self._model)).get(name)
        if tensor is None:
            return False
        return self._versions_after.get(id(tensor), version(tensor)) != version(tensor)

    def _parameter(self, name: str) -> nn.Parameter | None:
        return dict(self._model.named_parameters()).get(name)


def version(tensor: Tensor) -> int:
    """How often torch has seen this tensor written; -1 where it does not count."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    if is_unbuilt(tensor):
        return -1
    return -1 if tensor.is_inference() else tensor._version
