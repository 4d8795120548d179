"""From what a module takes or gives to dense tensors that can be counted here, or the reason why not.

Nothing is left out by its name, except inputs that hold the model's key/value cache: every layer gets the
same object, so one bad layer would make the others look as if they had absorbed something. What cannot be
looked into is named. Never a collective: a distributed tensor gives this rank's shard. Kinds of tensors are
tested by presence, because torch 1.12 has few of them.
"""

from __future__ import annotations

import cmath
import dataclasses
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import partial
from operator import attrgetter, is_
from types import MemberDescriptorType, SimpleNamespace
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

_FUNCTORCH = getattr(torch._C, "_functorch", None)
_WRAPPED = getattr(_FUNCTORCH, "is_functorch_wrapped_tensor", None)
_UNWRAP = getattr(_FUNCTORCH, "get_unwrapped", None)
_STACK = getattr(_FUNCTORCH, "peek_interpreter_stack", None)
_INCLUDED = getattr(torch._C, "_dispatch_tls_is_dispatch_key_included", None)
_TRANSFORM = getattr(getattr(torch._C, "DispatchKey", None), "FuncTorchDynamicLayerFrontMode", None)
_UNBUILT: Any = vars(torch.nn.parameter)["UninitializedTensorMixin"]
ORDINARY = frozenset((Tensor, torch.nn.Parameter))
FP8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
)
COUNTED = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    *FP8,
)
REAL = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
_DTYPE, _LAYOUT, _NESTED, _META = map(attrgetter, ("dtype", "layout", "is_nested", "is_meta"))
Found = tuple[list[Tensor], str]  # dense tensors, and why something is missing ("" if nothing is)


def _by_stack() -> bool:
    return _STACK is not None and _STACK() is not None


# Whether vmap, grad or another transform of torch.func runs here. To ask for its stack would give this thread
# one, which from then on every node of every backward copies.
in_transform: Callable[[], bool] = _by_stack
if _INCLUDED is not None and _TRANSFORM is not None:
    in_transform = partial(_INCLUDED, _TRANSFORM)


def is_unbuilt(tensor: Any) -> bool:
    """Whether this is the parameter or buffer of a lazy module before its first forward."""
    return isinstance(tensor, _UNBUILT)


def is_odd(tensor: Tensor) -> bool:
    """Whether this is more than a dense tensor of its own memory."""
    return (
        type(tensor) not in ORDINARY
        or tensor.layout is not torch.strided
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.device.type == "meta"
        or tensor.dtype not in COUNTED
        or bool(getattr(tensor, "is_nested", False))
        or (_WRAPPED is not None and bool(_WRAPPED(tensor)))
    )


