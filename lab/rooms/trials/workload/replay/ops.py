"""Every operator with the bits of its inputs and outputs, and collectives to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lab.rooms.trials.workload.replay.state import tensors_in

if TYPE_CHECKING:
    from lab.rooms.trials.workload.replay.recorder import Recorder

# A wait for one of these could be for ever: its peer may not have begun.
ONE_SIDED = ("send", "recv", "isend", "irecv", "barrier", "monitored_barrier")
_sequence = torch._C._autograd._get_sequence_nr
_node = torch._C._current_autograd_node


class Ops(TorchDispatchMode):  # type: ignore[misc,no-untyped-call,unused-ignore]
    """Active inside a model's forward and inside backward."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        name = str(func)
        if recorder.busy or any(map(_handles_ops, types)):
            return func(*args, **kwargs) if recorder.busy else NotImplemented
        node = _node()
        if node is None:
            recorder.module_of[_sequence() - 1] = recorder.module()
        if _gives_no_values(func, name):
            return func(*args, **kwargs)
        given = recorder.bits_of(tensors_in([*args, *kwargs.values()]))
        out = func(*args, **kwargs)
        collective = name.startswith(("c10d.", "_c10d_functional."))
        made = tensors_in(out)
        if collective:
            made = _finished(name, out, args)
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
    if "empty" in name:
        return True
    returns = func._schema.returns if hasattr(func, "_schema") else ()
    return any(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _is_random(func: Any) -> bool:
    tag = getattr(torch.Tag, "nondeterministic_seeded", None)
    return tag is not None and tag in getattr(func, "tags", ())
