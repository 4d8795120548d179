"""From what a module takes or gives to dense tensors that can be counted here, or the reason why not.

Nothing is left out by its name, except inputs that hold the model's key/value cache: every layer gets the
same object, so one bad layer would make the others look as if they had absorbed something. What cannot be
looked into is named. Never a collective: a distributed tensor gives this rank's shard. Kinds of tensors are
tested by presence, because torch 1.12 has few of them.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import partial
from operator import attrgetter
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from lab.rooms.nan.watch.unseen_by_compile import hidden

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


def version(tensor: Tensor) -> int:
    """How often torch has seen this tensor written; -1 where it does not count."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    if is_unbuilt(tensor):
        return -1
    return -1 if tensor.is_inference() else tensor._version


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


def as_counted(tensor: Any, depth: int = 0) -> Found:
    """Dense tensors with all floating or complex numbers of `tensor` that are here. Raises nothing."""
    if is_unbuilt(tensor):
        return [], ""
    try:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return [], ""
        if not is_odd(tensor):
            return [tensor] if tensor.numel() else [], ""
        inside = _made_of(tensor) if depth <= MOST_WRAPPED else "a tensor inside of too many"
    except Exception as error:  # any subclass may refuse anything: a note, never the program's problem
        return [], f"{type(tensor).__name__} ({tensor.dtype}) cannot be read: {type(error).__name__}"
    if isinstance(inside, str):
        return [], inside
    counted = [as_counted(part, depth + 1) for part in inside]
    reasons = sorted({reason for _, reason in counted if reason})
    return [dense for parts, _ in counted for dense in parts], "; ".join(reasons)


@torch.no_grad()  # type: ignore[no-untyped-call,untyped-decorator,unused-ignore]
def _made_of(tensor: Tensor) -> Sequence[Tensor] | str:
    """What an odd tensor is made of here; why that cannot be told, if so."""
    if _WRAPPED is not None and _WRAPPED(tensor):
        return [_UNWRAP(tensor)]  # type: ignore[misc]
    if getattr(tensor, "is_nested", False):
        jagged = str(tensor.layout) == "torch.jagged"
        return [tensor.detach().values() if jagged else tensor.detach().to_padded_tensor(0.0)]
    if type(tensor) not in ORDINARY:
        return _of_subclass(tensor)
    if tensor.device.type == "meta":
        return "a meta tensor has no numbers"
    if tensor.layout is torch.sparse_coo:
        # Duplicates add up: only the sum is the tensor. `_values` alone would miss an overflow.
        return [(tensor if tensor.is_coalesced() else tensor.detach().coalesce()).detach().values()]
    if tensor.layout is not torch.strided:
        is_sparse = hasattr(tensor, "values") and "sparse" in str(tensor.layout)
        return [tensor.detach().values()] if is_sparse else f"a tensor of layout {tensor.layout}"
    if tensor.is_conj() or tensor.is_neg():
        return [tensor.detach().resolve_conj().resolve_neg()]
    return f"a tensor of type {tensor.dtype}"


def _of_subclass(tensor: Any) -> Sequence[Tensor] | str:
    kind = type(tensor).__name__
    if kind in ("FakeTensor", "FunctionalTensor"):
        return f"a {kind} has no numbers"
    if kind == "AsyncCollectiveTensor":
        return [tensor.wait() if hasattr(tensor, "wait") else tensor.elem]
    if hasattr(tensor, "to_local") and hasattr(tensor, "placements"):
        # `to_local` is this rank's part; `full_tensor` would be a collective.
        return [tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor.to_local()]
    if callable(flatten := getattr(tensor, "__tensor_flatten__", None)):
        return [getattr(tensor, name) for name in flatten()[0] if name != "_offsets"]
    with torch._C.DisableTorchFunction():
        return [tensor.detach().as_subclass(Tensor)]


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
MOST_DEPTH, MOST_WRAPPED = 6, 4
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
ATOMS = frozenset((type(None), bool, int, str, torch.Size))  # hold nothing that `leaves` looks into
UNTRACKED = -1  # in place of a version: torch counts no writes to what was made in inference mode
ANY_VERSION = -2  # of a subclass, whose counter may be another tensor's


