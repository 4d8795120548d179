"""A gradient scaler's skipped steps: an infinity in scaled gradients is how it finds its scale, and no fault.

It is one when the scale falls below 1, when step after step is left out, or more than a twentieth of all (or
than its growth explains). A scaler forgets its found-inf flags in `update`, so they are read when `step`
returns. The classes are patched, not the scalers, so that copies and pickles carry nothing along.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from types import FunctionType
from typing import Any

import torch

from lab.rooms.nan.watch.leaves import quiet
from lab.rooms.nan.watch.shared import Listeners, Patch, surrounded
from lab.rooms.nan.watch.unseen_by_compile import hidden

LEAST_SCALE = 1.0
MOST_SKIPPED = 0.05
ENOUGH_STEPS = 200
MOST_IN_A_ROW = 6  # from 65536 that is below 1024; a new run finds its scale in two or three
LEAST_BITS_LEFT = 10  # a scale that begins higher may be halved down to 1024 before it has found its place


class Scaling:
    """Follows the scalers that run the optimizers of one model."""

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler  # the one that was given, or that ran an optimizer of this model last
        self.running: Any = None  # the scaler whose step of one of these optimizers runs
        self.decided = 0  # of all steps before this one it is known whether they were left out
        self.skipped, self._last_skipped = 0, -1  # steps
        self._first_step = self._last_step = -1  # in which a scaler ran an optimizer
        self._rows: dict[int, tuple[int, int]] = {}  # optimizer -> (first, how many) left out in a row
        self._most_in_a_row = MOST_IN_A_ROW
        self._lowest = math.inf  # what a scale has fallen to
        self.scaled = False  # some scaler of the process scaled a loss since the last update
        self._updated = False  # the optimizer that runs made its update
        self._reported: set[int] = set()  # optimizers, by id, that ran since their scaler's `update`
        self._has_succeeded = False  # an update was made under a scaler

    @property
    def active(self) -> bool:
        """Whether a scaler may leave out what is bad now."""
        return self.scaled or (self.scaler is not None and is_enabled(self.scaler))

    def decides(self, step: int) -> None:
        """No more is left out of the steps before this one."""
        self.decided = max(self.decided, step)

    def enter(self, scaler: Any, optimizer: Any, step: int) -> None:
        """A scaler runs an optimizer of this model in this step."""
        self._reported.discard(id(optimizer))
        self.scaler = self.running = scaler
        self._updated, self._last_step = False, step
        self._first_step = step if self._first_step < 0 else self._first_step

    def update_was_made(self, optimizer: Any) -> None:
        """An optimizer of this model made its update."""
        self._updated, self.scaled = True, False
        self._reported.add(id(optimizer))

    def leave(self, scaler: Any, optimizer: Any) -> bool:
        """Whether the scaler left out this optimizer's update, and that was not known before."""
        if id(optimizer) in self._reported and not self._updated:
            return False
        self._reported.add(id(optimizer))
        if self._updated and not leaves_out(optimizer):
            self._rows.pop(id(optimizer), None)
            self._has_succeeded = True
            return False
        states = _states_of(scaler)
        if states is None:  # a scaler of the program's own
            return isinstance(optimizer, torch.optim.Optimizer)
        return found_infinity(states.get(id(optimizer)))

    def forgotten(self, scaler: Any) -> list[int]:
        """Optimizers, by id, that the program did not run because of what the scaler is about to forget.

        0 where it did not even ask the scaler, but gives it another scale.
        """
        states, is_own = _states_of(scaler) or {}, scaler is self.scaler or self.scaled
        new = [key for key in states if key not in self._reported and found_infinity(states[key])]
        self._reported.clear()
        return new if states else [0] * is_own

    def left_out(self, optimizer: int, scaler: Any, step: int) -> int:
        """A scaler left out an optimizer's part of a step: the first step of the row that this belongs to."""
        self.scaler = scaler
        self.skipped += step != self._last_skipped
        self._last_skipped = self._last_step = step
        self.scaled = False
        first_step, count = self._rows.get(optimizer, (step, 0))
        self._rows[optimizer] = first_step, count + 1
        scale, back = getattr(scaler, "get_scale", None), getattr(scaler, "_backoff_factor", 0.5)
        if scale is not None:
            self._lowest = min(self._lowest, float(quiet(lambda _: scale(), None)) * float(back))
        self._most_in_a_row = MOST_IN_A_ROW
        if not self._has_succeeded and (begin := float(getattr(scaler, "_init_scale", 0) or 0)) >= 2:
            self._most_in_a_row = max(MOST_IN_A_ROW, int(math.log2(begin)) - LEAST_BITS_LEFT)
        return first_step

    def alarm(self) -> str:
        """Say why skipping is abnormal; empty while it is normal."""
        if self._lowest < LEAST_SCALE:
            return f"the loss scale has fallen to {self._lowest:g}: gradients overflow at any scale"
        in_a_row = max((count for _, count in self._rows.values()), default=0)
        if in_a_row >= self._most_in_a_row:
            return f"the scaler left out the last {in_a_row} steps, and none has succeeded since"
        steps = self._last_step - self._first_step + 1
        if steps >= ENOUGH_STEPS and self.skipped > self._most_skipped() * steps:
            return f"the scaler left out {self.skipped} of {steps} steps"
        return ""

    def _most_skipped(self) -> float:
        """A scale at its limit is doubled, and the step left out, after each interval of growth."""
        interval = getattr(self.scaler, "_growth_interval", 0) or 0
        return max(MOST_SKIPPED, 1.5 / (interval + 1)) if interval else MOST_SKIPPED


