"""What a step began with: its inputs, random numbers and buffers, to begin it again."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lab.workload.again import Moment, at, moment, put
from lab.workload.recorder.bits import tensors_in

MOST_INPUT_BYTES = 4 << 30


def copied(value: Any) -> Any:
    """Copy a nested value with its tensors."""

    def copy(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, Tensor)
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if is_tensor else leaf

    return tree_map(copy, value)


def outermost(outputs: Sequence[Tensor], wanted: Sequence[int]) -> list[int]:
    """Select the outputs that no other of them was computed from: a loss, and not its logits.

    The gradient that reached the logits came through the loss; given to both, it would count twice.
    """
    nodes = {outputs[index].grad_fn: index for index in wanted if outputs[index].grad_fn is not None}
    inner: set[int] = set()
    for index in wanted:
        visited, pending = set(), [outputs[index].grad_fn]
        while pending:
            node = pending.pop()
            if node is None or node in visited:
                continue
            visited.add(node)
            if node in nodes and nodes[node] != index:
                inner.add(nodes[node])
            pending += [source for source, _ in node.next_functions]
    return [index for index in wanted if index not in inner]


def digests(state: dict[str, Any]) -> dict[str, str]:
    """A hash per generator."""
    plain = dict(state)
    plain["torch"] = state["torch"].numpy().tobytes()
    if "cuda" in state:
        plain["cuda"] = [generator.numpy().tobytes() for generator in state["cuda"]]
    return {name: hashlib.sha256(pickle.dumps(value, 4)).hexdigest()[:16] for name, value in plain.items()}


@dataclass
class Saved:
    """The first forward of a step, before it ran; `gradients` are filled in by the backward after it."""

    root: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    then: Moment
    fresh: list[bool]  # per parameter: it had no gradient
    synced: Any = None  # of DDP: whether its backward reduces
    gradients: dict[int, Tensor] = field(default_factory=dict)  # by the number of the output
    forwards: int = 0
    backwards: int = 0
    why_not: str = ""


def save(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Saved:
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in((args, kwargs)))
    fits = size <= MOST_INPUT_BYTES
    return Saved(
        root,
        copied(args) if fits else (),
        copied(kwargs) if fits else {},
        moment(root.buffers()),
        [weight.grad is None for weight in root.parameters()],
        getattr(root, "require_backward_grad_sync", None),
        why_not="" if fits else "its inputs are larger than 4 GiB",
    )


@contextlib.contextmanager
def as_it_was(saved: Saved) -> Iterator[None]:
    """The state before the step's forward; afterwards the present state, in place."""
    weights = list(saved.root.parameters())
    grads = [(w, w.grad, None if w.grad is None else w.grad.detach().clone()) for w in weights]
    synced = getattr(saved.root, "require_backward_grad_sync", None)
    try:
        for weight, fresh in zip(weights, saved.fresh, strict=True):
            # 0 + -0.0 is not -0.0: a gradient that began at zero begins there again.
            weight.grad = None if fresh or weight.grad is None else torch.zeros_like(weight.grad)
        if synced is not None:
            setattr(saved.root, "require_backward_grad_sync", saved.synced)  # noqa: B010 - for mypy, too
        with at(saved.then):
            yield
    finally:
        if synced is not None:
            setattr(saved.root, "require_backward_grad_sync", synced)  # noqa: B010
        for weight, grad, value in grads:
            weight.grad = grad
            put([(grad, value)] if grad is not None and value is not None else [])
