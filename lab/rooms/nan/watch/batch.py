"""Distinct tensors of some events, and the leaves that point into them.

What passed is counted later, so it must not have been written to meanwhile. Torch counts the writes of each
tensor: a tensor that was never written has version 0, then and now. Only tensors that had been written before
they passed need a note of how often, in `written`: (index in the list, leaf) -> version. One tensor that was
written to between two of its uses is two things; only the last of them can still be counted.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.leaves import CACHE, Unseen, is_cache_name, is_tensor, leaves
from lab.rooms.nan.watch.plain import FP8, ORDINARY, as_counted, is_odd
from lab.rooms.nan.watch.roles import IN, OUT

Label = tuple[int, int, str]  # module, side, leaf
Source = tuple[Any, ...]  # a place in the list, then keys into what is there
Written = dict[tuple[int, str], int]
Shapes = Sequence[tuple[torch.Size, torch.dtype]]


class Batch:
    """Distinct tensors, and leaves that point into them. `written` is None if all are counted at once."""

    overwritten = 0
    ever_written = 0  # distinct tensors whose version is not 0
    untracked = False  # something here was made in inference mode: torch counts no writes to it
    odd = False  # something here is no plain tensor: no template reads it
    num_bytes = -1
    fp8 = False  # something here is float8, in which a cast may have saturated
    put_out: np.ndarray | None = None
    kept_shapes: Shapes | None = None  # once the tensors are gone

    def __init__(self, written: Written | None) -> None:
        self.tensors: Sequence[Tensor] = []
        self.labels: list[Label] = []
        self.leaf_call: list[int] = []
        self.index: Sequence[int] | np.ndarray = []
        self.sources: list[Source | None] = []  # None: deeper than a template looks
        self.unseen: Tally[tuple[int, str, str]] = Tally()  # (module, leaf, why)
        self._written = written
        self._indices: dict[Any, int] = {}

    def add_inputs(self, module: int, args: Any, kwargs: Any, call: int, plain: Label, place: int) -> None:
        for number, value in enumerate(args):
            label = plain if not number else (module, IN, f"args[{number}]")
            self.add(value, label, call, (place + 1, number))
        for name, value in kwargs.items():
            if not is_cache_name(name):
                self.add(value, (module, IN, name), call, (place + 2, name))
            elif value is not None:
                self.unseen[module, name, CACHE] += 1

    def add_output(self, module: int, value: Any, call: int, plain: Label, source: Source) -> None:
        self.add(value, (module, OUT, "") if isinstance(value, Mapping) else plain, call, source)

    def add(self, value: Any, label: Label, call: int, source: Source) -> None:
        if is_tensor(value):
            self._tensor(value, label, call, source, source[0])
            return
        for name, leaf in leaves(value, label[2], label[1] == IN) if value is not None else ():
            if isinstance(leaf, Unseen):
                self.unseen[label[0], name, leaf.reason] += 1
            else:
                inside = _inside(value, leaf, source)
                self._tensor(leaf, (label[0], label[1], name), call, inside, source[0])

    def _tensor(self, tensor: Tensor, label: Label, call: int, source: Source | None, place: int) -> None:
        if is_odd(tensor):
            self._odd(tensor, label, call)
            return
        u = self._index_of(tensor, (place, label[2]))
        self._leaf(label, call, source, u)

    def _leaf(self, label: Label, call: int, source: Source | None, u: int) -> None:
        self.labels.append(label)
        self.leaf_call.append(call)
        self.sources.append(source)
        self.index.append(u)  # type: ignore[union-attr]

    def _odd(self, tensor: Tensor, label: Label, call: int) -> None:
        """A sparse, distributed, wrapped... tensor: each dense part of it is a leaf."""
        if not (tensor.is_floating_point() or tensor.is_complex()) and "float4" not in str(tensor.dtype):
            return
        self.odd = True
        parts, reason = as_counted(tensor)
        if reason:
            self.unseen[label[0], label[2], reason] += 1
        for number, part in enumerate(parts):
            self.tensors.append(part)  # type: ignore[attr-defined]
            name = label[2] if len(parts) == 1 else f"{label[2]}/{number}"
            self._leaf((label[0], label[1], name), call, None, len(self.tensors) - 1)

    def _index_of(self, tensor: Tensor, origin: tuple[int, str]) -> int:
        """The place of this tensor among the distinct ones; -1 if what passed is no longer there."""
        if tensor.is_inference():
            self.untracked = True
            if self._written is not None:
                self.overwritten += 1
                return -1
        version = 0 if self._written is None else tensor._version
        u = self._indices.get((id(tensor), version))
        if u is not None:  # it passed before with the version that it has now, so nothing was written since
            return u
        if version and self._written is not None:
            self.ever_written += 1
            if self._written.get(origin, 0) != version:
                self.overwritten += 1
                return -1
        u = self._indices[id(tensor), version] = len(self.tensors)
        self.tensors.append(tensor)  # type: ignore[attr-defined]
        self.fp8 |= tensor.dtype in FP8
        return u

    def outputs(self) -> np.ndarray:
        """For each distinct tensor whether some module put it out."""
        if self.put_out is None:
            sides = np.fromiter((side for _, side, _ in self.labels), np.int8, len(self.labels))
            flags = np.zeros(len(self.tensors) + 1, dtype=bool)
            flags[np.asarray(self.index, np.int64)[sides == OUT]] = True
            self.put_out = flags[:-1]  # -1 marked the added one
        return self.put_out

    def bytes(self) -> int:
        """What the tensors hold; a template's batches keep the figure of the first."""
        if self.num_bytes < 0:
            self.num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)
        return self.num_bytes

    def shapes(self) -> Shapes:
        return self.kept_shapes or [(tensor.shape, tensor.dtype) for tensor in self.tensors]

    def let_go(self) -> None:
        """Drop the tensors, but keep their shapes and types."""
        self.outputs()
        if self.kept_shapes is None:
            self.kept_shapes = self.shapes()
        self.tensors = []


