"""The state of a guarded training: which step runs, the events of each, and what failed in the guard."""

from __future__ import annotations

import itertools
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.rooms.nan.watch.choose import choose_counter, counter_named, cpu_counters
from lab.rooms.nan.watch.count import Counter
from lab.rooms.nan.watch.guard.headroom import Headroom
from lab.rooms.nan.watch.guard.record import strategy_of
from lab.rooms.nan.watch.guard.scaling import Scaling
from lab.rooms.nan.watch.modules import Modules
from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on
from lab.rooms.nan.watch.watch import NonFiniteError

MOST_EVENTS = 24  # of one step; more are counted
MOST_NOTES = 50


class StepState:
    """One model's training so far: what it is, which step runs, and what was bad.

    Every stage reads it and writes into it.
    """

    def __init__(
        self, model: nn.Module, scaler: Any = None, *, headroom: int = 16, counter: str | None = None
    ) -> None:
        self.model, self.modules = model, Modules(model)
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.on_gpu = device.type == "cuda"
        self.strategy, self.scaling, self.headroom = strategy_of(model), Scaling(scaler), Headroom(headroom)
        self.counter, self.count = self._chosen(device, counter)

        self.step = 0  # updates so far
        self.counted_by = ""  # what steps are counted by: optimizer, weights or backward
        self.forward_since_update = False
        self.updating: Any = None  # the optimizer whose update runs
        self.updating_weights: list[Tensor] = []  # of that
        self._updated_by: set[int] = set()  # the optimizers, by id, of the step that has just ended
        self._begun_at: dict[int, int] = {}  # optimizer, by id -> the step in which its update began

        self.steps: list[GuardStep] = []  # those with something bad that are over
        self.open: dict[int, GuardStep] = {}  # by number, over or not
        # Forwards whose infinities reached the output, by step: what to do if the loss or a
        # gradient is bad (and whether by a NaN), and if not.
        self._waiting: dict[int, list[tuple[Callable[[bool], None], Callable[[], None]]]] = {}
        self.loss_in = -1  # the last step with a loss
        self.looked_at: Tally[str] = Tally()  # tensors looked at, by stage
        self.notes: list[str] = []
        self.failed = 0  # times that something in the guard failed
        self.dropped = 0  # events beyond those that a step keeps
        self.ended = False  # the guard
        self.reaction: BaseException | None = None  # what the program's own reaction raised last: it passes
        self.now: Callable[[], int] = itertools.count(1).__next__  # the next moment; events are ordered by it

    def _chosen(self, device: torch.device, counter: str | None) -> tuple[str, Counter]:
        """On a CPU, unless a way of counting was asked for, magnitudes are counted only where due."""
        name = counter or choose_counter(device)[0]
        if counter is not None or name != "bits":
            return name, counter_named(name)
        magnitudes, screen = cpu_counters()

        def count(tensors: Sequence[Tensor]) -> np.ndarray:
            return (magnitudes if self.headroom.magnitudes_due(self.step) else screen)(tensors)

        count.reads_only = True  # type: ignore[attr-defined]
        return name, count

    # Which step this is

    @passes_on
    def update_begins(self, optimizer: int) -> bool:
        """Begin an optimizer's update; whether no forward of its step was seen.

        Updates by several optimizers after one forward are one step.
        """
        joined = self._joins(optimizer)
        self._begun_at[optimizer] = self.step
        return not joined and not self.forward_since_update

    @passes_on
    def update_returns(self, optimizer: int) -> None:
        """Go back to the step that this update began, if another one inside of it has ended that."""
        begun_at = self._begun_at.pop(optimizer, self.step)
        if self.step > begun_at and not self.forward_since_update:
            self.step -= 1

    def began(self, optimizer: int) -> bool:
        """Whether an update by this optimizer began and has not returned."""
        return optimizer in self._begun_at

    def forget_update(self, optimizer: int) -> None:
        """Forget an update that never returned: its optimizer is gone, and another has its id."""
        self._begun_at.pop(optimizer, None)

    def left_out(self, optimizer: int) -> int:
        """End the step in which a scaler left out this optimizer's update; its number."""
        self._joins(optimizer)
        self.step_ends()
        return self.step - 1

    @passes_on
    def step_ends(self) -> None:
        self.step += 1
        self.forward_since_update = False

    @passes_on
    def _joins(self, optimizer: int) -> bool:
        """Count an update to the step that has ended, if only other optimizers ran in it; whether so."""
        joins = bool(self._updated_by) and not self.forward_since_update
        joins = joins and optimizer not in self._updated_by
        if joins:
            self.step -= 1
        else:
            self._updated_by.clear()
        self._updated_by.add(optimizer)
        return joins

    # Infinities in the output of a forward

    def waits_for_loss(self, step: int, reached: Callable[[bool], None], gone: Callable[[], None]) -> None:
        """Infinities reached the output of a forward of this step; its loss decides on them."""
        self._waiting.setdefault(step, []).append((reached, gone))

    @hidden
    def infinities_are_gone(self, first_step: int) -> None:
        """Losses and gradients of all steps before this one were looked at, and only the bad ones had any."""
        for step in [number for number in self._waiting if number < first_step]:
            for _, gone in self._waiting.pop(step):
                self.within(gone)

    def infinities_stay(self) -> None:
        """No loss was made of the last outputs: they are what counts."""
        for step in [number for number in self._waiting if number > self.loss_in]:
            for reached, _ in self._waiting.pop(step):
                self.within(reached, True)

    # What was bad

    def event(
        self,
        moment: float,
        stage: str,
        module: str,
        name: str,
        row: np.ndarray | None,
        tensor: Any,
        *,
        unsure: str = "",
        reason: str = "",
        place: str = "",
        step: int | None = None,
    ) -> None:
        """Note a bad tensor called `name`, with its counts; `place` if the name alone does not say it."""
        number = self.step if step is None else step
        event = Event(moment, number, stage, module, place or f"{WORDS[stage]} {name}", name)
        event.unsure, event.reason = unsure, reason
        if row is not None:
            event.nan, event.inf = float(row[0]), float(row[1] + row[2])
        if tensor is not None:
            event.shape = tensor.shape if isinstance(tensor.shape, str) else "x".join(map(str, tensor.shape))
            event.dtype = str(tensor.dtype).replace("torch.", "")
        self.add(event)
        if stage in GRADIENT_STAGES:
            for reached, _ in self._waiting.pop(number, ()):
                self.within(reached, event.nan > 0)

    def add(self, event: Event) -> None:
        step = self.open.setdefault(event.step, GuardStep(event.step))
        if len(step.events) < MOST_EVENTS or event.time < max(event.time for event in step.events):
            step.events.append(event)
        else:
            self.dropped += 1

    def note(self, text: str) -> None:
        if len(self.notes) < MOST_NOTES and text not in self.notes:
            self.notes.append(text)

    @hidden
    def safely(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run it; a failure is a note, never an exception in the program. Reactions do pass."""
        return self.within(work, *args)

    @passes_on
    def within(self, work: Callable[..., Any], *args: Any) -> Any:
        """`safely`, where torch.compile is kept away already, or need not be."""
        try:
            return work(*args)
        except NonFiniteError:
            raise
        except Exception as error:
            if error is self.reaction:
                raise
            self.failure(getattr(work, "__name__", "the guard"), error)
            return None

    def failure(self, task: str, error: Exception) -> None:
        """Something in the guard failed, and the program goes on."""
        self.failed += 1
        self.note(f"{task}: {type(error).__name__}: {str(error)[:300]}")


def named(module: str) -> str:
    return module or "the model itself"


def owner(name: str) -> str:
    """The module that a weight, or a weight's state, lies in."""
    path = name.split(": ")[0]
    return path.rsplit(".", 1)[0] if "." in path else ""


# In the order in which they happen within one micro-batch and its update.
STAGES = (
    "weights_before",
    "batch",
    "forward",
    "loss",
    "act_grads",
    "param_grads",
    "after_reduce",
    "clipped",
    "opt_state",
    "weights_after",
)
WORDS = {
    "weights_before": "in the weights",
    "batch": "in the batch",
    "forward": "in forward of",
    "loss": "in the loss",
    "act_grads": "in backward of",
    "param_grads": "in the gradient of",
    "after_reduce": "in the reduced gradient of",
    "clipped": "in the gradient after backward, of",
    "opt_state": "in the optimizer's state of",
    "weights_after": "in the optimizer's update of",
}
GRADIENT_STAGES = ("loss", "act_grads", "param_grads", "after_reduce", "clipped")
FROM_WEIGHTS = "from its weights"


@dataclass(frozen=True)
class Op:
    """The operator that made the first bad number, found by running the step again."""

    name: str  # such as aten.div.Tensor
    module: str
    shapes: tuple[str, ...]  # of its inputs
    dtypes: tuple[str, ...]
    line: str  # file:line of the program, or of the forward line that a backward operator belongs to
    node: str = ""  # the autograd node, in backward
    inputs: str = "finite"
    times: int = 1  # runs that agreed

    def __str__(self) -> str:
        node = f" in {self.node}" if self.node else ""
        line = f", {self.line}" if self.line else ""
        return f"{self.name}{node}{line}"


@dataclass
class Event:
    """Something bad at one place. `time` orders all events of a process; `step` counts updates."""

    time: float
    step: int
    stage: str
    module: str
    place: str  # in words
    name: str = ""  # of the tensor
    nan: float = -1  # -1: not counted
    inf: float = -1
    shape: str = ""
    dtype: str = ""
    unsure: str = ""  # why the place is only where it was first seen
    reason: str = ""
    op: Op | None = None
    op_missing: str = ""  # why no operator is named, after an attempt
    extremes: tuple[str, ...] = ()  # of the last modules before it

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", None, -1, ())}


@dataclass
class GuardStep:
    """One step: everything bad in it, first things first."""

    number: int
    events: list[Event] = field(default_factory=list)
    skipped: bool = False  # the scaler left this update out, as it should

    @property
    def first(self) -> Event | None:
        return first_of(self.events)


def first_of(events: Iterable[Event]) -> Event | None:
    """The verdict: the earliest, and in one moment the earliest stage."""
    order = {stage: index for index, stage in enumerate(STAGES)}
    return min(events, key=lambda event: (event.time, order[event.stage]), default=None)


def corrected(event: Event, steps: Sequence[GuardStep]) -> Event:
    """A first event whose place is unknown gives way to the first one of a later step that is sure.

    It must be the same stage and lie in the same place; what merely spread in a later step is no evidence.
    """
    if not event.unsure:
        return event
    for step in sorted(steps, key=lambda candidate: candidate.number):
        candidate = step.first
        if (
            candidate is None
            or step.number <= event.step
            or candidate.stage != event.stage
            or candidate.unsure
        ):
            continue
        if candidate.place.endswith(FROM_WEIGHTS):  # which the first one's step has updated
            continue
        if _related(candidate.module, event.module):
            return candidate
    return event


def _related(module: str, other_module: str) -> bool:
    inside = module.startswith(f"{other_module}.") or other_module.startswith(f"{module}.")
    return inside or module == other_module or not module or not other_module
