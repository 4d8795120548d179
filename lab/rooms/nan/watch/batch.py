"""Distinct tensors of some events, and the leaves that point into them.

What passed is counted later, so it must not have been written to meanwhile. Torch counts the writes of each
tensor: a tensor that was never written has version 0, then and now. Only tensors that had been written before
they passed need a note of how often, in `written`: (index in the list, leaf) -> version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.leaves import is_skipped, leaves
from lab.rooms.nan.watch.roles import IN, OUT

Label = tuple[int, int, str]  # module, side, leaf
Source = tuple[Any, ...]  # a place in the list, then keys into what is there
Written = dict[tuple[int, str], int]


class Batch:
    """Distinct tensors, and leaves that point into them. `written` is None if all are counted at once."""

    def __init__(self, written: Written | None) -> None:
        self.tensors: Sequence[Tensor] = []
        self.labels: list[Label] = []
        self.leaf_call: list[int] = []
        self.index: Sequence[int] | np.ndarray = []
        self.sources: list[Source | None] = []  # None: deeper than a template looks
        self.overwritten = 0
        self.ever_written = 0  # distinct tensors whose version is not 0
        self._written = written
        self._known: dict[int, int] = {}
        self._shapes: list[tuple[torch.Size, torch.dtype]] | None = None
        self.put_out: np.ndarray | None = None

    def add_inputs(self, at: int, args: Any, kwargs: Any, call: int, plain: Label, place: int) -> None:
        for number, value in enumerate(args):
            label = plain if not number else (at, IN, f"args[{number}]")
            self.add(value, label, call, (place + 1, number))
        for name, value in kwargs.items():
            if not is_skipped(name):
                self.add(value, (at, IN, name), call, (place + 2, name))

    def add_output(self, at: int, value: Any, call: int, plain: Label, source: Source) -> None:
        self.add(value, (at, OUT, "") if isinstance(value, Mapping) else plain, call, source)

    def add(self, value: Any, label: Label, call: int, source: Source) -> None:
        if isinstance(value, Tensor):
            self._tensor(value, label, call, source, source[0])
            return
        for name, tensor in leaves(value, label[2]) if value is not None else ():
            if tensor is not None:
                inside = _inside(value, tensor, source)
                self._tensor(tensor, (label[0], label[1], name), call, inside, source[0])

    def _tensor(self, tensor: Tensor, label: Label, call: int, source: Source | None, place: int) -> None:
        u = self._known.get(id(tensor))
        if u is None:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                return
            u = self._known[id(tensor)] = self._new(tensor, (place, label[2]))
        self.labels.append(label)
        self.leaf_call.append(call)
        self.sources.append(source)
        self.index.append(u)  # type: ignore[union-attr]

    def _new(self, tensor: Tensor, first: tuple[int, str]) -> int:
        if self._written is not None and (version := tensor._version):
            self.ever_written += 1
            if version != self._written.get(first, 0):
                self.overwritten += 1
                return -1
        self.tensors.append(tensor)  # type: ignore[attr-defined]
        return len(self.tensors) - 1

    def outputs(self) -> np.ndarray:
        """For each distinct tensor whether some module put it out."""
        if self.put_out is None:
            sides = np.fromiter((side for _, side, _ in self.labels), np.int8, len(self.labels))
            found = np.zeros(len(self.tensors) + 1, dtype=bool)
            found[np.asarray(self.index, np.int64)[sides == OUT]] = True
            self.put_out = found[:-1]  # -1 marked the added one
        return self.put_out

    def shapes(self) -> list[tuple[torch.Size, torch.dtype]]:
        return self._shapes or [(tensor.shape, tensor.dtype) for tensor in self.tensors]

    def let_go(self) -> None:
        """Drop the tensors, but keep their shapes and types."""
        self.outputs()
        self._shapes, self.tensors = self.shapes(), []


def _inside(value: Any, tensor: Tensor, source: Source) -> Source | None:
    """Where `tensor` lies in a tuple, list or mapping, one level deep; None if deeper."""
    if isinstance(value, Mapping):
        return next(((*source, key) for key, one in value.items() if one is tensor), None)
    if isinstance(value, (tuple, list)):
        return next(((*source, at) for at, one in enumerate(value) if one is tensor), None)
    return None
