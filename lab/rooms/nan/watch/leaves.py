"""The floating-point tensors in what a module takes or gives: in containers, dataclasses and objects too.

Nothing is left out by its name, except inputs that hold the model's key/value cache: every layer gets the
same object, so one bad layer would make the others look as if they had absorbed something. What cannot be
looked into is named.
"""

from __future__ import annotations

import cmath
import dataclasses
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from operator import is_
from types import MemberDescriptorType, SimpleNamespace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

CACHES = frozenset(
    (
        "past_key_value",
        "past_key_values",
        "layer_past",
        "kv_cache",
        "cache",
        "cache_params",
        "memory_key_values",
    )
)
CACHE = "a key/value cache"
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
ROWS = (tuple, list, set, frozenset, KeysView, ValuesView, ItemsView)
HARMLESS = (range, slice, type(...), type(NotImplemented), bytearray)  # of Python's own that hold no tensor
MOST_STAYING = 1024
# Types whose objects hold nothing that `leaves` looks into. By id: a class may have no hash.
STAYS: dict[int, type] = {
    id(kind): kind for kind in (Tensor, nn.Parameter, type(None), bool, int, float, complex, str, torch.Size)
}


class Unseen:
    """Something that was not looked into, and why."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


def is_cache_name(name: str) -> bool:
    """Whether an input of this name holds the model's keys and values."""
    return name in CACHES


def caches_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str | int, Any]]:
    """(name or place, value) of each input that is taken for a key/value cache."""
    for name, value in kwargs.items():
        if value is not None and not is_tensor(value) and (is_cache_name(name) or is_cache(value)):
            yield name, value
    for place, value in enumerate(args):
        if not is_tensor(value) and is_cache(value):
            yield place, value


def tensors_of_cache(cache: Any, depth: int = 0) -> Iterator[Tensor | None]:
    """All that lie in a cache of any layout; None for what cannot be looked into."""
    if is_tensor(cache):
        yield cache
    elif isinstance(cache, SCALARS) or callable(cache):
        return
    elif (held := _parts_of(cache)) is None or depth >= MOST_DEPTH:
        yield None
    else:
        for inner in held:
            yield from tensors_of_cache(inner, depth + 1)


def _parts_of(value: Any) -> list[Any] | None:
    """What lies in a container or an object. None: it cannot be looked into."""
    if isinstance(value, ROWS):
        return [*value]
    held = value if isinstance(value, Mapping) else _held(value)
    return None if held is None else [*held.values()]


def leaves(
    value: Any, name: str, is_input: bool = True, depth: int = 0
) -> Iterator[tuple[str, Tensor | Unseen]]:
    """(name, tensor) of every floating or complex tensor; (name, Unseen) for what cannot be looked into.

    `given`: these are inputs, among which caches are known by their names.
    """
    if is_tensor(value):
        if value.is_floating_point() or value.is_complex() or "float4" in str(value.dtype):
            yield name, value
    elif isinstance(value, (float, complex)):
        if cmath.isnan(value) or (not is_input and cmath.isinf(value)):
            yield (
                name,
                torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.complex128),
            )
    elif isinstance(value, (*SCALARS, type)) or callable(value):
        return
    elif is_cache(value):
        yield name, Unseen(CACHE)
    elif depth >= MOST_DEPTH:
        yield name, Unseen(f"deeper than {MOST_DEPTH} levels")
    else:
        yield from _inside(value, name, is_input, depth + 1)


