"""Gradients as they pass: collected and counted in groups, and those of weights as they accumulate.

They are reduced, unscaled, clipped and zeroed in place afterwards, so references kept for the end of the step
would tell the wrong thing: under DDP the same `p.grad` is NaN on all ranks a moment later. All that one
backward collected is counted together when it ends; where a reduction follows at once, each is counted at
once. On a GPU a count is launched and not waited for.

A hook runs inside the program's backward, so it only appends to a list of its thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.count import Counted, beginning, reads_only
from lab.rooms.nan.watch.guard.step import StepState
from lab.rooms.nan.watch.guard.weights import Weights, versions_of
from lab.rooms.nan.watch.leaves import all_plain, as_counted, is_odd, is_unbuilt, quiet, version
from lab.rooms.nan.watch.unseen_by_compile import hidden

LEAST_BUDGET, MOST_BUDGET = 64 << 20, 1 << 30  # bytes of gradients that are held for one count
FREE_PART = 64  # of a GPU's free memory one part in so many may be held
ASK_EVERY = 64  # counts, between two looks at a GPU's free memory
MOST_HELD = 4096
LOOK_EVERY = 16  # counts, between two looks at what a light backward holds


# A tensor that passed, as hooks note it: time, stage, key (whatever the caller knows it by), tensor, version
# then (-1: torch does not count its writes). Plain, because a hook makes one.
Passed = tuple[int, str, Any, Tensor, int]


class AskedLoss(str):
    """The node of a loss that the program asked about."""


class Taken(NamedTuple):
    """A tensor that was counted."""

    time: int
    stage: str
    key: Any
    step: int
    shape: torch.Size
    dtype: torch.dtype


@dataclass
class Group:
    """Tensors that are counted together, and the versions they had when they passed."""

    taken: list[Taken]
    counted: Counted
    late: list[int]  # which of them had been written to before the count began


class Collector:
    """Collects tensors and counts them in groups; `settled` gives the finished groups' rows."""

    def __init__(self, state: StepState) -> None:
        self._state, self._lock = state, threading.RLock()
        self._begin, self._reads_only = beginning(state.count), reads_only(state.count)
        self._now = state.now
        self._entries: list[Passed] = []  # not counted yet
        self._taken: defaultdict[int, int] = defaultdict(int)  # tensors so far, by thread
        self._groups: list[Group] = []
        self.weighs = True  # whether each tensor is weighed as it comes: not while backwards are light
        self._bytes = self._flushes = 0
        self._budget, self._asked = LEAST_BUDGET, -ASK_EVERY
        self.unread: dict[str, int] = {}  # why -> tensors
        self.waits = False  # whether tensors may have been taken whose rows were not asked for

    def add(self, stage: str, key: Any, tensor: Tensor, version: int, time: int = -1) -> None:
        """A tensor has passed in this thread, now or at that time."""
        self._entries.append((time if time >= 0 else self._now(), stage, key, tensor, version))
        self._taken[get_ident()] += 1
        self.waits = True  # after it is there: `settled` takes this back before it looks

    def take(self, stage: str, key: Any, tensor: Tensor, time: int = -1, *, stays: bool = False) -> None:
        """Remember a tensor to be counted; one that `stays` in memory without us is held for nothing."""
        try:
            version = tensor._version
        except RuntimeError:  # made in inference mode
            version = -1
        self.add(stage, key, tensor, version, time)
        if self.weighs:
            self.weigh(tensor, stays)

    @hidden
    def weigh(self, tensor: Tensor, stays: bool = False) -> None:
        """Count what is held, once it is much."""
        self._bytes += 0 if stays else tensor.numel() * tensor.element_size()
        if self._bytes > LEAST_BUDGET and self._flushes - self._asked >= ASK_EVERY:
            self._asked, self._budget = self._flushes, _budget(tensor.device)
        if self._bytes > self._budget or len(self._entries) > MOST_HELD:
            self.flush()

    def here(self) -> int:
        """How many tensors this thread has taken so far."""
        return self._taken[get_ident()]

    @hidden
    def anywhere(self) -> int:
        """How many tensors all threads have taken so far."""
        return sum(self._taken.values())

    @hidden
    def flush(self) -> None:
        """Begin the count of everything held."""
        with self._lock:
            held = self._entries[:]
            del self._entries[: len(held)]  # another thread may have appended more meanwhile
            self._bytes = 0
        tensors = [passed[3] for passed in held]
        if tensors and not all_plain(tensors):
            parts = [(passed, part) for passed in held for part in self._parts(passed[3])]
            held, tensors = [passed for passed, _ in parts], [part for _, part in parts]
        if not tensors:
            return
        try:
            counted = quiet(self._begin, tensors, reads_only=self._reads_only)
        except Exception as error:  # a count that fails is a note, never the program's problem
            self.could_not_read(f"{type(error).__name__}: {error}"[:200], len(tensors))
            return
        self._note(held, tensors, counted)

    def could_not_read(self, reason: str, times: int = 1) -> None:
        self.unread[reason] = self.unread.get(reason, 0) + times

    def _note(self, held: Sequence[Passed], tensors: Sequence[Tensor], counted: Counted) -> None:
        """A count has begun, one row per tensor; a clean one that is over leaves only its stages."""
        self._state.looked_at.update([stage for _, stage, *_ in held])
        late = [n for n, (*_, one, version) in enumerate(held) if version >= 0 and one._version != version]
        if late or not counted.known_clean():
            step = self._state.step
            taken = [
                Taken(time, stage, key, step, tensor.shape, tensor.dtype)
                for (time, stage, key, _, _), tensor in zip(held, tensors, strict=True)
            ]
            with self._lock:
                self._groups.append(Group(taken, counted, late))
        self._flushes += 1
        if self._flushes % LOOK_EVERY == 2:
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.weighs = size * LOOK_EVERY > LEAST_BUDGET or len(tensors) * LOOK_EVERY > MOST_HELD

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        if not is_odd(tensor):
            return [tensor] if tensor.numel() else []
        parts, reason = quiet(as_counted, tensor)
        if reason:
            self.could_not_read(reason)
        return parts

    def turned_out_clean(self) -> bool:
        """Whether a GPU has found nothing bad in all that was taken, after the wait for that."""
        self.flush()
        with self._lock:
            return not any(
                group.late or not group.counted.by_gpu or group.counted.bad() for group in self._groups
            )

    def settled(self) -> list[tuple[list[Taken], np.ndarray]]:
        """(what was taken, rows) of all groups so far, after the wait; a row of -1: overwritten too early."""
        self.waits = False
        self.flush()
        with self._lock:
            groups, self._groups = self._groups, []
        results = []
        for group in groups:
            rows = group.counted.rows()
            if group.late:
                rows = np.array(rows)
                rows[group.late] = -1
            results.append((group.taken, rows))
        return results


