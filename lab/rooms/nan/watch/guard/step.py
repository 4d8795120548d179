"""The state of one model's training, which all stages read and write: which step runs, what was bad in it."""

from __future__ import annotations

import itertools
import os
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from lab.rooms.nan.guarded.read import STAGES, Event
from lab.rooms.nan.watch.count import Counter, NativeCounts
from lab.rooms.nan.watch.guard.scaling import Scaling
from lab.rooms.nan.watch.native import library
from lab.rooms.nan.watch.seam import Modules
from lab.rooms.nan.watch.unseen_by_compile import hidden
from lab.rooms.nan.watch.watch import NonFiniteError, choose_counter, counter_named

CLASS = {
    "forward": "activation",
    "act_grads": "gradient",
    "param_grads": "gradient",
    "weights_after": "weight",
    "opt_state": "optimizer",
}
FIRST_STEPS = 32


class Headroom:
    """Follows the largest magnitude of each class; where it costs extra, every `interval` steps or never."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.peaks: dict[tuple[str, str], float] = {}  # (class, dtype) -> largest magnitude so far

    def is_due(self, step: int) -> bool:
        """Whether largest magnitudes are counted in this step, where they cost extra: at first in each."""
        return bool(self.interval) and (step < FIRST_STEPS or step % max(1, self.interval // 2) == 0)

    def met(self, stage: str, dtypes: Sequence[torch.dtype], largest: np.ndarray) -> None:
        """Tensors of one stage passed, with these types and largest finite magnitudes (-1: not counted)."""
        kinds = {*dtypes}
        for dtype in kinds if stage in CLASS else ():
            of_type = largest if len(kinds) == 1 else largest[[one is dtype for one in dtypes]]
            key = CLASS[stage], str(dtype)[6:]
            if (peak := float(of_type.max())) > self.peaks.get(key, 0.0):
                self.peaks[key] = peak

    def sentences(self, least_share: float = 0.0) -> list[str]:
        """The largest magnitude of each class, and its share of its type's range."""
        sentences = []
        for (kind, dtype), peak in self.peaks.items():
            share = peak / torch.finfo(getattr(torch, dtype)).max
            part = f"{share:.1%}" if share >= 1e-3 else "less than 0.1%"
            if share >= least_share:
                sentences.append(f"{kind} in {dtype}: largest {peak:.4g}, {part} of what the type can hold")
        return sentences


@dataclass(frozen=True)
class Strategy:
    """How the model is spread over ranks."""

    name: str
    reduces: bool = False  # gradients at the update are not this rank's own
    reduces_at_once: bool = False  # the reduction follows the accumulation at once: count before
    no_replay: str = ""


def strategy_of(model: nn.Module) -> Strategy:
    """By what the model is made of: DDP or FSDP wrappers, distributed weights."""
    kinds = {type(module).__name__ for module in model.modules()}
    bases = {base.__name__ for module in model.modules() for base in type(module).__mro__[:3]}
    alone = "a forward holds collectives, which one rank cannot run again alone"
    if "FSDPModule" in bases or "FullyShardedDataParallel" in kinds:
        return Strategy("FSDP", True, False, alone)
    if any(hasattr(parameter, "placements") for parameter in model.parameters()):
        return Strategy("tensor parallel", False, False, alone)
    if world() > 1:
        # Inside DDP's wrapper or outside of it: the model cannot tell.
        return Strategy("DDP" if "DistributedDataParallel" in kinds else "data parallel", True, True)
    return Strategy("one process")


def world() -> int:
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0


MOST_EVENTS = 24  # of one step; more are counted
MOST_NOTES = 50


