"""What a guard finds, in order of time, and which of it is the verdict. Pure: no torch.

A training step is a chain of stages. The verdict is the first stage that held a bad number; all that comes
later is spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

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
        where = f", {self.line}" if self.line else ""
        return f"{self.name}{node}{where}"


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
    why: str = ""
    op: Op | None = None
    op_missing: str = ""  # why no operator is named, after an attempt

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", None, -1)}


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
    order = {stage: at for at, stage in enumerate(STAGES)}
    return min(events, key=lambda one: (one.time, order[one.stage]), default=None)


def corrected(first: Event, steps: Sequence[GuardStep]) -> Event:
    """A first event whose place is unknown gives way to the first one of a later step that is sure.

    It must be the same stage and lie in the same place; what merely spread in a later step is no evidence.
    """
    if not first.unsure:
        return first
    for step in sorted(steps, key=lambda one: one.number):
        one = step.first
        if one is None or step.number <= first.step or one.stage != first.stage or one.unsure:
            continue
        if one.place.endswith(FROM_WEIGHTS):  # which the first one's step has updated
            continue
        if _related(one.module, first.module):
            return one
    return first


def _related(one: str, other: str) -> bool:
    return one == other or not one or not other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