def _states_of(scaler: Any) -> Any:
    """What a scaler of torch's notes of optimizers, by their ids, until its `update`."""
    return getattr(scaler, "_per_optimizer_states", None)


def is_enabled(scaler: Any) -> bool:
    enabled = getattr(scaler, "is_enabled", None)
    return not callable(enabled) or bool(enabled())


@hidden
def found_infinity(state: Any) -> bool:
    """Whether a scaler met infinities in the gradients that an optimizer with this state would take."""
    flags = state.get("found_inf_per_device", {}) if isinstance(state, dict) else {}
    return any(quiet(bool, flag) for flag in flags.values())


def found_infinity_of(scaler: Any, optimizer: Any) -> bool:
    """Whether a scaler met infinities in the gradients of this optimizer, and has not forgotten it."""
    return found_infinity((_states_of(scaler) or {}).get(id(optimizer)))


def leaves_out(optimizer: Any) -> bool:
    """Whether this optimizer, which a scaler runs in any case, was asked to leave its update out."""
    flag = getattr(optimizer, "found_inf", None)
    return isinstance(flag, torch.Tensor) and bool(flag)


class Scalers(Listeners):
    """Patches of `scale`, `step` and `update` of all scalers' classes, there while a guard lasts.

    A listener has `scaler_scales(scaler)`, `scaler_begins(scaler, optimizer)`, then `scaler_ended(scaler,
    optimizer, returned)`, and `scaler_updates(scaler)`, before a scaler forgets what it found.
    """

    def __init__(self) -> None:
        super().__init__()
        self._met = set[type[Any]]()
        self._patches: list[Patch] = []

    def begin(self) -> None:
        self.meet(_kinds())

    def end(self) -> None:
        for patch in self._patches:
            patch.remove()
        self._patches.clear()
        self._met.clear()

    def meet(self, kinds: Iterable[type[Any]]) -> None:
        """Follow the scalers of these classes, which may be none of torch's."""
        enter = {
            "scale": lambda scaler, *_, **__: self._each("scaler_scales", scaler),
            "step": self._begins,
            "update": lambda scaler, *_, **__: self._each("scaler_updates", scaler),
        }
        with self._lock:
            for kind in [base for scaler_class in kinds for base in scaler_class.__mro__]:
                for name in enter if kind not in self._met else ():
                    if isinstance(vars(kind).get(name), FunctionType):
                        leave = self._ended if name == "step" else None
                        make = partial(surrounded, enter=enter[name], leave=leave)
                        self._patches.append(Patch(kind, name, make).put())
                self._met.add(kind)

    def _begins(self, scaler: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        optimizer = args[0] if args else kwargs.get("optimizer")
        if type(scaler) not in self._met:  # its class came after the guard
            self.meet([type(scaler)])
        self._each("scaler_begins", scaler, optimizer)
        return scaler, optimizer

    def _ended(self, scaler_optimizer: tuple[Any, Any], returned: bool) -> None:
        self._each("scaler_ended", *scaler_optimizer, returned)

    @hidden
    def _each(self, name: str, scaler: Any, *args: Any) -> None:
        if not is_enabled(scaler):
            return
        with ExitStack() as stack:  # an exception of one listener keeps no other from its turn
            for listener in self._calls:
                stack.callback(getattr(listener, name), scaler, *args)


def _kinds() -> list[type[Any]]:
    """The classes of torch's scalers, and all that inherit from them."""
    kinds = [getattr(getattr(torch, "amp", None), "GradScaler", None), torch.cuda.amp.GradScaler]
    classes: list[type[Any]] = [kind for kind in kinds if isinstance(kind, type)]
    for kind in classes:
        classes += kind.__subclasses__()
    return classes


scalers = Scalers()
