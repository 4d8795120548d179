"""Gradients of weights: as they accumulate, and again before the update where they have changed."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch import Tensor

from lab.rooms.nan.watch.guard.gradients import Collector
from lab.rooms.nan.watch.guard.state import StepState
from lab.rooms.nan.watch.guard.weights import Weights, version, versions_of
from lab.rooms.nan.watch.plain import is_unbuilt
from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

# A gradient, its version and its address: another one may come to lie at the same place.
Identity = tuple["ref[Tensor]", int, int]


class Unhooked(int):
    """The id of a weight whose gradient was not seen as it accumulated."""


class ParameterHooks:
    """Hooks on the weights of one model."""

    def __init__(self, state: StepState, collector: Collector, weights: Weights) -> None:
        self._state, self._collector, self._weights = state, collector, weights
        self._strategy = strategy = state.strategy
        # FSDP accumulates what has been reduced already.
        self.stage = "after_reduce" if strategy.name == "FSDP" else "param_grads"
        self._reduces_at_once = strategy.reduces_at_once
        self._handles: list[Any] = []
        self._kept_nodes: list[Any] = []
        self._hooked: dict[int, ref[Tensor]] = {}  # by id: one that is gone may leave its id to another
        self.counted: dict[int, Identity] = {}  # weight -> its gradient that was counted last
        self.latest: tuple[Tensor, Tensor] | None = None  # the last weight whose gradient came, and that
        self._stay = True  # gradients stay where they accumulated: no update inside of backward frees them

    def attach(self) -> None:
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

    @passes_on
    def forget(self) -> None:
        """A new step's first forward begins: no backward has touched the gradients that lie there."""
        self.counted.clear()
        self.latest = None

    def _hook(self, parameter: Tensor) -> None:
        register = getattr(parameter, "register_post_accumulate_grad_hook", None)
        if register is not None:
            self._handles.append(register(self._accumulated))
            return
        with torch.enable_grad():
            expanded: Any = parameter.expand_as(parameter).grad_fn
        node = expanded.next_functions[0][0]
        self._kept_nodes.append(node)
        self._handles.append(node.register_hook(lambda *_: self._accumulated(parameter)))

    @passes_on
    def _accumulated(self, parameter: Tensor) -> None:
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
            collector.add((self.stage, key, grad, own_version, -1))
            self.counted[key] = ref(grad), number, address
            if collector.weighs:
                self._weigh(parameter, grad)
            if self._reduces_at_once:
                self._flush()
        except Exception as error:  # a note, never an exception inside autograd
            self._state.failure("gradients of weights", error)

    @hidden
    def _weigh(self, parameter: Tensor, grad: Tensor) -> None:
        if self.latest is not None and self.latest[0].grad is not self.latest[1]:
            self._stay = False
        self.latest = parameter, grad
        self._collector.weigh(grad, stays=self._stay)

    @hidden
    def _flush(self) -> None:
        self._collector.flush()

    def before_update(self, parameters: list[Tensor]) -> None:
        """The gradients that the update will use, where they are no longer those that were counted."""
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
                self.attach()
        self._collector.flush()


@hidden
def _address(grad: Tensor) -> int:
    """Where its numbers lie; 0 where that cannot be told in one number."""
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