class Unseen:
    """Something that was not looked into, and why."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Passed:
    """What a value held when it passed: each tensor with the number of writes to it so far.

    The program may later take a tensor out of a list, or write to it in place. A tensor that was never
    written stands for itself, and so does a tuple of these.
    """

    __slots__ = ("cache", "leaves")

    def __init__(self, leaves: list[tuple[str, Tensor | Unseen, int]], cache: Any = None) -> None:
        self.leaves, self.cache = leaves, cache


def writes_to(tensor: Tensor) -> int:
    """How often torch has seen this tensor written."""
    if type(tensor) not in ORDINARY:
        return ANY_VERSION
    try:
        return tensor._version
    except RuntimeError:
        return UNTRACKED


def as_passed(value: Any, name: str, is_input: bool) -> Any:
    """The value itself while nothing can change what it holds, else a `Passed` (None: without numbers)."""
    kind = type(value)
    if kind is Tensor:
        try:
            version = value._version
        except RuntimeError:  # made in inference mode
            version = UNTRACKED
        if not version:
            return value
    elif kind in ATOMS or (kind is tuple and _all_stay(value)):
        return value
    return _passed(value, name, is_input)


def _all_stay(values: tuple[Any, ...]) -> bool:
    try:
        for value in values:
            if value._version if type(value) is Tensor else type(value) not in ATOMS:
                return False
    except RuntimeError:  # made in inference mode
        return False
    return True


@hidden
def _passed(value: Any, name: str, is_input: bool) -> Any:
    passed = list[tuple[str, Tensor | Unseen, int]]()
    try:
        if is_input and not is_tensor(value) and is_cache(value):
            return Passed([(name, Unseen(CACHE), 0)], value)
        # The names in an output begin with `output`, those in a mapping with its keys.
        begin = "" if not is_input and isinstance(value, Mapping) else name
        for leaf, held in leaves(value, begin, is_input):
            passed.append((leaf, held, 0 if isinstance(held, Unseen) else writes_to(held)))
    except Exception as error:  # an object that refuses to be read is a gap, never the program's problem
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        passed.append((name, Unseen(f"an object that cannot be read: {reason}"), 0))
    return Passed(passed) if passed else None


def arguments_as_passed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Each argument as `as_passed` gives it: in one frame for all, because each costs half a microsecond."""
    passed = [*args, *kwargs.values()]
    for index, value in enumerate(passed):
        kind = type(value)
        try:
            if not value._version if kind is Tensor else kind in ATOMS:
                continue
        except RuntimeError:  # made in inference mode
            pass
        name = [*kwargs][index - len(args)] if index >= len(args) else f"args[{index}]"
        is_held = name in CACHES
        passed[index] = Passed([(name, Unseen(CACHE), 0)], value) if is_held else as_passed(value, name, True)
    return passed


def leaves(
    value: Any, name: str, is_input: bool = True, depth: int = 0, *, skips_caches: bool = True
) -> Iterator[tuple[str, Tensor | Unseen]]:
    """(name, tensor) of every floating or complex tensor; (name, Unseen) for what cannot be looked into.

    is_input: among inputs caches are known by their names, and a function is an option.
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
    elif isinstance(value, (*SCALARS, type)) or (is_input and callable(value)):
        return
    elif callable(value):
        yield name, Unseen("a function")  # a closure may hold anything
    elif skips_caches and is_cache(value):
        yield name, Unseen(CACHE)
    elif depth >= MOST_DEPTH:
        yield name, Unseen(f"deeper than {MOST_DEPTH} levels")
    elif isinstance(inside := _inside(value, name), Unseen):
        yield name, inside
    else:
        for inner_name, key, inner in inside:
            if skips_caches and is_input and key in CACHES:
                yield inner_name, Unseen(CACHE)
            else:
                yield from leaves(inner, inner_name, is_input, depth + 1, skips_caches=skips_caches)


def _inside(value: Any, name: str) -> list[tuple[str, str, Any]] | Unseen:
    """(name, key, value) of all that lies in a container or an object; why not, if it cannot be told."""
    if isinstance(value, Mapping):
        return [(f"{name}.{key}" if name else str(key), str(key), inner) for key, inner in value.items()]
    if isinstance(value, ROWS):
        return [(f"{name}[{index}]", "", inner) for index, inner in enumerate(value)]
    if type(value).__module__ == "numpy":
        is_float = getattr(getattr(value, "dtype", None), "kind", "") in "fcO"
        return Unseen("a numpy array") if is_float else []
    if hasattr(value, "__next__"):
        return Unseen("a generator")
    if (held := _held(value)) is not None:
        return [(f"{name}.{key}", "", inner) for key, inner in held.items()]
    if type(value).__module__ == "enum" or type(value) in HARMLESS:
        return []
    return Unseen(f"an object of class {type(value).__name__}")


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """By its type: a proxy may say that it is one, and torch would take its memory for a tensor's."""
    return issubclass(type(value), Tensor)


def _held(value: Any) -> dict[str, Any] | None:
    """The attributes of an object. None: it cannot be looked into, or not into all of it."""
    if isinstance(value, Tensor):  # a proxy, whose attributes are not what it stands for
        return None
    held = getattr(value, "__dict__", None)
    has_slots = any(vars(kind).get("__slots__") for kind in type(value).__mro__)
    return held if isinstance(held, dict) and not has_slots else None


def is_cache(value: Any) -> bool:
    """By what every cache of transformers has, or its name: no layer of it is the fault of this input."""
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
