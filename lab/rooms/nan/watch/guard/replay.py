"""The operator that made the first bad number, by running a step again or, of a loss, by what was recorded.

The first one whose inputs are finite and whose output is not. A step is run again before the update, with the
inputs kept by reference, the random numbers of then, and the buffers put back afterwards. Weights are not
touched, gradients are not accumulated. A backward operator is found in the gradients of the model's outputs,
which were kept as they entered.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from lab.rooms.nan.guarded.read import Op
from lab.rooms.nan.watch.count import NORMED
from lab.rooms.nan.watch.forward import ASIDE, AT_ONCE
from lab.rooms.nan.watch.leaves import as_counted, in_transform, is_odd, leaves, len_modes
from lab.rooms.nan.watch.shared import backwards
from lab.rooms.nan.watch.unseen_by_compile import hidden
from lab.rooms.nan.watch.watch import NonFiniteError
from lab.workload.again import Moment, at, moment

try:
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
except ImportError:  # torch 1.12 has it in another shape
    TorchDispatchMode = None  # type: ignore[assignment,misc]

# These give memory as it is, whatever was in it before.
UNWRITTEN = ("empty", "new_empty", "resize", "set_", "alias", "detach", "_unsafe_view", "lift")
HOOK = "a hook"  # in place of an autograd node
MOST_BUFFER_BYTES = 256 << 20
_sequence = getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", None)
_current_node = getattr(torch._C, "_current_autograd_node", None)


@dataclass
class Saved:
    """What it takes to run a forward again."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: list[tuple[Tensor, int]]
    then: Moment
    grad: bool
    gradients: dict[str, Tensor] = field(default_factory=dict)  # by the name among the outputs


