"""From what a watched forward left behind, references in a list, to distinct tensors and the leaves that hold them.

An event is (module, args, kwargs, versions) for a call, (~module, output, None, version) for its return, or, for a module
without children that takes one tensor, both in one: (module, input, version, output, version).

Reading events one by one costs a microsecond or two each, a fifth of a decode step of a 7B model. A `Template` remembers
where the tensors of an equal forward were, so that the next one is read by a few list comprehensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.roles import IN, OUT
from lab.rooms.nan.workload_count import KINDS
from lab.rooms.nan.workload_leaves import is_skipped, leaves

Event = tuple[Any, ...]
Picker = Callable[[Sequence[Any]], Any]
Label = tuple[int, int, str]  # module, side, leaf
FIRST, VERSION = itemgetter(0), attrgetter("_version")
ONE_TENSOR = (Tensor,)
NO_SHAPE = (torch.Size(), torch.float32)
CACHES = ("past_key_values", "past_key_value", "layer_past")


class Forward:
    """What is known of a forward: its calls, its leaves as labels, its counts."""

    def __init__(self, number: int = 0, phase: str = "forward", query_length: int = 0) -> None:
        self.number, self.phase, self.query_length = number, phase, query_length
        self.calls: list[list[Any]] = []  # [module, parent call, returned]
        self.stack: list[int] = []
        self.labels: list[Label] = []  # in order of time
        self.leaf_call: list[int] = []
        self.shapes: list[
            tuple[torch.Size, torch.dtype]
        ] = []  # of each row of counts, if it is kept call by call
        self.keep_shapes = True
        self.cache: Any = None
        self.is_output: np.ndarray | None = None  # for each label
        self.unseen = self.weighed = self.bytes = 0
        self._index: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._taken = 0

    def enter(self, at: int, kwargs: Mapping[str, Any]) -> int:
        self.calls.append([at, self.stack[-1] if self.stack else -1, False])
        self.stack.append(len(self.calls) - 1)
        if self.cache is None and kwargs:
            self.cache = next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)
        return self.stack[-1]

    def leave(self, at: int) -> int:
        """A call returned; calls above it on the stack were left by an exception that somebody caught."""
        while self.calls[self.stack[-1]][0] != at:
            self.stack.pop()
        self.calls[self.stack[-1]][2] = True
        return self.stack.pop()

    def pass_through(self, at: int) -> int:
        """A module without children was called and returned."""
        self.calls.append([at, self.stack[-1] if self.stack else -1, True])
        return len(self.calls) - 1

    def take(self, batch: Batch, counts: np.ndarray) -> None:
        """The batch's leaves follow those that are here; `counts` has a row a tensor of the batch."""
        if self.labels:
            self.labels, self.leaf_call = [*self.labels, *batch.labels], [*self.leaf_call, *batch.leaf_call]
        else:
            self.labels, self.leaf_call = batch.labels, batch.leaf_call
        index = np.asarray(batch.index, dtype=np.int64)
        self._index.append(np.where(index >= 0, index + self._taken, -1))
        self._counts.append(counts)
        self._taken += len(counts)
        if self.keep_shapes or counts[:, :3].any():
            self.shapes += [(tensor.shape, tensor.dtype) for tensor in batch.tensors]
        else:  # nobody will look at these one by one
            self.shapes += [NO_SHAPE] * len(batch.tensors)
        self.unseen += batch.unseen

    def index(self) -> np.ndarray:
        """For each leaf its row of `counts`, -1 if it was overwritten before it could be counted."""
        return np.concatenate(self._index) if self._index else np.zeros(0, np.int64)

    def counts(self) -> np.ndarray:
        return np.concatenate(self._counts) if self._counts else np.zeros((0, len(KINDS)))

    def outputs(self, index: np.ndarray) -> np.ndarray:
        """For each row of `counts` whether some module put that tensor out."""
        out = _are_outputs(self.labels) if self.is_output is None else self.is_output
        found = np.zeros(self._taken + 1, dtype=bool)
        found[index[out]] = True
        return found[:-1]  # -1 marked the added one

    def leaf_dtypes(self) -> list[str]:
        return [str(self.shapes[u][1]).replace("torch.", "") if u >= 0 else "" for u in self.index()]

    def leaf_numel(self, index: np.ndarray) -> np.ndarray:
        sizes: np.ndarray = np.asarray([*(shape.numel() for shape, _ in self.shapes), 0])[
            index
        ]  # -1 takes the added zero
        return sizes


