"""The floating-point tensors in what a module takes or gives: in containers, dataclasses and objects too.

Nothing is left out by its name, except inputs that hold the model's key/value cache: every layer gets the
same object, so one bad layer would make the others look as if they had absorbed something. Masks and biases
among the inputs are counted, but minus infinity is legal in them (`is_mask`). What cannot be looked into is
named.
"""

from __future__ import annotations

import cmath
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

CACHES = (
    "past_key_value",
    "past_key_values",
    "layer_past",
    "kv_cache",
    "cache",
    "cache_params",
    "memory_key_values",
)
MASKS = re.compile(
    r"(?:^|_)masks?$|^(?:attn|attention|position|rel_pos|relative_position|alibi|score)_bias$|^alibi$"
)
MOST_DEPTH = 6
SCALARS = (
    bool,
    int,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    torch.Generator,
    nn.Module,
)


class Unseen:
    """Something that was not looked into, and why."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


def is_cache_name(name: str) -> bool:
    """Whether an input of this name holds the model's keys and values."""
    return name in CACHES


def is_mask(name: str) -> bool:
    """Whether an input of this exact name is a mask or an additive bias of attention scores."""
    return MASKS.search(name) is not None


def leaves(
    value: Any, name: str, given: bool = True, depth: int = 0
) -> Iterator[tuple[str, Tensor | Unseen]]:
    """(name, tensor) of every floating or complex tensor; (name, Unseen) for what cannot be looked into.

    `given`: these are inputs, among which caches are known by their names.
    """
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex() or "float4" in str(value.dtype):
            yield name, value
    elif isinstance(value, (float, complex)):
        if cmath.isnan(value) or (not given and cmath.isinf(value)):
            yield (
                name,
                torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.complex128),
            )
    elif isinstance(value, (*SCALARS, type)) or callable(value):
        return
    elif is_cache(value):
        yield name, Unseen("a key/value cache")
    elif depth >= MOST_DEPTH:
        yield name, Unseen(f"deeper than {MOST_DEPTH} levels")
    else:
        yield from _inside(value, name, given, depth + 1)


def _inside(value: Any, name: str, given: bool, depth: int) -> Iterator[tuple[str, Tensor | Unseen]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if given and is_cache_name(str(key)):
                yield f"{name}.{key}" if name else str(key), Unseen("a key/value cache")
            else:
                yield from leaves(inner, f"{name}.{key}" if name else str(key), given, depth)
    elif isinstance(value, (tuple, list, set, frozenset)):
        for at, inner in enumerate(value):
            yield from leaves(inner, f"{name}[{at}]", given, depth)
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from leaves(getattr(value, each.name, None), f"{name}.{each.name}", given, depth)
    elif type(value).__module__ == "numpy":
        if getattr(getattr(value, "dtype", None), "kind", "") in "fc":
            yield name, Unseen("a numpy array")
    elif hasattr(value, "__next__"):
        yield name, Unseen("a generator")
    elif isinstance(getattr(value, "__dict__", None), dict):
        for key, inner in list(vars(value).items()):
            yield from leaves(inner, f"{name}.{key}", given, depth)
    elif type(value).__module__ not in ("builtins", "enum"):
        yield name, Unseen(f"an object of class {type(value).__name__}")


def is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length") or "Cache" in type(value).__name__


def cached_pair(cache: Any, layer: int) -> tuple[Tensor, Tensor] | None:
    """This layer's keys and values, from any cache that transformers has had.

    Layouts: layers[i], key_cache[i] with value_cache[i], or tuples.
    """
    if cache is None:
        return None
    if isinstance(cache, (tuple, list)):
        pair: Any = cache[layer] if layer < len(cache) else None
        # 4.35 hands a layer its own pair, the model all of them.
        if isinstance(pair, Tensor):
            pair = cache
    elif hasattr(cache, "layers"):
        held = cache.layers[layer] if layer < len(cache.layers) else None
        pair = (getattr(held, "keys", None), getattr(held, "values", None))
    elif hasattr(cache, "key_cache"):
        inside = layer < len(cache.key_cache)
        pair = (cache.key_cache[layer], cache.value_cache[layer]) if inside else None
    else:
        return None
    if not pair or not all(isinstance(one, Tensor) and one.dim() >= 2 for one in pair[:2]):
        return None
    return pair[0], pair[1]