class StepState:
    """One model's training so far: what it is, which step runs, and what was bad."""

    def __init__(
        self, model: nn.Module, scaler: Any = None, *, headroom: int = 16, counter: str | None = None
    ) -> None:
        self.model, self.modules = model, Modules(model)
        self.device = device = next((one.device for one in model.parameters()), torch.device("cpu"))
        self.on_gpu = device.type == "cuda"
        self.strategy, self.scaling, self.headroom = strategy_of(model), Scaling(scaler), Headroom(headroom)
        self.counter, self.count = self._chosen(device, counter)

        self.step = 0  # updates so far
        self.counted_by = ""  # what steps are counted by: optimizer, weights or backward
        self.forward_since_update = False
        self.updating: Any = None  # the optimizer whose update runs
        self.updating_weights: list[Tensor] = []  # of that
        self._updated_by: set[int] = set()  # the optimizers, by id, of the step that has just ended
        self.begun_at: dict[int, int] = {}  # optimizer, by id -> the step in which its update began

        self.steps: list[GuardStep] = []  # those with something bad that are over
        self.open: dict[int, GuardStep] = {}  # by number, over or not
        # Forwards whose infinities reached the output, by step: what to do if the loss or a gradient, which
        # decide on them, is bad (and whether by a NaN), and if not.
        self.waiting: dict[int, list[tuple[Callable[[bool], None], Callable[[], None]]]] = {}
        self.loss_in = -1  # the last step with a loss
        self.lost: dict[int, str] = {}  # steps with a forward that could not be counted -> why
        self.looked_at: Tally[str] = Tally()  # tensors looked at, by stage
        self.notes: list[str] = []
        self.failed = 0  # times that something in the guard failed
        self.ended = False  # the guard
        self.reaction: BaseException | None = None  # what the program's own reaction raised last: it passes
        self.now: Callable[[], int] = itertools.count(1).__next__  # the next moment; events are ordered by it

    def _chosen(self, device: torch.device, counter: str | None) -> tuple[str, Counter]:
        """On a CPU, unless a way of counting was asked for, magnitudes are counted only where due."""
        name = counter or choose_counter(device)[0]
        if counter is not None or name != "bits" or (loaded := library()) is None:
            return name, counter_named(name)
        native = NativeCounts(loaded)

        def count(tensors: Sequence[Tensor]) -> np.ndarray:
            return (native.magnitudes if self.headroom.is_due(self.step) else native.screen)(tensors)

        count.reads_only = True  # type: ignore[attr-defined]
        return name, count

    # Which step this is

    def count_by_optimizer(self) -> None:
        """An optimizer of torch updates: backwards that were counted as steps were parts of its first one."""
        if self.counted_by == "backward":
            self.step = self.loss_in = 0
            parts = [self.open[number] for number in sorted(self.open)]
            waiting = [one for number in sorted(self.waiting) for one in self.waiting[number]]
            self.waiting = {0: waiting} if waiting else {}
            if parts:
                events = [msgspec.structs.replace(event, step=0) for part in parts for event in part.events]
                merged = GuardStep(0, events[:MOST_EVENTS], reacted=any(part.reacted for part in parts))
                self.open = {0: merged}
                self.steps = [merged] if self.steps else []
        self.counted_by = "optimizer"

    def update_begins(self, optimizer: int) -> bool:
        """Begin an optimizer's update; whether no forward of its step was seen.

        Updates by several optimizers after one forward are one step.
        """
        joined = self._joins(optimizer)
        self.begun_at[optimizer] = self.step
        return not joined and not self.forward_since_update

    def update_returns(self, optimizer: int) -> None:
        """Go back to the step that this update began, if another one inside of it has ended that."""
        begun_at = self.begun_at.pop(optimizer, self.step)
        if self.step > begun_at and not self.forward_since_update:
            self.step -= 1

    def left_out(self, optimizer: int) -> int:
        """End the step in which a scaler left out this optimizer's update; its number."""
        self._joins(optimizer)
        self.step_ends()
        return self.step - 1

    def step_ends(self) -> None:
        self.step += 1
        self.forward_since_update = False

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

    @hidden
    def infinities_are_gone(self, first_step: int) -> None:
        """Losses and gradients of all steps before this one were looked at, and only the bad ones had any."""
        for step in [number for number in self.waiting if number < first_step]:
            for _, gone in self.waiting.pop(step):
                self.within(gone)

    def infinities_stay(self) -> None:
        """No loss was made of the last outputs: they are what counts."""
        for step in [number for number in self.waiting if number > self.loss_in]:
            for reached, _ in self.waiting.pop(step):
                self.within(reached, True)

    # What was bad

    def event(
        self, stage: str, row: Row, tensor: Any, *, step: int | None = None, place: str = "", **more: Any
    ) -> None:
        """Note a bad tensor, as `bad_event`; `place` if its name alone does not say it."""
        number = self.step if step is None else step
        event = bad_event(number, stage, place or f"{WORDS[stage]} {more['name']}", row, tensor, **more)
        self.add(event)
        if stage in GRADIENT_STAGES:
            for reached, _ in self.waiting.pop(number, ()):
                self.within(reached, event.nan > 0)

    def add(self, event: Event) -> None:
        step = self.open.setdefault(event.step, GuardStep(event.step))
        if len(step.events) < MOST_EVENTS or event.time < max(event.time for event in step.events):
            step.events.append(event)

    def note(self, text: str) -> None:
        if len(self.notes) < MOST_NOTES and text not in self.notes:
            self.notes.append(text)

    @hidden
    def safely(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run it; a failure is a note, never an exception in the program. Reactions do pass."""
        return self.within(work, *args)

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


Row = Sequence[float] | np.ndarray  # counts by KINDS


def bad_event(step: int, stage: str, place: str, row: Row, tensor: Any = None, **more: Any) -> Event:
    """A bad tensor with its counts, and with its size and type where it is known."""
    event = Event(step, stage, place, nan=float(row[0]), inf=float(row[1] + row[2]), **more)
    if tensor is not None:
        event.shape, event.dtype = "x".join(map(str, tensor.shape)), str(tensor.dtype)[6:]
    return event


def named(module: str) -> str:
    return module or "the model itself"


def owner(name: str) -> str:
    """The module that a weight, or a weight's state, lies in."""
    path = name.split(": ")[0]
    return path.rsplit(".", 1)[0] if "." in path else ""


WORDS = {
    "weights_before": "in the weights:",
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


@dataclass
class GuardStep:
    """One step: everything bad in it, first things first."""

    number: int
    events: list[Event] = field(default_factory=list)
    reacted: bool = False  # the guard's `on_bad` was done

    @property
    def first(self) -> Event | None:
        return first_of(self.events)


def first_of(events: Iterable[Event]) -> Event | None:
    """The verdict: the earliest, and in one moment the earliest stage."""
    return min(events, key=lambda event: (event.time, STAGES.index(event.stage)), default=None)