class Batch:
    """Distinct tensors, and leaves that point into them."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.labels: list[Label] = []
        self.leaf_call: list[int] = []
        self.index: Sequence[int] | np.ndarray = []
        self.sources: list[tuple[Any, ...] | None] = []  # where in the events: (event, slot[, key[, key]])
        self.overwritten = self.unseen = 0
        self._seen: dict[int, int] = {}

    def add_inputs(self, at: int, event: Event, call: int, plain: Label, number: int) -> None:
        """The event's versions are those of every tensor among args, then kwargs, as `versions` took them."""
        _, args, kwargs, before = event
        taken = iter(before or ())
        for place, value in enumerate(args):
            label = plain if not place else (at, IN, f"args[{place}]")
            version = next(taken, None) if isinstance(value, Tensor) else None
            self._any(value, version, label, call, (number, 1, place))
        for name, value in kwargs.items():
            version = next(taken, None) if isinstance(value, Tensor) else None
            if not is_skipped(name):
                self._any(value, version, (at, IN, name), call, (number, 2, name))

    def add_output(
        self, at: int, value: Any, version: int | None, call: int, plain: Label, source: tuple[Any, ...]
    ) -> None:
        label = (at, OUT, "") if isinstance(value, Mapping) else plain
        self._any(value, version, label, call, source)

    def _any(self, value: Any, version: int | None, label: Label, call: int, source: tuple[Any, ...]) -> None:
        if isinstance(value, Tensor):
            self.tensor(value, version, label, call, source)
            return
        for name, tensor in leaves(value, label[2]) if value is not None else ():
            if tensor is None:
                self.unseen += 1
                continue
            self.tensor(tensor, None, (label[0], label[1], name), call, _inside(value, tensor, source))

    def tensor(
        self, tensor: Tensor, version: int | None, label: Label, call: int, source: tuple[Any, ...] | None
    ) -> None:
        u = self._seen.get(id(tensor))
        if u is None:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                return
            if version is not None and tensor._version != version:
                self.overwritten += 1
                u = -1
            else:
                u = len(self.tensors)
                self.tensors.append(tensor)
            self._seen[id(tensor)] = u
        self.labels.append(label)
        self.leaf_call.append(call)
        self.sources.append(source)
        self.index.append(u)  # type: ignore[union-attr]


@dataclass(frozen=True)
class Template:
    """Where the tensors of a forward were. `read` is None for a forward that is not its equal."""

    modules: list[int]
    forms: list[tuple[Any, ...]]  # the structure of what the other events hold
    parents: Picker  # which events those are
    passed: Picker  # events of modules without children: a tensor in, a tensor out
    others: list[tuple[Any, ...]]  # sources of all other leaves
    noted_in: list[tuple[int, int, int]]  # (place in others, event, place in its versions)
    noted_out: list[tuple[int, int, int]]  # (place in others, event, slot of its version)
    distinct: (
        Picker  # of (inputs of passed, outputs of passed, others) those that are not the same tensor again
    )
    again: Picker  # the rest, and for each of them the one that it is
    first: Picker
    index: np.ndarray  # for each leaf, in the order of time, its place among the distinct ones
    labels: list[Label]
    leaf_call: list[int]
    is_output: np.ndarray
    calls: list[list[Any]]
    cache_at: tuple[int, str] | None

    @classmethod
    def of(cls, events: list[Event], forward: Forward, batch: Batch) -> Template | None:
        """None for a forward whose tensors lie deeper than a template reaches, or were overwritten."""
        known = {*batch.sources}
        fives = [number for number, event in enumerate(events) if len(event) == 5]
        passed = [number for number in fives if {(number, 1), (number, 3)} <= known]
        place: dict[tuple[Any, ...], int] = {(number, slot): n + k * len(passed) for k, slot in enumerate((1, 3)) for n, number in enumerate(passed)}  # fmt: skip
        sources = [source for source in batch.sources if source is not None]
        if batch.overwritten or len(sources) < len(batch.sources):
            return None
        others = sorted({*sources} - {*place}, key=lambda source: (len(source), source[0], str(source)))
        place.update({source: 2 * len(passed) + n for n, source in enumerate(others)})
        order = [place[source] for source in sources]
        parents = sorted({*range(len(events))} - {*passed})
        noted_in, noted_out = _noted(events, others)
        cached = ((n, name) for n in parents if isinstance(events[n][2], dict) for name in CACHES if events[n][2].get(name) is not None)  # fmt: skip
        return cls([event[0] for event in events], [_form(events[n]) for n in parents], _picker(parents), _picker(passed), others, noted_in, noted_out,
                   *_pickers(order, batch.index), np.asarray(batch.index, dtype=np.int64), batch.labels, batch.leaf_call,
                   _are_outputs(batch.labels), forward.calls,
                   next(cached, None))  # fmt: skip

    def read(self, events: list[Event], forward: Forward) -> Batch | None:
        """The events as a batch, and what `forward` would have learnt from them one by one."""
        if [*map(FIRST, events)] != self.modules:
            return None
        if [_form(event) for event in self.parents(events)] != self.forms:
            return None
        passed = self.passed(events)
        if {*map(len, passed)} - {5}:
            return None
        _, taken, before, given, after = zip(*passed, strict=True) if passed else ((),) * 5
        flat = [*taken, *given]
        if {*map(type, flat)} - {Tensor} or [*map(VERSION, flat)] != [*before, *after]:
            return None
        others = _fetch(events, self.others)
        if {*map(type, others)} - {Tensor} or self._overwritten(others, events):
            return None
        return self._batch(flat + others, events, forward)

    def _overwritten(self, others: list[Tensor], events: list[Event]) -> bool:
        return any(
            others[at]._version != events[number][3][place] for at, number, place in self.noted_in
        ) or any(others[at]._version != events[number][slot] for at, number, slot in self.noted_out)

    def _batch(self, flat: list[Tensor], events: list[Event], forward: Forward) -> Batch | None:
        ids = [*map(id, flat)]
        if self.again(ids) != self.first(ids):
            return None
        batch = Batch()
        batch.tensors = [*self.distinct(flat)]
        batch.labels, batch.leaf_call, batch.index = self.labels, self.leaf_call, self.index
        forward.calls, forward.is_output = self.calls, self.is_output
        if self.cache_at is not None:
            forward.cache = events[self.cache_at[0]][2].get(self.cache_at[1])
        return batch


