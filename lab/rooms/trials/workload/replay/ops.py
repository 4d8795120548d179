"""Every operator with the bits of its inputs and outputs, and collectives to their end."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lab.rooms.trials.workload.replay.state import tensors_in
from lab.workload.unwritten import gives_no_values, unwritten

# A wait for one of these could be for ever: its peer may not have begun.
ONE_SIDED = ("send", "recv", "isend", "irecv", "barrier", "monitored_barrier")
# Operators that write all of their first argument, whatever was in it.
OVERWRITES = {
    *(f"aten.{name}" for name in ("copy_", "fill_", "zero_")),
    *(f"c10d.{name}" for name in ("alltoall_", "alltoall_base_", "gather_", "scatter_", "reduce_scatter_")),
    *(f"c10d.{name}" for name in ("allgather_", "_allgather_base_", "allgather_into_tensor_coalesced_")),
    *(f"c10d.{name}" for name in ("_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_")),
}
COPY_IN = "fsdp.all_gather_copy_in.default"  # writes its rank's part of a buffer, and gives the whole, too
_sequence = torch._C._autograd._get_sequence_nr
_node = torch._C._current_autograd_node


class Recorder(Protocol):
    """Who is told: where the program is, and what passed there."""

    here: Any
    attempt: int
    module_of: dict[int, str]
    unwritten: dict[int, Tensor]
    left_out: Counter[str]

    def module(self) -> str: ...

    def bits_of(self, tensors: Sequence[Tensor]) -> list[Any]: ...

    @property
    def event(self) -> Callable[..., dict[str, Any]]: ...


class Ops(TorchDispatchMode):  # type: ignore[misc,no-untyped-call,unused-ignore]
    """Active inside a model's forward and inside backward."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        name = str(func)
        if recorder.here.busy or any(map(_handles_ops, types)):
            return func(*args, **kwargs) if recorder.here.busy else NotImplemented
        node = _node()
        if node is None:
            recorder.module_of[_sequence() - 1] = recorder.module()
        if _gives_no_values(func, name):
            return func(*args, **kwargs)
        given = recorder.bits_of(_read(recorder, func, name, args, kwargs)) + _plain_arguments(
            name, args, kwargs
        )
        out = func(*args, **kwargs)
        collective = name.startswith(("c10d.", "_c10d_functional."))
        made = _written(recorder, tensors_in(out), unwritten(func, args, kwargs, out))
        made = made or _out_arguments(func, kwargs)
        if collective:
            made = _finished(name, out, args)
        if name == COPY_IN:
            made = made[:1]
        if made:
            recorder.event(
                "comm" if collective else "op",
                name,
                module=_module(recorder, node),
                given=given,
                made=recorder.bits_of(made),
                node=node.name() if node is not None else "",
                shape=_shape(made[0]),
                random=_is_random(func),
            )
        return out


def _read(recorder: Recorder, func: Any, name: str, args: Any, kwargs: Any) -> list[Tensor]:
    """The inputs that an operator computes from: not those that it only writes, nor unwritten memory."""
    arguments = func._schema.arguments if hasattr(func, "_schema") else ()
    only_written = {one.name for one in arguments if one.is_out}
    values = [*args, *(value for key, value in kwargs.items() if key not in only_written)]
    if name == COPY_IN:
        values = values[:1]
    if ".".join(name.split(".")[:2]) in OVERWRITES:
        values = values[1:]
    return [one for one in tensors_in(values) if _address(one) not in recorder.unwritten]


def _plain_arguments(name: str, args: Any, kwargs: Any) -> list[str]:
    """A hash of the arguments that are no tensors: a factor from a clock is an input, too."""
    if name.startswith(("c10d.", "_c10d_functional.", "fsdp.")):  # groups and places in buffers
        return []
    text = _plain((args, sorted(kwargs.items())))
    return [hashlib.blake2b(text.encode(), digest_size=8).hexdigest()] if any(map(str.isdigit, text)) else []


def _plain(value: Any, depth: int = 0) -> str:
    if isinstance(value, (list, tuple)) and depth < 8:
        return f"({','.join(_plain(one, depth + 1) for one in value)})"
    if type(value) in (bool, int, float, complex, str):
        return repr(value)
    return type(value).__name__


def _out_arguments(func: Any, kwargs: Any) -> list[Tensor]:
    """What an operator that returns nothing has written."""
    arguments = func._schema.arguments if hasattr(func, "_schema") else ()
    return tensors_in([kwargs[one.name] for one in arguments if one.is_out and one.name in kwargs])


def _written(recorder: Recorder, made: list[Tensor], left: dict[int, str]) -> list[Tensor]:
    """The outputs that hold values; those of the numbers `left` are counted and read by no later one."""
    for at, name in left.items():
        recorder.left_out[name] += recorder.attempt == 0
        if address := _address(made[at]):
            recorder.unwritten[address] = made[at]
    return [one for at, one in enumerate(made) if at not in left]


def _address(tensor: Tensor) -> int:
    """Of its memory; 0 where it has none of its own."""
    try:
        return int(tensor.data_ptr())
    except (RuntimeError, NotImplementedError):  # sparse, or a subclass
        return 0


def _module(recorder: Recorder, node: Any) -> str:
    if node is None:
        return recorder.module()
    return recorder.module_of.get(node._sequence_nr(), recorder.module())


def _finished(name: str, out: Any, args: Any) -> list[Tensor]:
    """The outputs of a collective once it has ended; what was given is often where they are."""
    if any(f".{kind}_" in name or f".{kind}." in name for kind in ONE_SIDED):
        return []
    for one in out if isinstance(out, (tuple, list)) else [out]:
        if isinstance(one, torch.ScriptObject):
            one.wait()  # type: ignore[attr-defined]
    return tensors_in(out) or tensors_in(args[:1])


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype)[6:]}[{','.join(map(str, tensor.shape))}]"


def _handles_ops(kind: type) -> bool:
    return issubclass(kind, Tensor) and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


def _gives_no_values(func: Any, name: str) -> bool:
    """Views show values that are recorded already; what `empty` gives is not computed."""
    if gives_no_values(name):
        return True
    returns = func._schema.returns if hasattr(func, "_schema") else ()
    return any(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _is_random(func: Any) -> bool:
    tag = getattr(torch.Tag, "nondeterministic_seeded", None)
    return tag is not None and tag in getattr(func, "tags", ())
