"""How often tensors had been written when they passed: torch counts that, except for inference tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lab.rooms.nan.watch.batch import Written
from lab.rooms.nan.watch.leaves import Unseen, is_cache_name, is_tensor, leaves
from lab.rooms.nan.watch.plain import ORDINARY, is_odd


def note_call(args: Any, kwargs: Any, index: int, written: Written) -> None:
    """Of a call whose event begins at `index`."""
    for number, value in enumerate(args):
        note(value, f"args[{number}]", index + 1, written)
    for name, value in kwargs.items():
        if not is_cache_name(name):
            note(value, name, index + 2, written)


def note(value: Any, leaf: str, index: int, written: Written) -> None:
    """Of the tensors in a value, if any was ever written."""
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
        given = leaf != "output"
        yield from leaves(value, leaf if given or not isinstance(value, Mapping) else "", given)
    except Exception:  # an object that cannot be read here is counted as unseen when the batch is read
        return


def _version(tensor: Tensor) -> int:
    try:
        if type(tensor) in ORDINARY and not tensor._version:  # inference tensors refuse to say
            return 0
        return 0 if tensor.is_inference() or is_odd(tensor) else tensor._version
    except Exception:  # a subclass that refuses to be asked; when it is read it becomes a note
        return 0


def are_missing(args: Any, kwargs: Any) -> bool:
    """Whether tensors are or were made in inference mode."""
    if torch.is_inference_mode_enabled():
        return True
    return any(is_tensor(value) and Tensor.is_inference(value) for value in (*args, *kwargs.values()))