def _budget(device: torch.device) -> int:
    """How many bytes may be held: little of what is free, so that a program that fits still fits."""
    if device.type != "cuda":
        return LEAST_BUDGET
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(max(free // FREE_PART, LEAST_BUDGET), MOST_BUDGET)


# A gradient, its version and its address: another one may come to lie at the same place.
Identity = tuple["ref[Tensor]", int, int]


class Unhooked(int):
    """The id of a weight whose gradient was not seen as it accumulated."""


class ParameterHooks:
    """The gradients of one model's weights: as they accumulate, and before the update where they changed."""

    def __init__(self, state: StepState, collector: Collector, weights: Weights) -> None:
        self._state, self._collector, self._weights = state, collector, weights
        self._strategy = strategy = state.strategy
        # FSDP accumulates what has been reduced already.
        self.stage = "after_reduce" if strategy.name == "FSDP" else "param_grads"
        self._reduces_at_once = strategy.reduces_at_once
        self._handles: list[Any] = []
        self._kept_nodes: list[Any] = []
        self._hooked: dict[int, ref[Tensor]] = {}  # by id, which is reused after a tensor is freed
        self.counted: dict[int, Identity] = {}  # weight -> its gradient that was counted last
        self.latest: tuple[Tensor, Tensor] | None = None  # the last weight whose gradient came, and that
        self._stay = True  # gradients stay where they accumulated: no update inside of backward frees them

    def enter(self) -> None:
        """Hook every weight that needs gradients and has no hook yet."""
        for parameter in self._state.model.parameters():
            if parameter.requires_grad and not self._is_hooked(parameter) and not is_unbuilt(parameter):
                self._hook(parameter)
                self._hooked[id(parameter)] = ref(parameter)

    def _is_hooked(self, parameter: Tensor) -> bool:
        reference = self._hooked.get(id(parameter))
        return reference is not None and reference() is parameter

    def remove(self) -> None:
        for handle in self._handles:
            self._state.safely(handle.remove)
        self._handles.clear()
        self._kept_nodes.clear()

    def leave(self) -> None:
        """A new step's first forward begins: no backward has touched the gradients that lie there."""
        self.counted.clear()
        self.latest = None

    def _hook(self, parameter: Tensor) -> None:
        register = getattr(parameter, "register_post_accumulate_grad_hook", None)
        if register is not None:
            self._handles.append(register(self.look))
            return
        with torch.enable_grad():
            expanded: Any = parameter.expand_as(parameter).grad_fn
        node = expanded.next_functions[0][0]
        self._kept_nodes.append(node)
        self._handles.append(node.register_hook(lambda *_: self.look(parameter)))

    def look(self, parameter: Tensor) -> None:
        """A gradient has been added to a parameter's: this rank's own, before any reduction."""
        try:
            grad = parameter.grad
            if self._state.ended or grad is None:
                return
            key, collector = id(parameter), self._collector
            if type(grad) is Tensor and grad.layout is torch.strided and not grad.is_inference():
                number = own_version = grad._version
                address = grad.data_ptr()
            else:
                number, own_version, address = *_versions_of_other(grad), _address(grad)
            collector.add(self.stage, key, grad, own_version)
            self.counted[key] = ref(grad), number, address
            if collector.weighs:
                self._weigh(parameter, grad)
            if self._reduces_at_once:
                collector.flush()
        except Exception as error:  # a note, never an exception inside autograd
            self._state.failure("gradients of weights", error)

    @hidden
    def _weigh(self, parameter: Tensor, grad: Tensor) -> None:
        if self.latest is not None and self.latest[0].grad is not self.latest[1]:
            self._stay = False
        self.latest = parameter, grad
        self._collector.weigh(grad, stays=self._stay)

    def look_before_update(self, parameters: list[Tensor]) -> None:
        """The gradients that the update will use, where they have changed since they were counted."""
        self.latest = None
        used = [parameter for parameter in parameters if parameter.grad is not None]
        grads: list[Any] = [name.grad for name in used]
        identities = [*zip(map(ref, grads), versions_of(grads), map(_address, grads), strict=True)]
        if not self._strategy.reduces and identities == [*map(self.counted.get, map(id, used))]:
            return
        for parameter, grad, identity in zip(used, grads, identities, strict=True):
            counted = self.counted.get(id(parameter))
            if not self._weights.is_one_of(parameter) or (counted == identity and not self._strategy.reduces):
                continue
            stage = "after_reduce" if self._strategy.reduces else "clipped"
            self._collector.take(stage, id(parameter) if counted else Unhooked(id(parameter)), grad)
            self.counted[id(parameter)] = identity
            if not self._is_hooked(parameter):
                self.enter()
        self._collector.flush()


@hidden
def _address(grad: Tensor) -> int:
    """The address of its numbers; 0 where that is not one number."""
    try:
        return grad.data_ptr()
    except RuntimeError:  # sparse, distributed, wrapped
        return 0


@hidden
def _versions_of_other(grad: Tensor) -> tuple[int, int]:
    """Of a distributed gradient, a subclass or one made in inference mode: its part's, and its own."""
    try:
        return version(grad), grad._version
    except RuntimeError:  # made in inference mode
        return version(grad), -1