def _pickers(order: Sequence[int], index: Iterable[int]) -> tuple[Picker, Picker, Picker]:
    """(distinct, again, first) of a template; `order` and `index` say for each leaf its place in the lists and its tensor."""
    places: dict[int, list[int]] = {}
    for place, tensor in zip(order, index, strict=True):
        places.setdefault(tensor, []).append(place)
    distinct = [places[tensor][0] for tensor in sorted(places)]
    again = [(place, same[0]) for same in places.values() for place in same[1:]]
    return _picker(distinct), _picker([place for place, _ in again]), _picker([first for _, first in again])


def _picker(places: Sequence[int]) -> Picker:
    """The items at `places` as a tuple; itemgetter gives none for one or no place."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple(items[place] for place in places)


def versions(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
    """How often each tensor was written to so far: a later difference means that its content is not what passed."""
    found = [value._version for value in args if isinstance(value, Tensor)]
    if kwargs:
        found += [value._version for value in kwargs.values() if isinstance(value, Tensor)]
    return found


def output_version(output: Any) -> int | None:
    return output._version if isinstance(output, Tensor) else None


def _are_outputs(labels: list[Label]) -> np.ndarray:
    flags: np.ndarray = np.fromiter((side for _, side, _ in labels), np.int8, len(labels)) == OUT
    return flags


def _noted(
    events: list[Event], others: list[tuple[Any, ...]]
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Where the events noted the versions of these leaves; nested ones have none."""
    noted_in, noted_out = [], []
    for at, (number, slot, *path) in enumerate(others):
        event = events[number]
        if len(event) == 5:
            if not path:
                noted_out.append((at, number, slot + 1))  # the version follows its tensor
        elif event[0] < 0:
            if not path:
                noted_out.append((at, number, 3))
        elif len(path) == 1:
            names = [(1, place) for place in range(len(event[1]))] + [(2, name) for name in event[2]]
            tensors = [name for name in names if isinstance(event[name[0]][name[1]], Tensor)]
            noted_in.append((at, number, tensors.index((slot, path[0]))))
    return noted_in, noted_out


def _form(event: Event) -> tuple[Any, ...]:
    """The types of what an event holds: equal forms have their tensors in equal places."""
    if event[0] >= 0 and len(event) == 4:
        args, kwargs = event[1], event[2]
        if not kwargs:
            return (*map(type, args),)
        return (*map(type, args), *kwargs, *map(type, kwargs.values()))
    output = event[3] if len(event) == 5 else event[1]
    if type(output) is Tensor:
        return ONE_TENSOR
    if isinstance(output, (tuple, list)):
        return (type(output), *map(type, output))
    if isinstance(output, Mapping):
        return (type(output), *output, *map(type, output.values()))
    return (type(output),)


def _fetch(events: list[Event], sources: Sequence[tuple[Any, ...]]) -> list[Tensor]:
    """What lies at the sources, which are sorted by how deep they lie."""
    found = [events[at[0]][at[1]] for at in sources if len(at) == 2]
    found += [events[at[0]][at[1]][at[2]] for at in sources if len(at) == 3]
    found += [events[at[0]][at[1]][at[2]][at[3]] for at in sources if len(at) == 4]
    return found


def _inside(value: Any, tensor: Tensor, source: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Where `tensor` lies in a tuple, list or mapping, one level deep; None if deeper."""
    if isinstance(value, Mapping):
        return next(((*source, key) for key, one in value.items() if one is tensor), None)
    if isinstance(value, (tuple, list)):
        return next(((*source, at) for at, one in enumerate(value) if one is tensor), None)
    return None