def _inside(value: Any, tensor: Tensor, source: Source) -> Source | None:
    """Where `tensor` lies in a tuple, list or mapping, one level deep; None if deeper."""
    if isinstance(value, Mapping):
        return next(((*source, key) for key, one in value.items() if one is tensor), None)
    if isinstance(value, (tuple, list)):
        return next(((*source, index) for index, part in enumerate(value) if part is tensor), None)
    return None


def note_versions_of_call(args: Any, kwargs: Any, index: int, written: Written) -> None:
    """Note the versions of the tensors of a call, whose event begins at `index`."""
    for number, value in enumerate(args):
        note_versions(value, f"args[{number}]", index + 1, written)
    for name, value in kwargs.items():
        if not is_cache_name(name):
            note_versions(value, name, index + 2, written)


def note_versions(value: Any, leaf: str, index: int, written: Written) -> None:
    """Note how often the tensors in a value had been written, if they ever were."""
    if is_tensor(value):
        try:
            if type(value) in ORDINARY and not value._version:  # as a rule
                return
        except Exception:  # inference tensors refuse to say
            return
        if version := _version(value):
            written[index, leaf] = version
    elif value is not None:
        for inner, tensor in _safely(value, leaf):
            if isinstance(tensor, Tensor) and (version := _version(tensor)):
                written[index, inner] = version


def _safely(value: Any, leaf: str) -> Iterator[tuple[str, Tensor | Unseen]]:
    try:
        is_input = leaf != "output"
        yield from leaves(value, leaf if is_input or not isinstance(value, Mapping) else "", is_input)
    except Exception:  # an object that cannot be read here is counted as unseen when the batch is read
        return


def _version(tensor: Tensor) -> int:
    try:
        if type(tensor) in ORDINARY and not tensor._version:  # inference tensors refuse to say
            return 0
        return 0 if tensor.is_inference() or is_odd(tensor) else tensor._version
    except Exception:  # a subclass that refuses to be asked; when it is read it becomes a note
        return 0


def versions_are_missing(args: Any, kwargs: Any) -> bool:
    """Whether tensors are or were made in inference mode."""
    if torch.is_inference_mode_enabled():
        return True
    return any(is_tensor(value) and Tensor.is_inference(value) for value in (*args, *kwargs.values()))
