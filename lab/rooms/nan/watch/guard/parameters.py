"""Gradients of weights: as they accumulate, and again before the update where they have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lab.rooms.nan.watch.guard.gradients import Collector
from lab.rooms.nan.watch.guard.journal import Journal
from lab.rooms.nan.watch.guard.ranks import Strategy
from lab.rooms.nan.watch.guard.weights import Weights, version
from lab.rooms.nan.watch.plain import is_unbuilt


class Unhooked(int):
    """The id of a weight whose gradient was not seen as it accumulated."""


class ParameterHooks:
    """Hooks on the weights of one model."""

    def __init__(
        self,
        model: nn.Module,
        journal: Journal,
        collector: Collector,
        weights: Weights,
        strategy: Strategy,
    ) -> None:
        self._model, self._journal, self._collector = model, journal, collector
        self._weights, self._strategy = weights, strategy
        # FSDP accumulates what has been reduced already.
        self._stage = "after_reduce" if strategy.name == "FSDP" else "param_grads"
        self._handles: list[Any] = []
        self._kept_nodes: list[Any] = []
        self._hooked: set[int] = set()
        self._counted: dict[int, tuple[int, int]] = {}  # weight -> (gradient, its version) last counted

    def attach(self) -> None:
        """Hook every weight that needs gradients and has no hook yet."""
        for parameter in self._model.parameters():
            if parameter.requires_grad and id(parameter) not in self._hooked and not is_unbuilt(parameter):
                self._hook(parameter)
                self._hooked.add(id(parameter))

    def remove(self) -> None:
        for handle in self._handles:
            self._journal.safely(handle.remove)
        self._handles.clear()
        self._kept_nodes.clear()

    def forget(self) -> None:
        """A new step's first forward begins: no backward has touched the gradients that lie there."""
        self._counted.clear()

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

    def _accumulated(self, parameter: Tensor) -> None:
        """A gradient has been added to a parameter's: this rank's own, before any reduction."""
        self._journal.safely(self._take, parameter)

    def _take(self, parameter: Tensor) -> None:
        grad = parameter.grad
        if self._journal.ended or grad is None:
            return
        self._collector.take(self._stage, id(parameter), grad)
        self._counted[id(parameter)] = (id(grad), version(grad))
        if self._strategy.reduces_at_once:
            self._collector.flush()

    def before_update(self, parameters: Sequence[Tensor]) -> None:
        """The gradients that the update will use, where they are no longer those that were counted."""
        for parameter in parameters:
            grad = parameter.grad
            if grad is None or not self._weights.is_one_of(parameter):
                continue
            known, now = self._counted.get(id(parameter)), (id(grad), version(grad))
            if known == now and not self._strategy.reduces:
                continue
            stage = "after_reduce" if self._strategy.reduces else "clipped"
            self._collector.take(stage, id(parameter) if known else Unhooked(id(parameter)), grad)
            self._counted[id(parameter)] = now
            if id(parameter) not in self._hooked:
                self.attach()
        self._collector.flush()
