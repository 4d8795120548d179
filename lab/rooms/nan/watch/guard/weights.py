"""Weights and optimizer state as they are between updates: read, and who made what is bad in them.

Bad numbers stay in weights and state, so they are read after each of the first updates, then after every
eighth (in which magnitudes are counted, too): that is little beside what the optimizer itself has read and
written since. They are read at once when anything else is bad, and when the verdict is asked for, so how
often decides only how many updates a sentence may speak of. It depends on nothing but the number of updates:
a busy machine gives the same verdict. What was bad after one update only, and overwritten before anything
used it, may be missed; `reads` says after how many updates they were read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar
from weakref import WeakSet, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import LBFGS

from lab.rooms.nan.watch.count import KINDS
from lab.rooms.nan.watch.explain import any_bad
from lab.rooms.nan.watch.guard.step import Row, StepState, owner
from lab.rooms.nan.watch.leaves import (
    ORDINARY,
    REAL,
    Unseen,
    all_plain,
    as_counted,
    is_unbuilt,
    leaves,
    quiet,
    version,
)
from lab.rooms.nan.watch.shared import new_module
from lab.rooms.nan.watch.unseen_by_compile import hidden

READ_FIRST, READ_EVERY = 8, 8  # updates
UNEXPLAINED = "its settings do not explain it: other code may have written the weight, or its gradient"
CHANGED = "changed by something other than the optimizer since they were read last"
WRITTEN = "written by other code than the optimizer, before the update"
BY_PROGRAM = "written by the program: no optimizer of torch has updated weights since they were read"
UNUSED = "a forward or other code wrote it since it was read last, and no module has used it yet"
VERSION = attrgetter("_version")
Named = tuple[str, Tensor]
State = tuple[int, str]  # the id of a weight, and what of it the optimizer keeps
Label = TypeVar("Label")
SHARED = 0  # in place of a weight's id: a state of all weights
MOST_OF_ONE = 10_000  # tensors that are kept of one weight


_ALL: WeakSet[Weights] = WeakSet()  # of all guards


class Weights:
    """The weights of one model, their names, and the state that optimizers hold for them."""

    def __init__(self, state: StepState, optimizers: list[Any]) -> None:
        self._state, self._model, self._count = state, state.model, state.count
        self._headroom = state.headroom
        self.optimizers = optimizers  # those given to the guard
        self._references: dict[int, ref[Tensor]] = {}  # weights that have names, by id
        self.names: dict[int, str] = {}
        self.owners: dict[int, list[str]] = {}
        self._modules: Sequence[tuple[str, nn.Module]] = ()
        self.updates = self.reads = 0  # so far, and after how many of these weights were read
        self._counted_in = -1  # the step of the last of these
        self.since_read = 0  # updates
        self._updated_by: dict[int, Any] = {}  # the optimizers of these, by id
        self._beside: dict[int, ref[Tensor]] = {}  # what they update outside the model
        self._elsewhere: dict[int, ref[Tensor]] = {}  # of optimizers that have nothing of the model
        self._foreign_optimizers: dict[int, ref[Any]] = {}  # these, by id
        self._updated_at, self._updated_step = 0, 0  # when the last update ended, and in which step
        self.unread_state: set[str] = set()  # what of it was not looked into
        self._bad: set[str] = set()
        self._infinite_buffers: set[str] = set()  # from the start on: sentinels
        self.versions_after: dict[int, int] = {}  # at the end of the last update
        self._written_before_update: dict[int, int] = {}  # weight -> step in which other code wrote it
        self._versions = -1  # of all weights together, for torch before 2.0
        _ALL.add(self)

    def learn_names(self) -> None:
        """Of all weights that the model has now; one that is shared has several owners."""
        self._modules = [*self._model.named_modules()]
        self._forget_the_dead()
        names, owners = dict[int, str](), dict[int, list[str]]()
        for name, module in self._modules:
            for own_name, parameter in module.named_parameters(recurse=False):
                names.setdefault(id(parameter), f"{name}.{own_name}".lstrip("."))
                owners.setdefault(id(parameter), []).append(name)
                self._references.setdefault(id(parameter), ref(parameter))
        self.names.update(names), self.owners.update(owners)

    def _forget_the_dead(self) -> None:
        """Weights that were replaced and are gone: another may have their id."""
        for key in [key for key, reference in self._references.items() if reference() is None]:
            for table in (self._references, self.names, self.owners, self.versions_after):
                table.pop(key, None)

    def begin(self, bad: Sequence[dict[str, Any]], sentinels: Iterable[str]) -> None:
        """The guard begins; these weights are bad already, and these buffers infinite."""
        self.versions_after.update({id(weight): version(weight) for weight in self._model.parameters()})
        self._versions = sum(self.versions_after.values())
        self._infinite_buffers = set(sentinels)
        for weight in bad:
            self.was_bad(weight["name"], row_of(weight), from_start=True)

    def is_one_of(self, parameter: Tensor) -> bool:
        return id(parameter) in self.names

    def strangers(self) -> int:
        """How many tensors of its optimizers are of no guarded model, as of a module kept in a list."""
        self._note_strangers(self.optimizers)
        references = dict(self._beside)
        if self._state.loss_in >= 0 and self._state.counted_by not in ("optimizer", "weights"):
            references |= self._elsewhere  # the model's gradients went on to these, and nothing else updates
        parameters = [reference() for reference in references.values()]
        return sum(one is None or not any(weights._has(one) for weights in _ALL) for one in parameters)

    def _has(self, parameter: Tensor) -> bool:
        """`is_one_of`, for a guard that may be over: ids of its weights may be others' by now."""
        reference = self._references.get(id(parameter))
        return reference is not None and reference() is parameter

    def _note_strangers(self, optimizers: Iterable[Any]) -> None:
        """An optimizer may be gone when the verdict is asked for."""
        parameters = [parameter for optimizer in optimizers for parameter in parameters_of(optimizer)]
        self._beside |= {id(one): ref(one) for one in parameters if not self.is_one_of(one)}

    def met_another(self, optimizer: Any, parameters: Iterable[Tensor]) -> None:
        """An optimizer updates that was not given and has nothing of the model."""
        reference = self._foreign_optimizers.get(id(optimizer))
        if reference is None or reference() is not optimizer:
            self._foreign_optimizers[id(optimizer)] = ref(optimizer)
            self._elsewhere |= {id(one): ref(one) for one in parameters}

    # Around an update

    def enter(self, parameters: list[Tensor]) -> None:
        """Notice what other code has written since the last update."""
        versions_now, versions_after = versions_of(parameters), self.versions_after
        if versions_now == [*map(versions_after.get, map(id, parameters))]:
            return
        for parameter, versions in zip(parameters, versions_now, strict=True):
            if versions_after.get(id(parameter), versions) != versions:
                self._written_before_update.setdefault(id(parameter), self._state.step)

    def leave(self, optimizer: Any, parameters: list[Tensor]) -> None:
        """Read what it made if that is due, and remember what it left."""
        read_already = self._state.step == self._counted_in and not self.since_read
        self.updated_by(optimizer)
        if read_already or self.updates <= READ_FIRST or (self.updates - 1) % READ_EVERY == 0:
            self._state.safely(self.look)
        self._note_versions(parameters)

    @hidden
    def _note_versions(self, parameters: list[Tensor]) -> None:
        versions = versions_of(parameters)
        self.versions_after.update(zip(map(id, parameters), versions, strict=True))

    def updated_by(self, *optimizers: Any) -> None:
        step = self._updated_step = self._state.step
        if step != self._counted_in:  # several optimizers may update in one step
            self._counted_in = step
            self.updates += 1
            self.since_read += 1
        elif not self.since_read:  # read after another optimizer of this step: once more after this one
            self.since_read, self.reads = 1, self.reads - 1
        for optimizer in optimizers:
            self._updated_by[id(optimizer)] = optimizer
        self._updated_at = self._state.now()

    def changed_without_hooks(self) -> bool:
        """Whether weights were written since this was asked last."""
        versions = sum(map(version, self._model.parameters()))
        versions_before, self._versions = self._versions, versions
        return 0 <= versions_before != versions

    # Reading

    @property
    def unread(self) -> int:
        """Updates after which weights were not read at once."""
        return self.updates - self.reads

    def read_what_was_updated(self, moment: float = -1) -> None:
        """The verdict is asked for, or something is bad at the moment `before`: were weights so already?

        Then buffers are not judged: the forward that was bad may have written them.
        """
        if self.since_read:
            self.look(late=self._state.now() if moment < 0 else moment - 0.25, buffers=moment < 0)

    def look(self, *, late: float = -1, buffers: bool = True) -> None:
        """State and weights after the updates since the last reading; at the moment `late` if not at once."""
        if not self.since_read:
            self._updated_at, self._updated_step = self._state.now(), self._state.step
        self._read(late, buffers)
        self.reads += self.since_read > 0
        self.since_read = 0
        self._updated_by.clear()
        self._written_before_update.clear()

    def _read(self, late: float, buffers: bool) -> None:
        self._note_strangers(self._updated_by.values())
        states = [
            state_tensor
            for by in self._updated_by.values()
            for state_tensor in state_tensors(by, self.unread_state)
        ]
        if not new_module.exists:  # else torch tells when one comes
            self._modules = [*self._model.named_modules()]
        weights = named_weights(self._modules)
        states, weights = parts_of(states), parts_of(weights)
        rows = quiet(self._count, [one for _, one in (*states, *weights)])
        if (rows[:, :3] > 0).any() and self.name_anew():
            self._read(late, buffers)
            return
        self._state.looked_at["opt_state"] += len(states)
        self._state.looked_at["weights_after"] += len(weights)
        for stage, of, stage_rows in (
            ("opt_state", states, rows[: len(states)]),
            ("weights_after", weights, rows[len(states) :]),
        ):
            wide = [index for index, (_, tensor) in enumerate(of) if tensor.dim()]  # no counts of steps
            if wide:
                self._headroom.met(stage, [of[index][1].dtype for index in wide], stage_rows[wide, 4])
        if (rows[:, :3] > 0).any():
            self._judge_states(states, rows)
            self._judge_weights(weights, rows[len(states) :], late=late, buffers=buffers)

    def name_anew(self) -> bool:
        """Whether modules have left the model or moved in it, which torch may not tell; learn their names."""
        names_before = [(name, id(one)) for name, one in self._modules]
        moved = names_before != [(name, id(one)) for name, one in self._model.named_modules()]
        if moved:
            self.learn_names()
        return moved

    def _judge_states(self, states: Sequence[tuple[State, Tensor]], rows: np.ndarray) -> None:
        for index in _bad(rows[: len(states)]):
            name = state_name(states[index][0], self.names)
            self._event("opt_state", name, rows[index], states[index][1], reason=self._span())

    def _judge_weights(
        self, weights: Sequence[Named], rows: np.ndarray, *, late: float, buffers: bool
    ) -> None:
        bad = _bad(rows)
        is_buffer = {name for name, _ in self._model.named_buffers()} if bad else set[str]()
        is_there = is_buffer | {name for name, _ in self._model.named_parameters()} if bad else set[str]()
        for index in bad:
            (name, tensor), row = weights[index], rows[index]
            if name in self._bad or name not in is_there:
                continue
            if name in is_buffer:
                is_references = not row[:2].any() or (name in self._infinite_buffers and not row[0])
                if buffers and not is_references:
                    self._bad.add(name)
                    moment = late if late >= 0 else self._updated_at
                    self._event("weights_before", name, row, tensor, time=moment, unsure=UNUSED)
            elif late >= 0 and (self._written_since_update(name) or not self._may_be_updated(name)):
                self.was_bad(name, row, tensor, moment=late)
            else:
                self._bad.add(name)
                stage, reason, unsure = self._after_update(name)
                self._event(stage, name, row, tensor, reason=reason, unsure=unsure)

    def _event(self, stage: str, name: str, row: Row, tensor: Any, **more: Any) -> None:
        """What the last update left, at the moment it ended unless another is given."""
        more = {"time": self._updated_at, "step": self._updated_step, **more}
        self._state.event(stage, row, tensor, module=owner(name), name=name, **more)

    # Who made it

    def _after_update(self, name: str) -> tuple[str, str, str]:
        """(stage, reason, why unsure) of a weight that is bad after an update: made by that, or before it."""
        reason = self._why(name)
        if not self._may_be_updated(name):
            return "weights_before", CHANGED, ""
        if not reason and self._written_in(name) is not None:
            return "weights_before", WRITTEN, ""
        if not self.since_read:
            return "weights_before", BY_PROGRAM, ""
        return "weights_after", reason or self._span(), "" if reason else UNEXPLAINED

    def _may_be_updated(self, name: str) -> bool:
        """Whether an optimizer that has updated since weights were read has this one, as far as is known."""
        optimizers, parameter = self._updated_by.values(), self.parameter(name)
        return not optimizers or any(one is parameter for by in optimizers for one in parameters_of(by))

    def would_take_bad(self, parameters: Iterable[Tensor]) -> bool:
        """Whether an update of these weights would be by gradients that are bad."""
        return any_bad((one.grad for one in parameters if one.grad is not None), self._count)

    def _span(self) -> str:
        """If weights were not read after every update: since when this may be."""
        if self.since_read < 2:
            return ""
        return f"made in one of the last {self.since_read} updates: weights are not read after each"

    def _why(self, name: str) -> str:
        parameter = self.parameter(name)
        reasons = (why_not_finite(one, parameter) for one in (*self._updated_by.values(), *self.optimizers))
        return next((reason for reason in reasons if reason), "")

    def was_bad(
        self, name: str, row: Row, tensor: Any = None, *, moment: float = 0, from_start: bool = False
    ) -> None:
        """Bad weights that no update left so, or that were there at the start."""
        if name in self._bad:
            return
        self._bad.add(name)
        stage, reason, unsure, step = "weights_before", CHANGED, "", self._written_in(name)
        updating = self._state.updating  # with a closure, in which this is found
        if from_start:
            reason, step = "", None
        elif any(one is self.parameter(name) for one in parameters_of(updating)):
            stage, reason, step = "weights_after", why_not_finite(updating, self.parameter(name)), None
            unsure = "" if reason else UNEXPLAINED
        elif step is not None:
            reason = WRITTEN
        self._event(stage, name, row, tensor, time=moment, step=step, reason=reason, unsure=unsure)

    def _written_in(self, name: str) -> int | None:
        """The step in which other code wrote this weight before the update, if it did."""
        return self._written_before_update.get(id(self.parameter(name)))

    def _written_since_update(self, name: str) -> bool:
        """Whether a weight was written to after the last update, as far as torch counts."""
        tensor = self.parameter(name)
        if tensor is None:
            return False
        return self.versions_after.get(id(tensor), version(tensor)) != version(tensor)

    def has_hooks(self, name: str) -> bool:
        """Whether the program has put a hook on this weight's gradient."""
        return bool(getattr(self.parameter(name), "_backward_hooks", None))

    def parameter(self, name: str) -> nn.Parameter | None:
        return dict(self._model.named_parameters()).get(name)


