"""The dispatch recorder: every call that reaches the dispatcher, with its exact overload and all its
arguments.

It sees ops after autograd and composites have been taken apart: the ops that own kernels. Tensors that share
memory have the same storage number; integer tensors have their minimum and maximum, because they may be
indices. Works from torch 1.12 (`push_torch_dispatch_mode`) to the newest.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
import torch.utils._python_dispatch
from torch import Tensor, nn

from lab.rooms.kernels.schema import Arg, RecordedOp

# The first match counts: a bool is an int too.
NUMBERS: tuple[tuple[str, Any], ...] = (
    ("bool", bool),
    ("int", int),
    ("float", float),
    ("complex", complex),
    ("str", str),
)
NAMED: tuple[tuple[str, Any], ...] = (
    ("dtype", torch.dtype),
    ("device", torch.device),
    ("layout", torch.layout),
    ("memory_format", torch.memory_format),
)
LISTS: tuple[tuple[str, Any], ...] = (("bools", bool), ("ints", int), ("floats", (int, float)))


def plain(value: Any) -> dict[str, Any]:
    """kind and value of an argument that is not a tensor; what JSON cannot hold becomes text."""
    if value is None:
        return {"kind": "none"}
    for kind, of in NUMBERS:
        if isinstance(value, of):
            return {"kind": kind, "value": number(value)}
    for kind, of in NAMED:
        if isinstance(value, of):
            return {"kind": kind, "value": short(value)}
    if isinstance(value, torch.Generator):
        return {"kind": "generator", "value": str(value.device)}
    if isinstance(value, (list, tuple)):
        return _list(value)
    return {"kind": "other", "value": str(value)[:200]}


def _list(values: Sequence[Any]) -> dict[str, Any]:
    for kind, of in LISTS:
        if all(isinstance(value, of) for value in values):
            return {"kind": kind, "value": [number(value) for value in values]}
    return {"kind": "other", "value": str(list(values))[:200]}


def number(value: Any) -> Any:
    """A number as JSON can hold it: infinities and NaN by name, complex as a pair."""
    if isinstance(value, complex):
        return [number(value.real), number(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def short(value: Any) -> str:
    return str(value).removeprefix("torch.")


_dispatch: Any = torch.utils._python_dispatch
INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}


class Recorder:
    """Writes the calls of one rank's dispatcher; `phase` and `forward` are set from outside, modules by
    `watch`.

    write takes one encoded line at a time.
    """

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        self.count = 0
        self.phase, self.forward = "", -1
        self.modules: list[str] = []
        self._write = write
        self._encode = msgspec.json.Encoder().encode
        self._storages: dict[int, int] = {}

    def add(self, func: Any, args: list[Arg], result: Any) -> None:
        """Write one call; `args` describe its arguments before it ran, because it may have changed them."""
        schema = func._schema if hasattr(func, "_schema") else None
        name, _, overload = str(func).replace(".", "::", 1).partition(".")
        op = RecordedOp(
            index=self.count,
            name=schema.name if schema else name,
            overload=schema.overload_name if schema else overload.replace("default", ""),
            args=args,
            outs=[self.describe("", one) for one in _flat(result)],
            phase=self.phase,
            forward=self.forward,
            module_path=self.modules[-1] if self.modules else "",
        )
        self._write(self._encode(op) + b"\n")
        self.count += 1

    def arguments(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Arg]:
        """The arguments in the order of the schema, defaults that were left out included."""
        schema = getattr(func, "_schema", None)
        if schema is None:
            named = [("", value) for value in args] + list(kwargs.items())
            return [self.describe(name, value) for name, value in named]
        described = []
        for index, parameter in enumerate(schema.arguments):
            if index < len(args):
                described.append(self.describe(parameter.name, args[index]))
            elif parameter.name in kwargs:
                described.append(self.describe(parameter.name, kwargs[parameter.name]))
            elif parameter.has_default_value():
                described.append(self.describe(parameter.name, parameter.default_value, src="default"))
        return described

    def describe(self, name: str, value: Any, src: str = "recorder") -> Arg:
        """One argument as plain data."""
        if isinstance(value, Tensor):
            return self._tensor(name, value, src)
        if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
            items = [self._tensor("", item, src) if isinstance(item, Tensor) else None for item in value]
            return Arg(kind="tensors", name=name, src=src, items=items)
        return Arg(name=name, src=src, **plain(value))

    def _tensor(self, name: str, value: Tensor, src: str) -> Arg:
        return Arg(
            kind="tensor",
            name=name,
            src=src,
            dtype=short(value.dtype),
            shape=list(value.shape),
            stride=list(value.stride()) if value.layout is torch.strided else None,
            offset=int(value.storage_offset()) if value.layout is torch.strided else 0,
            device=str(value.device),
            storage=self._storage(value),
            range=bounds(value),
        )

    def _storage(self, value: Any) -> int | None:
        if value.layout is not torch.strided or value.device.type == "meta":
            return None
        storage = value.untyped_storage() if hasattr(value, "untyped_storage") else value.storage()
        return self._storages.setdefault(storage.data_ptr(), len(self._storages))


class _Mode(_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Passes every call to the recorder."""

    recorder: Recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(_handles_ops, types)):
            return NotImplemented  # a DTensor decomposes its op first; the local ops arrive here next
        if not all(map(_is_real, _flat([*args, *kwargs.values()]))):
            return func(*args, **kwargs)
        described = _Mode.recorder.arguments(func, args, kwargs)
        result = func(*args, **kwargs)
        if all(map(_is_real, _flat(result))):
            _Mode.recorder.add(func, described, result)
        return result


def _handles_ops(kind: type) -> bool:
    """Whether tensors of this class handle ops themselves (DTensor, a collective's pending result)."""
    if not issubclass(kind, Tensor):
        return False  # torch 1.12 names the mode's own class too
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


def _is_real(value: Any) -> bool:
    """False for tensors without memory, which DTensor uses to infer shapes: they launch nothing."""
    return not isinstance(value, Tensor) or not (_handles_ops(type(value)) or value.device.type == "meta")


@contextlib.contextmanager
def recording(recorder: Recorder, model: nn.Module) -> Iterator[Recorder]:
    """Record every call inside the block, each with the path of the module that runs."""
    hooks = watch(recorder, model)
    _Mode.recorder = recorder
    try:
        with _pushed():
            yield recorder
    finally:
        for hook in hooks:
            hook.remove()


def _pushed() -> Any:
    """torch 1.12 must construct the mode itself; the mode's constructor raises TypeError there."""
    push = getattr(_dispatch, "push_torch_dispatch_mode", None)
    return push(_Mode) if push else _Mode()


def watch(recorder: Recorder, model: nn.Module) -> list[Any]:
    """Keep `recorder.modules` the stack of running modules."""
    hooks = []
    for path, module in model.named_modules():

        def enter(_module: nn.Module, _args: Any, path: str = path) -> None:
            recorder.modules.append(path)

        def leave(_module: nn.Module, _args: Any, _out: Any) -> None:
            recorder.modules.pop()

        hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    return hooks


def bounds(value: Tensor) -> tuple[int, int] | None:
    """Minimum and maximum of an integer tensor; None for other, empty and meta tensors."""
    if value.dtype not in INTEGERS or not value.numel() or value.device.type == "meta":
        return None
    flat = value.detach().to("cpu", torch.int64)
    return int(flat.min()), int(flat.max())


def _flat(result: Any) -> list[Any]:
    if isinstance(result, (list, tuple)):
        return [item for one in result for item in _flat(one)]
    return [result]