def save(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Saved:
    """Inputs by reference, random numbers and buffers by value."""
    inputs = [
        leaf
        for value in (*args, *kwargs.values())
        for _, leaf in leaves(value, "")
        if isinstance(leaf, Tensor)
    ]
    inputs += [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    buffers = list(module.buffers())
    if sum(buffer.numel() * buffer.element_size() for buffer in buffers) > MOST_BUFFER_BYTES:
        buffers = []
    return Saved(
        module,
        args,
        kwargs,
        [(one, one._version) for one in inputs if not one.is_inference()],
        moment(buffers),
        torch.is_grad_enabled(),
    )


def forward_op(saved: Saved, watch: Any, scope: str) -> tuple[Op | None, str]:
    """(operator, why none) of the first bad number that the forward makes inside the module `scope`."""
    if reason := _not_repeatable(saved):
        return None, reason
    attempts = [_forward_once(saved, watch, scope) for _ in range(2)]
    ops, came_back = [op for op, _ in attempts], [back for _, back in attempts]
    if not any(came_back):
        return None, f"{DID_NOT}: another random number, a race, a state that has changed or a hardware fault"
    if not all(came_back):
        return None, "run again twice, it came back once: a race, a state that changes or a hardware fault"
    if ops[0] is None or ops[1] is None:
        return (
            None,
            f"{CAME_BACK}, but no operator of torch made it: a constant, a state or code outside torch",
        )
    if ops[0].name != ops[1].name:
        return None, f"{CAME_BACK} by different operators: {ops[0].name} and {ops[1].name}"
    return replace(ops[0], times=2), ""


DID_NOT, CAME_BACK = "run again twice, it did not come back", "run again twice, it came back each time"


def stop_at(op: Op, saved: Saved, watch: Any, scope: str) -> None:
    """Run a step again up to this operator, and stand there.

    Calls `sys.breakpointhook` if the program has its own or a person is there, and raises NonFiniteError: a
    debugger that looks at the exception stands at the operator, too.
    """
    if op.node:
        backward_op(saved, watch, stop=op)
    else:
        _forward_once(saved, watch, scope, stop=op)


def _stand_here(op: Op) -> None:
    if sys.breakpointhook is not sys.__breakpointhook__ or (sys.stdin is not None and sys.stdin.isatty()):
        sys.breakpointhook()
    raise NonFiniteError(f"{op} made the first bad number", location=op.line or op.module)


def _forward_once(saved: Saved, watch: Any, scope: str, stop: Op | None = None) -> tuple[Op | None, bool]:
    """(operator, whether anything was bad)"""
    with _again(saved, watch) as path, torch.set_grad_enabled(saved.grad):
        finder = _Finder(watch, path, scope, stop=stop)
        with finder:
            outputs = saved.module(*saved.args, **saved.kwargs)
    look = _Look([leaf for _, leaf in _outputs(outputs)])
    return finder.op(), finder.came_back or look.nan or look.inf


def backward_op(saved: Saved, watch: Any, stop: Op | None = None) -> tuple[Op | None, str]:
    """(operator, why none) of the first bad number that backward makes from the gradients it was given."""
    if reason := _not_repeatable(saved):
        return None, reason
    if not saved.gradients or not saved.grad:
        return None, "no gradient entered this forward's outputs"
    with _again(saved, watch) as path, torch.enable_grad():
        forward = _Finder(watch, path, "")
        with forward, torch.autograd.set_detect_anomaly(True, check_nan=False):
            outputs = saved.module(*saved.args, **saved.kwargs)
        modules = {
            name: leaf for name, leaf in _outputs(outputs) if name in saved.gradients and leaf.requires_grad
        }
        if not modules:
            return None, "the outputs that took gradients were not found again"
        inputs: list[Tensor] = [
            parameter for parameter in saved.module.parameters() if parameter.requires_grad
        ]
        inputs += [one for one, _ in saved.versions if one.requires_grad and one.is_leaf]
        backward = _Finder(watch, path, "", modules=forward.modules, stop=stop)
        with backward, torch.autograd.set_detect_anomaly(True, check_nan=False):
            torch.autograd.grad(
                list(modules.values()), inputs, [saved.gradients[name] for name in modules], allow_unused=True
            )
    op, earlier = backward.op(), forward.op()
    if op is None:
        return None, "run again, backward stays finite"
    # What the same code made in forward, and swallowed before any module could show it, came first.
    return (earlier if earlier is not None and earlier.module == op.module else op), ""


def _outputs(value: Any) -> list[tuple[str, Tensor]]:
    name = "" if isinstance(value, dict) or hasattr(value, "keys") else "output"
    return [(name, leaf) for name, leaf in leaves(value, name, is_input=False) if isinstance(leaf, Tensor)]


def _not_repeatable(saved: Saved) -> str:
    if TorchDispatchMode is None or _sequence is None:
        return f"torch {torch.__version__} cannot look at operators"
    if any(one._version != version for one, version in saved.versions):
        return "the inputs were overwritten since"
    return ""


@contextlib.contextmanager
def _again(saved: Saved, watch: Any) -> Iterator[list[int]]:
    """The state of then; afterwards the state of now. Gives the stack of modules."""
    lane = watch._lanes.lane
    mode = lane.mode
    lane.mode, lane.path = ASIDE, []
    try:
        with at(saved.then), _eager():
            yield lane.path
    finally:
        lane.mode, lane.path = mode if mode != ASIDE else AT_ONCE, None


def _eager() -> Any:
    """A compiled region runs operator by operator, where torch can do that (2.6)."""
    stance = getattr(getattr(torch, "compiler", None), "set_stance", None)
    if stance is None or "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return stance("force_eager")


class _Look:
    """What is bad in some tensors and numbers."""

    def __init__(self, values: Any) -> None:
        self.tensors = [
            tensor for tensor in tensors_in(values) if tensor.is_floating_point() or tensor.is_complex()
        ]
        self.nan = self.inf = False
        self.is_minus = True  # all that is bad is minus infinity
        self.places = set[int]()  # of memory with something bad
        for tensor in self.tensors:
            for part in as_counted(tensor)[0]:
                values_of = part.detach().float() if part.element_size() == 1 else part.detach()
                if bool(torch.isfinite(values_of).all()):
                    continue
                nan = bool(torch.isnan(values_of).any())
                self.nan, self.inf = self.nan or nan, self.inf or bool(torch.isinf(values_of).any())
                plus = not values_of.is_complex() and bool((values_of == float("inf")).any())
                self.is_minus &= not nan and not plus and not values_of.is_complex()
                self.places.add(_memory_of(part))
        numbers = [number for number in numbers_in(values) if not math.isfinite(number)]
        self.bad_numbers = bool(numbers)
        self.nan |= any(map(math.isnan, numbers))
        self.inf |= any(map(math.isinf, numbers))


def _memory_of(tensor: Tensor) -> int:
    untyped = getattr(tensor, "untyped_storage", None)
    return int((untyped or tensor.storage)().data_ptr())


BAD_NUMBER = "finite, but for a number of the program's that is NaN or infinite"
BAD_TENSOR = "bad already: a constant, a cache or another state that no operator of this forward made"


if TorchDispatchMode is not None and _sequence is not None:

    class _Finder(TorchDispatchMode):  # type: ignore[misc,no-untyped-call,unused-ignore]
        """Looks at every operator, in backward too."""

        def __init__(
            self,
            watch: Any,
            path: list[int],
            scope: str,
            *,
            modules: dict[int, str] | None = None,
            stop: Op | None = None,
        ) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.modules = modules or {}  # sequence number of a node -> module of its forward
            self._names, self._path, self._scope = watch.modules.names, path, scope
            self._op_from_finite: Op | None = None  # finite in, not finite out
            self._is_minus = False  # and that is minus infinity alone, as for a mask
            self._nan: Op | None = None  # no NaN in, NaN out
            self._stop = stop  # stand at this operator
            self._brought: Op | None = None  # bad by a number or a tensor that no operator made here
            self._bad_memory = set[int]()  # where what operators made is bad
            self.came_back = False

        def op(self) -> Op | None:
            """The operator that made the first bad number, or of minus infinity a NaN."""
            if self._op_from_finite is not None and not (self._is_minus and self._nan is not None):
                return self._op_from_finite
            return self._nan or self._brought

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if _current_node is None or _current_node() is None:
                self.modules[_sequence() - 1] = self._module()  # type: ignore[misc]
            if self._op_from_finite is not None and not self._is_minus:
                return func(*args, **kwargs)
            mutable = getattr(getattr(func, "_schema", None), "is_mutable", False)
            look = _Look((args, kwargs)) if mutable else None
            out = func(*args, **kwargs)
            self._judge(func, args, kwargs, look, out)
            return out

        def _judge(self, func: Any, args: Any, kwargs: Any, inputs_look: _Look | None, out: Any) -> None:
            name = str(func)
            if is_unwritten(name):
                return
            output_look = _Look(out)
            if not (output_look.nan or output_look.inf):
                return
            module, node = self._where()
            if not (module == self._scope or not self._scope or module.startswith(f"{self._scope}.")):
                return
            self.came_back = True
            inputs_look = inputs_look or _Look((args, kwargs))
            arguments = (args, kwargs)
            if not inputs_look.nan and not inputs_look.inf:
                if self._op_from_finite is None:
                    self._op_from_finite = self._op(name, module, node, arguments, "finite")
                    self._is_minus = output_look.is_minus
            elif output_look.nan and not inputs_look.nan and self._nan is None:
                self._nan = self._op(name, module, node, arguments, "infinite, no NaN")
            elif self._brought is None and (inputs_look.bad_numbers or inputs_look.places - self._bad_memory):
                origin = BAD_NUMBER if inputs_look.bad_numbers else BAD_TENSOR
                self._brought = self._op(name, module, node, arguments, origin)
            self._bad_memory |= output_look.places
            met = self.op()
            if (
                self._stop is not None
                and met is not None
                and (met.name, met.line) == (self._stop.name, self._stop.line)
            ):
                _stand_here(met)

        def _where(self) -> tuple[str, Any]:
            node = _current_node() if _current_node is not None else None
            if node is None:
                return self._module(), None
            number = node._sequence_nr() if hasattr(node, "_sequence_nr") else -1
            return self.modules.get(number, self._module()), node

        def _module(self) -> str:
            return self._names[self._path[-1]] if self._path else ""

        def _op(self, name: str, module: str, node: Any, arguments: Any, inputs: str) -> Op:
            if node is None:
                return op_of(name, module, arguments, user_line(), inputs)
            is_own = isinstance(node, torch.autograd.function.BackwardCFunction)  # of the program's
            if not is_own and (line := user_line(around=backward_op.__code__)):  # then it is a hook's
                return op_of(name, module, arguments, line, inputs, HOOK)
            return op_of(name, module, arguments, _forward_line(node), inputs, node.name())


def op_of(name: str, module: str, arguments: Any, line: str, inputs: str, node: str = "") -> Op:
    """An operator with the shapes and types of its arguments."""
    tensors = tensors_in(arguments)
    shapes = tuple("x".join(map(str, tensor.shape)) or "scalar" for tensor in tensors)
    return Op(name, module, shapes, tuple(str(tensor.dtype)[6:] for tensor in tensors), line, node, inputs)


def _flat(value: Any) -> list[Any]:
    """What lies in an operator's arguments, one by one."""
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in _flat(inner)]
    if isinstance(value, (tuple, list)):
        return [leaf for inner in value for leaf in _flat(inner)]
    return [value]


def tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in _flat(value) if isinstance(leaf, Tensor)]