def row_of(weight: dict[str, Any]) -> Row:
    """The counts of a weight that a watch found bad."""
    return [weight[kind] for kind in KINDS]


def _bad(rows: np.ndarray) -> list[int]:
    """Which rows of counts hold something bad."""
    rows_bad: list[int] = np.flatnonzero((rows[:, :3] > 0).any(axis=1)).tolist()
    return rows_bad


def versions_of(tensors: Sequence[Tensor]) -> list[int]:
    """`version` of each, without a look at each one's kind where all are ordinary."""
    if ORDINARY.issuperset(map(type, tensors)):
        try:
            return [*map(VERSION, tensors)]
        except RuntimeError:  # one was made in inference mode
            pass
    return [*map(version, tensors)]


def state_tensors(optimizer: Any, unread: set[str] | None = None) -> Iterator[tuple[State, Tensor]]:
    """Every state of an optimizer that is a tensor of floating or complex numbers, in containers too.

    What is not looked into is added to `unread`, by its reason.
    """
    for parameter, state in list(getattr(optimizer, "state", {}).items()):
        # LBFGS keeps what belongs to all weights with the first of them.
        of = id(parameter) if isinstance(parameter, Tensor) and not isinstance(optimizer, LBFGS) else SHARED
        states = leaves(state, "" if isinstance(parameter, Tensor) else str(parameter))
        for met, (name, tensor) in enumerate(states):
            if met >= MOST_OF_ONE or isinstance(tensor, Unseen):
                reason = tensor.reason if isinstance(tensor, Unseen) else f"more than {MOST_OF_ONE} tensors"
                if unread is not None:
                    unread.add(f"{name} in an optimizer's state not looked into: {reason}")
                if met >= MOST_OF_ONE:
                    break
            else:
                yield (of, name), tensor


