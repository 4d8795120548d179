"""A gradient scaler's skipped steps: an infinity in scaled gradients is how it finds its scale, and no fault.

It is one when the scale falls below 1, when step after step is left out, or more than a twentieth of all (or
than its growth explains).
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any
from weakref import WeakSet

import torch

from lab.rooms.nan.watch.plain import quiet
from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

LEAST_SCALE = 1.0
MOST_SKIPPED = 0.05
ENOUGH_STEPS = 200
MOST_IN_A_ROW = 6  # from 65536 that is below 1024; a new run finds its scale in two or three
PRODUCT = "MulBackward0"
LINEAR = (
    PRODUCT,
    "DivBackward0",
    "AddBackward0",
    "SubBackward0",
    "NegBackward0",
    "SumBackward0",
    "MeanBackward0",
    "StackBackward0",
)
MOST_OTHERS = 32  # steps of other models' optimizers that are remembered
MOST_NODES = 32  # of a loss that are looked through
LEAST_BITS_LEFT = 10  # a scale that begins higher may be halved down to 1024 before it has found its place


class Scaling:
    """Follows the scalers that run the optimizers of one model."""

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler  # the one that was given, or that was met last
        self.candidates: dict[int, Any] = {}  # by thread: what scaled the loss whose backward runs there
        self.running: Any = None  # the scaler whose step runs
        self.undecided: dict[int, Any] = {}  # scalers that ran an update and may leave out more of that step
        self.decided = 0  # of all steps before this one it is known whether they were left out
        self.skipped, self._last_skipped = 0, -1  # steps
        self._first_step = (
            self._last_step
        ) = -1  # the first and the last step in which a scaler ran an optimizer
        self._rows: dict[int, tuple[int, int]] = {}  # optimizer -> (first, how many) left out in a row
        self._most_in_a_row = MOST_IN_A_ROW
        self._lowest = math.inf  # what a scale has fallen to
        self._stepped = False
        self._reported: set[int] = (
            set()
        )  # optimizers that ran, or were left out, since their scaler's `update`
        self._strangers: dict[int, Any] = {}  # references to optimizers that update other models, by id
        self._own_scalers: WeakSet[Any] = WeakSet()  # scalers by whose losses this model got gradients
        self._other_results: deque[tuple[int, Any]] = deque(
            maxlen=MOST_OTHERS
        )  # (step, what it found of another's)
        self._succeeded: WeakSet[Any] = WeakSet()  # those that left one of these updates be made

    @property
    def active(self) -> bool:
        return self.scaler is not None and is_enabled(self.scaler)

    @passes_on
    def stepped(self, optimizer: Any) -> None:
        """An optimizer made its update."""
        self._stepped = True
        if self.running is None and id(optimizer) in (_states_of(self.scaler) or ()):
            self._reported.add(id(optimizer))  # unscaled by it, and run by the program

    @passes_on
    def met_stranger(self, optimizer: Any) -> None:
        """One that updates no weight of this model: what a scaler left out of it is not ours."""
        if id(optimizer) not in self._strangers:
            self._strangers[id(optimizer)] = weakref.ref(optimizer)

    def may_leave_out(self, step: int, current_step: int) -> bool:
        """Whether a scaler may still leave this step out, or more of it, if it is step `now`."""
        if not (self.active or self.candidates):
            return False
        waits = step >= current_step or self.running is not None or self.undecided
        return bool(step >= self.decided and waits)

    def past(self, step: int, takes_bad: bool) -> None:
        """An optimizer runs: what it takes itself no scaler leaves out any more."""
        if takes_bad:
            self.decided = max(self.decided, step + 1)
        else:  # what is bad of other optimizers they may leave out until the next forward
            self.undecided[0] = None

    @passes_on
    def decides(self, step: int) -> None:
        """A forward begins: no more is left out of the steps before, unless an `update` comes late."""
        self.undecided.pop(0, None)
        if not self.undecided:
            self.decided = step

    @passes_on
    def met(self, scaler: Any) -> None:
        """A loss that it scaled made gradients of this model."""
        self.scaler = scaler if self.scaler is None else self.scaler
        self._own_scalers.add(scaler)

    @passes_on
    def begins(self, scaler: Any, optimizer: Any, step: int | None) -> None:
        """A scaler runs an optimizer, in this step if it is one of this model."""
        self._reported.discard(id(optimizer))
        if step is None:
            return
        self.scaler = self.running = scaler
        self._own_scalers.add(scaler)
        self._stepped, self._last_step = False, step
        self._first_step = step if self._first_step < 0 else self._first_step

    @passes_on
    def ended_other(self, scaler: Any, optimizer: Any, step: int) -> None:
        """It ran an optimizer of another model, or left it out."""
        self._reported.add(id(optimizer))
        if self.knows(scaler) and (states := _states_of(scaler)):
            self._other_results.append((step, states.get(id(optimizer))))

    @passes_on
    def ended(self, scaler: Any, optimizer: Any) -> bool:
        """Whether it has left out the update of an optimizer of this model, and nobody has said so before."""
        is_told, states = id(optimizer) in self._reported, _states_of(scaler)
        self._reported.add(id(optimizer))
        if is_told:
            return False
        if self._stepped:
            self._rows.pop(id(optimizer), None)
            self._succeeded.add(scaler)
            self.undecided[id(scaler)] = scaler
            return False
        if states is None:  # a scaler of the program's own
            return isinstance(optimizer, torch.optim.Optimizer)
        return found_infinity(states.get(id(optimizer)))

    def left_others_out(self) -> bool:
        """Whether one left out another model's update, by a loss that made gradients of both models."""
        return any(found_infinity(state) for step, state in self._other_results if step >= self.decided)

    @passes_on
    def untold(self, scaler: Any) -> list[int]:
        """A scaler forgets what it found: optimizers, by id, that the program did not run because of that.

        0 where it did not even ask the scaler, but gives it another scale.
        """
        states, is_known = _states_of(scaler) or {}, self.knows(scaler)
        new = [key for key in states if key not in self._reported]
        self._reported.difference_update(states)
        self.undecided.pop(id(scaler), None)
        if not states or not is_known:
            return [0] if is_known else []
        new = [key for key in new if self._strangers.get(key, _nothing)() is None]
        return [key for key in new if found_infinity(states[key])]

    @passes_on
    def knows(self, scaler: Any) -> bool:
        return scaler is self.scaler or scaler in self._own_scalers

    def left_out(self, optimizer: int, scaler: Any, step: int) -> int:
        """A scaler left out an optimizer's part of a step: the first step of the row that this belongs to."""
        self.skipped += step != self._last_skipped
        self._last_skipped = self._last_step = step
        first_step, count = self._rows.get(optimizer, (step, 0))
        self._rows[optimizer] = first_step, count + 1
        scale, back = getattr(scaler, "get_scale", None), getattr(scaler, "_backoff_factor", 0.5)
        if scale is not None:
            self._lowest = min(self._lowest, float(quiet(lambda _: scale(), None)) * float(back))
        self._most_in_a_row = MOST_IN_A_ROW
        if scaler not in self._succeeded and (begin := float(getattr(scaler, "_init_scale", 0) or 0)) >= 2:
            self._most_in_a_row = max(MOST_IN_A_ROW, int(math.log2(begin)) - LEAST_BITS_LEFT)
        return first_step

    def alarm(self) -> str:
        """Why skipping is no longer normal; empty while it is."""
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


