"""`plain`: from a tensor of any kind to dense tensors that can be counted here, or the reason why not.

Never a collective: a distributed tensor gives this rank's shard. Every kind is tested by presence, because
torch 1.12 has few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

_FUNCTORCH = getattr(torch._C, "_functorch", None)
_WRAPPED = getattr(_FUNCTORCH, "is_functorch_wrapped_tensor", None)
_UNWRAP = getattr(_FUNCTORCH, "get_unwrapped", None)
_STACK = getattr(_FUNCTORCH, "peek_interpreter_stack", None)
_INCLUDED = getattr(torch._C, "_dispatch_tls_is_dispatch_key_included", None)
_TRANSFORM = getattr(getattr(torch._C, "DispatchKey", None), "FuncTorchDynamicLayerFrontMode", None)
_UNBUILT: Any = vars(torch.nn.parameter)["UninitializedTensorMixin"]
ORDINARY = frozenset((Tensor, torch.nn.Parameter))
FP4 = getattr(torch, "float4_e2m1fn_x2", None)
E8M0 = getattr(torch, "float8_e8m0fnu", None)
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
    if tensor.dtype is FP4:
        return [], ""  # e2m1 has neither NaN nor infinity
    if tensor.dtype is E8M0:
        return _scales(tensor)
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


def _scales(tensor: Tensor) -> Found:
    """e8m0 scales: 0xFF is NaN, all else is a power of two."""
    flags = tensor.detach().view(torch.uint8) == 255
    return [torch.where(flags, float("nan"), 1.0)], ""


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
    """`plain` of a tensor that may be empty or of whole numbers: nothing to count is no reason."""
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
_len_modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
_len_functions = getattr(torch._C, "_len_torch_function_stack", None)


def quiet(work: Callable[[Any], T], value: Any, *, reads_only: bool = False) -> T:
    """`work(value)` unseen by whatever the program has switched on.

    What `reads_only` calls no operator of torch's as a rule, and needs no shelter while nothing is on.
    """
    if reads_only and not (
        in_transform()
        or (_len_modes is not None and _len_modes())
        or (_len_functions is not None and _len_functions())
    ):
        return work(value)
    if _outside_transforms is not None and in_transform():
        with _outside_transforms():
            return quiet(work, value)
    with torch.no_grad():
        if _len_modes is not None and _len_modes() and _disable_current_modes is not None:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return work(value)
        if _len_functions is not None and _len_functions():
            with torch._C.DisableTorchFunction():
                return work(value)
        return work(value)