def state_name(state: State, names: dict[int, str]) -> str:
    """The weight's name, and what is kept of it."""
    return f"{'all weights' if state[0] == SHARED else names.get(state[0], '?')}: {state[1]}"


def parts_of(named: Iterable[tuple[Label, Tensor]]) -> list[tuple[Label, Tensor]]:
    """The dense local parts of labelled tensors."""
    named = list(named)
    if named and all_plain([one for _, one in named]):
        return named
    return [(name, part) for name, tensor in named for part in quiet(as_counted, tensor)[0]]


def parameters_of(optimizer: Any) -> list[Tensor]:
    return [one for group in getattr(optimizer, "param_groups", ()) for one in group.get("params", ())]


def why_not_finite(optimizer: Any, parameter: Any) -> str:
    """What makes an update of finite weights by finite gradients not finite, if it shows in the settings."""
    for group in getattr(optimizer, "param_groups", ()):
        if not any(one is parameter for one in group.get("params", ())):
            continue
        lr, eps = _number(group.get("lr")), _number(group.get("eps"))
        if lr is not None and not math.isfinite(lr):
            return f"the learning rate is {lr}"
        if (decay := _number(group.get("weight_decay"))) is not None and not math.isfinite(decay):
            return f"the weight decay is {decay}"
        if eps is not None and isinstance(parameter, Tensor):
            is_float = parameter.is_floating_point()
            rounded = float(torch.tensor(eps, dtype=parameter.dtype)) if is_float else eps
            if rounded == 0:
                inside = "0" if eps == 0 else f"{eps:g}, which is 0 in {str(parameter.dtype)[6:]}"
                return f"eps is {inside}: a second moment of zero divides by zero"
    return ""


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def named_weights(modules: Iterable[tuple[str, nn.Module]]) -> list[Named]:
    """Parameters and buffers of these modules by name, each tensor once."""
    weights: dict[int, Named] = {}
    for held in ("_parameters", "_buffers"):
        for prefix, module in modules:
            for name, tensor in getattr(module, held).items():
                if tensor is not None:
                    weights.setdefault(id(tensor), (f"{prefix}.{name}" if prefix else name, tensor))
    if ORDINARY.issuperset(type(tensor) for _, tensor in weights.values()) and all(
        tensor.dtype in REAL for _, tensor in weights.values()
    ):
        return [*weights.values()]
    built = [(name, tensor) for name, tensor in weights.values() if not is_unbuilt(tensor)]
    return [(name, tensor) for name, tensor in built if tensor.is_floating_point() or tensor.is_complex()]