def all_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether none is odd and none is empty, asked of all at once; False if that is not certain."""
    return (
        ORDINARY.issuperset(map(type, tensors))
        and REAL.issuperset(map(_DTYPE, tensors))
        and all(map(Tensor.numel, tensors))
        and {*map(_LAYOUT, tensors)} == {torch.strided}
        and not any(map(Tensor.is_neg, tensors))
        and not any(map(_NESTED, tensors))
        and not (_WRAPPED is not None and any(map(_WRAPPED, tensors)))
        and not any(map(_META, tensors))
    )


def plain(tensor: Tensor, depth: int = 0) -> Found:
    """Dense tensors with all numbers of `tensor` that are here. Raises nothing."""
    try:
        return _plain(tensor, depth)
    except (
        Exception
    ) as error:  # any subclass may refuse anything: that is a note, never the program's problem
        return [], f"{type(tensor).__name__} ({tensor.dtype}) cannot be read: {type(error).__name__}"


def _plain(tensor: Tensor, depth: int) -> Found:
    if not is_odd(tensor):
        return [tensor], ""
    if depth > 4:
        return [], f"{type(tensor).__name__} inside {type(tensor).__name__}, too deep"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return [], ""
    if _WRAPPED is not None and _WRAPPED(tensor):
        return plain(_UNWRAP(tensor), depth + 1)  # type: ignore[misc]
    if getattr(tensor, "is_nested", False):
        with torch.no_grad():
            jagged = str(tensor.layout) == "torch.jagged"
            return plain(
                tensor.detach().values() if jagged else tensor.detach().to_padded_tensor(0.0), depth + 1
            )
    if type(tensor) not in ORDINARY:
        return _of_subclass(tensor, depth)
    return _of_layout(tensor, depth)


def _of_layout(tensor: Tensor, depth: int) -> Found:
    if tensor.device.type == "meta":
        return [], "a meta tensor has no numbers"
    with torch.no_grad():
        if tensor.layout is torch.sparse_coo:
            # Duplicates add up: only the sum is the tensor. `_values` alone would miss an overflow.
            values = tensor.detach() if tensor.is_coalesced() else tensor.detach().coalesce()
            return plain(values.values(), depth + 1)
        if tensor.layout is not torch.strided:
            if hasattr(tensor, "values") and "sparse" in str(tensor.layout):
                return plain(tensor.detach().values(), depth + 1)
            return [], f"a tensor of layout {tensor.layout}"
        if tensor.is_conj() or tensor.is_neg():
            return plain(tensor.detach().resolve_conj().resolve_neg(), depth + 1)
    return [], f"a tensor of type {tensor.dtype}"


def _of_subclass(tensor: Tensor, depth: int) -> Found:
    kind = type(tensor).__name__
    if kind in ("FakeTensor", "FunctionalTensor"):
        return [], f"a {kind} has no numbers"
    if kind == "AsyncCollectiveTensor":
        return plain(tensor.wait() if hasattr(tensor, "wait") else tensor.elem, depth + 1)  # type: ignore[attr-defined]
    if hasattr(tensor, "to_local") and hasattr(tensor, "placements"):
        with torch.no_grad():  # `to_local` is this rank's part; `full_tensor` would be a collective
            return plain(
                tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor.to_local(), depth + 1
            )
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if callable(flatten):
        names, _ = flatten()
        return _together([plain(getattr(tensor, name), depth + 1) for name in names if name != "_offsets"])
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return plain(tensor.detach().as_subclass(Tensor), depth + 1)


def _together(parts: Sequence[Found]) -> Found:
    tensors = [tensor for some, _ in parts for tensor in some]
    return tensors, "; ".join(sorted({reason for _, reason in parts if reason}))


def as_counted(value: Any) -> Found:
    """`plain` of a tensor that may be empty or of whole numbers: nothing to count needs no reason."""
    if is_unbuilt(value):
        return [], ""
    tensors, reason = plain(value)
    return [
        tensor for tensor in tensors if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex())
    ], reason


T = TypeVar("T")
try:
    from torch._functorch import pyfunctorch as _transforms
except ImportError:  # torch 1.12
    _transforms = None  # type: ignore[assignment]
# Away from all transforms at once; before torch 2.4 from one, and the next time from the next one.
_outside_transforms: Any = getattr(
    _transforms,
    "temporarily_clear_interpreter_stack",
    getattr(_transforms, "temporarily_pop_interpreter_stack", None),
)
try:
    from torch.utils._python_dispatch import _disable_current_modes
except ImportError:  # torch 1.12
    _disable_current_modes = None  # type: ignore[assignment]
len_modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
_len_functions = getattr(torch._C, "_len_torch_function_stack", None)


def quiet(work: Callable[[Any], T], value: Any, *, reads_only: bool = False) -> T:
    """`work(value)` unseen by whatever the program has switched on.

    What `reads_only` calls no operator of torch's as a rule, and needs no shelter while nothing is on.
    """
    if reads_only and not (
        in_transform()
        or (len_modes is not None and len_modes())
        or (_len_functions is not None and _len_functions())
    ):
        return work(value)
    if _outside_transforms is not None and in_transform():
        with _outside_transforms():
            return quiet(work, value)
    with torch.no_grad():
        if len_modes is not None and len_modes() and _disable_current_modes is not None:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return work(value)
        if _len_functions is not None and _len_functions():
            with torch._C.DisableTorchFunction():
                return work(value)
        return work(value)


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
        if value.is_floating_point() or value.is_complex():
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
    except Exception:  # what cannot be read is named when it is counted
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