@passes_on
def _states_of(scaler: Any) -> Any:
    """What a scaler of torch's knows of optimizers, by their ids, until its `update`."""
    return getattr(scaler, "_per_optimizer_states", None)


@passes_on
def is_enabled(scaler: Any) -> bool:
    enabled = getattr(scaler, "is_enabled", None)
    return not callable(enabled) or bool(enabled())


@hidden
def found_infinity(state: Any) -> bool:
    """Whether a scaler met infinities in the gradients that an optimizer with this state would take."""
    flags = state.get("found_inf_per_device", {}) if isinstance(state, dict) else {}
    return any(quiet(bool, flag) for flag in flags.values())


@passes_on
def factors_of(losses: Any) -> list[torch.Tensor]:
    """Single numbers that losses were multiplied by, in what was done to them last."""
    factors, todo = list[torch.Tensor](), [*losses] if isinstance(losses, (tuple, list)) else [losses]
    nodes: list[Any] = [getattr(one, "grad_fn", None) for one in todo]
    for index, node in enumerate(nodes):
        if type(node).__name__ not in LINEAR:
            continue
        if type(node).__name__ == PRODUCT:
            try:
                factor = node._saved_other
            except RuntimeError:  # backward let go of it already
                factor = None
            if isinstance(factor, torch.Tensor) and factor.numel() == 1:
                factors.append(factor)
        if index < MOST_NODES:
            nodes += [after for after, _ in node.next_functions]
    return factors


def is_scale_of(scaler: Any, factors: list[torch.Tensor], *, copied: bool) -> bool:
    """Whether one of these is this scaler's scale, or (lists of losses) a copy of it."""
    scale = getattr(scaler, "_scale", None)
    if not isinstance(scale, torch.Tensor):
        return False
    if any(factor.data_ptr() == scale.data_ptr() for factor in factors):
        return True
    return copied and any(
        factor.dtype == scale.dtype and quiet(float, factor) == quiet(float, scale) for factor in factors
    )


def _nothing() -> None:
    return None


def leaves_out(optimizer: Any) -> bool:
    """Whether a scaler told this optimizer, which it runs in any case, to leave its update out."""
    flag = getattr(optimizer, "found_inf", None)
    return isinstance(flag, torch.Tensor) and bool(flag)
