"""The floating-point tensors in what a module takes or gives: in tuples, lists, dicts and dataclasses too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

# Keyword arguments that are no activations: -inf is legal in a mask, and every layer gets the same cache
# object.
SKIPPED = ("mask", "bias", "past_key_value", "layer_past", "cache", "kv_cache")
MOST_DEPTH = 6


def is_skipped(name: str) -> bool:
    """Whether an argument of this name is left out of the inputs."""
    return any(word in name for word in SKIPPED)


def leaves(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Tensor | None]]:
    """(name, tensor) of every floating or complex tensor; (name, None) for an object of an unknown kind.

    Integers, flags and None are passed over; so are masks and caches, which are known by their names.
    """
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            yield name, value
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        return
    elif depth >= MOST_DEPTH:
        yield name, None
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not is_skipped(str(key)):
                yield from leaves(inner, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, (tuple, list)):
        for at, inner in enumerate(value):
            yield from leaves(inner, f"{name}[{at}]", depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            if not is_skipped(each.name):
                yield from leaves(getattr(value, each.name), f"{name}.{each.name}", depth + 1)
    elif not _is_cache(value):
        yield name, None


def _is_cache(value: Any) -> bool:
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