def is_unwritten(name: str) -> bool:
    """Whether an operator of this name gives memory as it is, or another view of it."""
    return name.split(".")[1 if name.startswith("aten.") else 0].startswith(UNWRITTEN)


def numbers_in(value: Any) -> list[float]:
    return [leaf for leaf in _flat(value) if isinstance(leaf, float)]


_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_WATCH = os.path.dirname(os.path.abspath(leaves.__code__.co_filename)) + os.sep


def _is_ours(file: str) -> bool:
    """Whether a line of code is torch's or the guard's, and not the program's."""
    return file.startswith((_TORCH, _WATCH, "<"))


def user_line(around: CodeType | None = None) -> str:
    """The program's own line that led here; "" if there is none inside of the function of that code."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not around:
        if not _is_ours(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _forward_line(node: Any) -> str:
    """The forward line that a backward node belongs to, as anomaly mode noted it."""
    for text in reversed(node.metadata.get("traceback_", [])):
        for line in reversed(str(text).splitlines()):
            if line.strip().startswith("File "):
                file, _, tail = line.strip()[6:].partition('", line ')
                if not _is_ours(file):
                    return f"{file}:{tail.split(',')[0]}"
    return ""


# A loss's own operators: what the program did between the model's output and backward. They pass through a
# dispatch mode. Of each only names, sizes and copies of small tensors are kept; of a large tensor its largest
# magnitude, on its own device.

MOST_CALLS = 1000  # of one step
SMALL = 1 << 16  # numbers of a tensor that is copied
BAD_ALREADY = "bad already: the batch or the model's output"
Key = tuple[int, torch.Size, torch.dtype]  # where its numbers lie, and which


class Call(NamedTuple):
    op: Op
    inputs: tuple[int, ...]  # places in the list of what was kept
    outputs: tuple[int, ...]
    has_infinite_number: bool


class Between:
    """One thread's operators since the last forward that came after a backward."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._copies: list[Tensor] = []  # copies, or largest magnitudes
        self._newest: dict[Key, int] = {}
        self._mode: Any = None  # while it lies on torch's stack
        self._count = -1  # backwards so far, when recording began
        self._losses: list[Tensor] = []

    def begin(self) -> None:
        """A forward has ended: record from here on, where nothing else is on torch's stack of modes."""
        if self._mode is not None or TorchDispatchMode is None or len_modes is None or len_modes():
            return
        if in_transform() or _has_compiled():
            return
        if self._count != backwards.count:
            self.forget()
            self._count = backwards.count
        self._mode = _Recording(self)
        self._mode.__enter__()

    @hidden
    def end(self) -> None:
        """A backward, an update or a forward begins."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        if len_modes is not None and len_modes() and _top_mode() is mode:
            mode.__exit__(None, None, None)
        else:  # the program has put one on top: ours only passes on from now
            mode.owner = None

    def forget(self) -> None:
        self._calls.clear()
        self._copies.clear()
        self._newest.clear()
        self._losses.clear()

    def is_loss(self, tensors: Sequence[Any]) -> None:
        """Backward begins at these, or the program asked about them."""
        if self._calls:
            self._losses += [
                tensor.detach() for tensor in tensors if isinstance(tensor, Tensor) and not is_odd(tensor)
            ]

    def note(self, func: Any, arguments: Any, output: Any) -> None:
        name = str(func)
        tensors = [tensor for tensor in tensors_in(arguments) if _counts(tensor)]
        outputs = [tensor for tensor in tensors_in(output) if _counts(tensor)]
        if len(self._calls) >= MOST_CALLS or not outputs or is_unwritten(name):
            return
        inputs = tuple(self._place(tensor) for tensor in tensors)
        places = tuple(self._keep(output) for output in outputs)
        op = op_of(name, "", tensors, user_line(), "")
        self._calls.append(Call(op, inputs, places, not all(map(math.isfinite, numbers_in(arguments)))))

    def _place(self, tensor: Tensor) -> int:
        place = self._newest.get(_key(tensor))
        return self._keep(tensor) if place is None else place

    def _keep(self, tensor: Tensor) -> int:
        if tensor.numel() > SMALL and tensor.dtype in NORMED:
            self._copies.append(torch.linalg.vector_norm(tensor.detach(), float("inf")))
        elif tensor.numel() > SMALL:
            self._copies.append(tensor.new_zeros(1))
        else:
            self._copies.append(tensor.detach().clone())
        place = self._newest[_key(tensor)] = len(self._copies) - 1
        return place

    def first_bad(self) -> tuple[Op | None, str]:
        """(the operator that made the first bad number of the losses, why none is named)"""
        if TorchDispatchMode is None or len_modes is None:
            return None, f"torch {torch.__version__} cannot look at operators"
        if not self._calls:
            reason = "a mode of torch's was on, or torch.compile is used" if backwards.count else "unseen"
            return None, f"the operators between the model and backward were not recorded ({reason})"
        wanted = {self._newest.get(_key(loss), -1) for loss in self._losses}
        ancestors = list[Call]()
        for call in reversed(self._calls):
            if wanted.intersection(call.outputs):
                ancestors.append(call)
                wanted.update(call.inputs)
        fallback = None
        for call in reversed(ancestors):
            bad_outputs = {_bad(self._copies[place]) for place in call.outputs} - {""}
            if not bad_outputs:
                continue
            bad_inputs = {_bad(self._copies[place]) for place in call.inputs} - {""}
            if not bad_inputs and not call.has_infinite_number:
                return replace(call.op, inputs="finite"), ""
            if "nan" in bad_outputs and "nan" not in bad_inputs:
                return replace(call.op, inputs="infinite, no NaN"), ""
            number = call.has_infinite_number and not bad_inputs
            fallback = fallback or replace(call.op, inputs=BAD_NUMBER if number else BAD_ALREADY)
        return fallback, "" if fallback else "no recorded operator made it: its backward did, or other code"


def _counts(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and not is_odd(tensor) and bool(tensor.numel())


def _bad(tensor: Tensor) -> str:
    """nan, inf or nothing."""
    if bool(torch.isnan(tensor).any()):
        return "nan"
    return "inf" if bool(torch.isinf(tensor).any()) else ""


def _key(tensor: Tensor) -> Key:
    return tensor.data_ptr(), tensor.shape, tensor.dtype


def _top_mode() -> Any:
    stack_at = getattr(torch._C, "_get_dispatch_stack_at", None)
    return stack_at(len_modes() - 1) if stack_at is not None and len_modes is not None else None


def _has_compiled() -> bool:
    """Whether dynamo has compiled anything: it would not run that under a mode."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters.get("frames"))


if TorchDispatchMode is not None:

    class _Recording(TorchDispatchMode):  # type: ignore[misc,no-untyped-call,unused-ignore]
        def __init__(self, owner: Between) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.owner: Between | None = owner

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            output = func(*args, **kwargs)
            if self.owner is not None:
                try:
                    self.owner.note(func, (args, kwargs), output)
                except Exception:  # what cannot be noted is not named, and the program goes on
                    self.owner = None
            return output


class _Local(threading.local):
    def __init__(self) -> None:
        self.between = Between()


local = _Local()
