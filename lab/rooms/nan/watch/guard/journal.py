"""What a guard has found so far: events by step, the clock that orders them, and what failed in the guard."""

from __future__ import annotations

import itertools
from collections import Counter as Tally
from collections.abc import Callable
from typing import Any

import numpy as np

from lab.rooms.nan.watch.guard.events import WORDS, Event, GuardStep
from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on
from lab.rooms.nan.watch.watch import NonFiniteError

MOST_EVENTS = 24  # of one step; more are counted
MOST_NOTES = 50


class Journal:
    """The current step, its events and those of the steps before. All parts of a guard write into one."""

    def __init__(self) -> None:
        self.step = 0  # updates so far
        self.steps: list[GuardStep] = []  # those with something bad that are over
        self.open: dict[int, GuardStep] = {}  # by number, over or not
        self.seen: Tally[str] = Tally()  # tensors looked at, by stage
        self.notes: list[str] = []
        self.failed = 0  # times that something in the guard failed
        self.dropped = 0  # events beyond those that a step keeps
        self.ended = False  # the guard
        self.reaction: BaseException | None = None  # what the program's own reaction raised last: it passes
        self.now: Callable[[], int] = itertools.count(1).__next__  # the next moment; events are ordered by it

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
        why: str = "",
        place: str = "",
        step: int | None = None,
    ) -> None:
        """Note a bad tensor called `name`, with its counts; `place` if the name alone does not say it."""
        number = self.step if step is None else step
        event = Event(moment, number, stage, module, place or f"{WORDS[stage]} {name}", name)
        event.unsure, event.why = unsure, why
        if row is not None:
            event.nan, event.inf = float(row[0]), float(row[1] + row[2])
        if tensor is not None:
            event.shape = tensor.shape if isinstance(tensor.shape, str) else "x".join(map(str, tensor.shape))
            event.dtype = str(tensor.dtype).replace("torch.", "")
        self.add(event)

    def add(self, event: Event) -> None:
        step = self.open.setdefault(event.step, GuardStep(event.step))
        if len(step.events) < MOST_EVENTS or event.time < max(one.time for one in step.events):
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

    def failure(self, what: str, error: Exception) -> None:
        """Something in the guard failed, and the program goes on."""
        self.failed += 1
        self.note(f"{what}: {type(error).__name__}: {str(error)[:300]}")


def named(module: str) -> str:
    return module or "the model itself"


def owner(name: str) -> str:
    """The module that a weight, or a weight's state, lies in."""
    path = name.split(": ")[0]
    return path.rsplit(".", 1)[0] if "." in path else ""