def _inside(value: Any, name: str, is_input: bool, depth: int) -> Iterator[tuple[str, Tensor | Unseen]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if is_input and is_cache_name(str(key)):
                yield f"{name}.{key}" if name else str(key), Unseen(CACHE)
            else:
                yield from leaves(inner, f"{name}.{key}" if name else str(key), is_input, depth)
    elif isinstance(value, ROWS):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{name}[{index}]", is_input, depth)
    elif type(value).__module__ == "numpy":
        if getattr(getattr(value, "dtype", None), "kind", "") in "fc":
            yield name, Unseen("a numpy array")
    elif hasattr(value, "__next__"):
        yield name, Unseen("a generator")
    elif (held := _held(value)) is not None:
        for key, inner in held.items():
            yield from leaves(inner, f"{name}.{key}", is_input, depth)
    elif type(value).__module__ != "enum" and type(value) not in HARMLESS:
        yield name, Unseen(f"an object of class {type(value).__name__}")


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """By its type: a proxy may say that it is one, and torch would take its memory for a tensor's."""
    return issubclass(type(value), Tensor)


def _held(value: Any) -> dict[str, Any] | None:
    """What an object holds: fields, attributes and slots. None: it cannot be looked into."""
    held = getattr(value, "__dict__", None)
    if isinstance(value, Tensor):  # a proxy, whose attributes are not what it stands for
        return None
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    values = {field.name: getattr(value, field.name, None) for field in fields}
    if isinstance(held, dict):
        values.update(held)
    elif not fields:
        return None
    for kind in type(value).__mro__:
        if vars(kind).get("__slots__"):
            slots = (name for name, var in vars(kind).items() if isinstance(var, MemberDescriptorType))
            values.update({name: getattr(value, name, None) for name in slots if name not in values})
    return values


@passes_on
def as_passed(value: Any) -> Any:
    """The value as it is now: the program may later take something out of it, or put something in."""
    if id(type(value)) in STAYS or (type(value) is tuple and _all_stay(value)):
        return value
    return _as_passed(value)


@passes_on
def args_as_passed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args if _all_stay(args) else tuple(map(as_passed, args))


@passes_on
def kwargs_as_passed(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Caches, which are looked into after the forward, stay what they are."""
    for name, value in kwargs.items():
        if id(type(value)) not in STAYS and name not in CACHES:
            return dict(zip(kwargs, map(_named_as_passed, kwargs, kwargs.values()), strict=True))
    return kwargs


@passes_on
def _all_stay(values: tuple[Any, ...]) -> bool:
    for value in values:  # noqa: SIM110 - a generator is one frame more, at every call of every module
        if id(type(value)) not in STAYS:
            return False
    return True


@passes_on
def _named_as_passed(name: str, value: Any) -> Any:
    return value if name in CACHES else as_passed(value)


@hidden
def _as_passed(value: Any) -> Any:
    return _copied(value, 0)


def _copied(value: Any, depth: int) -> Any:
    try:
        return value if depth >= MOST_DEPTH or _stays(type(value)) else _copied_inside(value, depth + 1)
    except Exception:  # what cannot be read is told when it is counted
        return value


def _copied_inside(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        items = [(key, _copied(inner, depth)) for key, inner in value.items()]
        copied = dict(items)
        return copied if len(copied) == len(items) else value  # one that has several values of a key
    if isinstance(value, ROWS):
        row = [_copied(inner, depth) for inner in value]
        if isinstance(value, list):
            return row
        return value if isinstance(value, tuple) and all(map(is_, row, value)) else tuple(row)
    held = _held(value)
    if held is None:
        return value
    return SimpleNamespace(**{key: _copied(inner, depth) for key, inner in held.items()})


def _stays(kind: type) -> bool:
    if id(kind) in STAYS:
        return True
    stays = (
        issubclass(kind, (Tensor, float, complex, type, *SCALARS))
        or any("__call__" in vars(one) for one in kind.__mro__)
        or hasattr(kind, "__next__")
        or hasattr(kind, "get_seq_length")
        or "Cache" in kind.__name__
        or kind.__module__ == "numpy"
    )
    if stays and len(STAYS) < MOST_STAYING:
        STAYS[id(kind)] = kind
    return stays


def is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length") or "Cache" in type(value).__name__


def part_of_layer(cache: Any, layer: int) -> Any:
    """What any cache that transformers has had holds for this layer; None if that cannot be told.

    Layouts: layers[i], key_cache[i] with value_cache[i], or tuples.
    """
    if isinstance(cache, (tuple, list)):
        # 4.35 hands a layer its own pair, the model all of them.
        is_own = len(cache) > 0 and isinstance(cache[0], Tensor)
        return cache if is_own else cache[layer] if layer < len(cache) else None
    if hasattr(cache, "layers"):
        return cache.layers[layer] if layer < len(cache.layers) else None
    if hasattr(cache, "key_cache"):
        return (cache.key_cache[layer], cache.value_cache[layer]) if layer < len(cache.key_cache) else None
    return None


def cached_pair(part: Any) -> tuple[Tensor, Tensor] | None:
    """Keys and values in a layer's part of a cache, one per position; None if there are none."""
    pair = part[:2] if isinstance(part, (tuple, list)) else ()
    if hasattr(part, "keys") and not isinstance(part, Mapping):
        pair = part.keys, getattr(part, "values", None)
    if len(pair) < 2 or not all(isinstance(side, Tensor) and side.dim() >= 2 for side in pair):
        return None
    return pair[0], pair[1]


def positions_in(cache: Any, layer: int, pair: tuple[Tensor, Tensor]) -> int:
    """How many positions of a layer's keys are filled: a cache of a fixed size has room for more."""
    part, size = part_of_layer(cache, layer), int(pair[0].shape[-2])
    try:
        has_length = hasattr(part, "get_seq_length")
        return min(int(part.get_seq_length() if has_length else cache.get_seq_length(layer)), size)
    except Exception:  # a cache of tuples, or one that counts no positions
        return size
