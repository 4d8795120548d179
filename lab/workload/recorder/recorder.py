"""What every recording shares: modules by a patch of `nn.Module.__call__`, ops by a dispatch mode.

Nothing is kept on the model. An op belongs to the module that runs; in a backward, to the module whose
forward made the node, by the numbers that torch gives nodes in their order.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
import torch.utils._python_dispatch
from torch import Tensor, nn

from lab.core.words import plural
from lab.workload.recorder.bits import tensors_in
from lab.workload.recorder.rows import Rows, described
from lab.workload.unwritten import gives_no_values, unwritten

LEVELS = ("op", "module", "ends")
_OF_A_WEIGHT = "torch::autograd::AccumulateGrad"
# In a schema: `Tensor(a)` is the memory of an argument, `Tensor(a!)` is written.
_VIEW, _WRITTEN = re.compile(r"\([a-z|*]+(?: -> [a-z|*]+)?\)"), re.compile(r"\([a-z|]+!")
# A wait for one of these could be for ever: its peer may not have begun.
ONE_SIDED = re.compile(r"\.(send|recv|isend|irecv|barrier|monitored_barrier)[_.]")
# Operators that write all of their first argument, whatever was in it.
OVERWRITES = {
    *(f"aten.{name}" for name in ("copy_", "fill_", "zero_")),
    *(f"c10d.{name}" for name in ("alltoall_", "alltoall_base_", "gather_", "scatter_", "reduce_scatter_")),
    *(f"c10d.{name}" for name in ("allgather_", "_allgather_base_", "allgather_into_tensor_coalesced_")),
    *(f"c10d.{name}" for name in ("_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_")),
}
COPY_IN = "fsdp.all_gather_copy_in.default"  # writes its rank's part of a buffer, and gives the whole, too
COLLECTIVES = ("c10d.", "_c10d_functional.")
_WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")
_dispatch: Any = torch.utils._python_dispatch
# The number that the next node of the graph gets in this thread; None where torch is too old to say it.
_next_node: Any = getattr(torch.autograd, "_get_sequence_nr", lambda: None)
_current_node: Any = getattr(torch._C, "_current_autograd_node", lambda: None)
is_compiling: Any = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
# What dynamo calls for each new Python frame, while compiled code runs; no function otherwise.
_frame_callback: Any = getattr(_eval_frame, "get_eval_frame_callback", lambda: None)


class Thread(threading.local):
    """Where one thread is: a program may call its model from several."""

    def __init__(self) -> None:
        self.modules: list[str] = []  # that run, by name, if they are recorded
        self.depth = 0  # of calls below an outermost one, recorded or not
        self.busy = False  # the recorder's own operators are not the program's


class Recorder:
    """Writes rows of modules and ops to `rows`, once there are any."""

    def __init__(self, level: str, *, with_values: bool) -> None:
        self.level, self.with_values = level, with_values
        self.rows: Rows | None = None
        self.thread = Thread()
        self.step, self.attempt, self.phase = 1, 0, ""  # phase "": forward or backward, as the graph says
        self.rank, self.world = ranks()
        self.names: dict[int, str] = {}  # id of a module -> its name
        self.calls = 0
        self.unwritten: Counter[str] = Counter()  # outputs that need not be written, by name
        self.unwatched: set[str] = set()  # outputs whose gradients no hook can see
        self._handles: list[Any] = []  # hooks of tensors, which may outlive the recording
        self._unwritten: dict[int, Tensor] = {}  # by address, held so that none takes their place
        self._owners: dict[int, str] = {}  # id of a weight -> its module
        self._marks: dict[int, list[tuple[int, str]]] = {}  # by thread: (first node, module that ran)
        self._pid = os.getpid()

    # Modules

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """See every call of a module while this is open."""
        original, recorder = nn.Module.__call__, self

        def call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # A forked data loader inherits the patch; its rows would mix into its parent's. When dynamo
            # has given up this frame, it would compile the recorder's own frames below it.
            is_compiled = is_compiling() or callable(_frame_callback())
            if is_compiled or recorder.thread.busy or os.getpid() != recorder._pid:
                return original(self, *args, **kwargs)
            return recorder.call(original, self, args, kwargs)

        setattr(nn.Module, "__call__", call)  # noqa: B010  for mypy, too
        try:
            yield
        finally:
            setattr(nn.Module, "__call__", original)  # noqa: B010

    def call(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """One call of a module by the program; to be narrowed by what a recording looks for."""
        raise NotImplementedError

    def module_call(
        self, original: Any, module: nn.Module, args: Any, kwargs: Any, *, gradients: bool = True
    ) -> Any:
        """A call whose outputs, and the gradients that reach them if `gradients`, are recorded."""
        thread = self.thread
        name = self.names.get(id(module), f"({type(module).__name__})")
        input_slots = self.bits(tensors_in([*args, *kwargs.values()])) if self.level == "op" else []
        thread.modules.append(name)
        thread.depth += 1
        self._mark()
        try:
            result = original(module, *args, **kwargs)
        finally:
            thread.depth -= 1
            thread.modules.pop()
            self._mark()
        kind = "" if hasattr(module, "_orig_mod") else type(module).__name__
        outputs = tensors_in(result)
        for index, (tensor, slot) in enumerate(zip(outputs, self.bits(outputs), strict=True)):
            extra = {"in_ck": input_slots} if input_slots else {}
            self.row("module", kind, tensor, slot, out=index, module=name, phase=self.phase or "fwd", **extra)
            if gradients:
                self._watch_gradient(tensor, kind, index, name)
        return result

    def _watch_gradient(self, tensor: Tensor, kind: str, index: int, name: str) -> None:
        """A row of the gradient that reaches this output of a module."""

        def reached(gradient: Tensor) -> None:
            if not self.thread.busy:
                (slot,) = self.bits([gradient])
                self.row("module", kind, gradient, slot, out=index, module=name, phase="bwd")

        try:
            if tensor.requires_grad and not (tensor.is_leaf and tensor.grad_fn is None):
                self._handles.append(tensor.register_hook(reached))  # type: ignore[no-untyped-call]
        except RuntimeError:  # such as one of several views of what was changed in place
            self.unwatched.add(f"{name}:{index}")

    def unwatched_note(self) -> list[str]:
        """A sentence about gradients that were not seen, if any."""
        if not self.unwatched:
            return []
        outputs, few = plural(len(self.unwatched), "output"), ", ".join(sorted(self.unwatched)[:5])
        return [f"the gradients of {outputs} were not seen: torch refuses a hook on {few}"]

    def name_modules(self, root: nn.Module, prefix: str = "") -> None:
        for name, module in root.named_modules():
            self.names.setdefault(id(module), prefix + plain_name(name, root))
        for name, weight in root.named_parameters():
            self._owners[id(weight)] = owner_of(prefix + plain_name(name, root))

    def _mark(self) -> None:
        """Nodes of the graph made from here on belong to the module that runs now."""
        number = _next_node()
        if number is not None:
            running = self.thread.modules[-1] if self.thread.modules else ""
            self._marks.setdefault(threading.get_ident(), []).append((number, running))

    def forget_marks(self) -> None:
        self._marks.clear()
        self._unwritten.clear()

    def module_of(self, node: Any) -> str:
        """The module that runs, in a backward as a checkpoint's forward again; else the node's, if any."""
        if self.thread.modules:
            return self.thread.modules[-1]
        if node is None:
            return ""
        if node.name() == _OF_A_WEIGHT:
            return self._owners.get(id(node.variable), "")
        number = node._sequence_nr() if hasattr(node, "_sequence_nr") else -1
        ends = [(marks, bisect_right(marks, number, key=itemgetter(0))) for marks in self._marks.values()]
        names = {marks[end - 1][1] for marks, end in ends if end}
        return names.pop() if len(names) == 1 else ""  # "": not known, or not the same by thread

    # Ops

    def pushed(self) -> Any:
        """See every op while this is open, at level `op`."""
        if self.level != "op":
            return contextlib.nullcontext()
        push = getattr(_dispatch, "push_torch_dispatch_mode", None)  # torch 1.12 makes the mode itself
        if push:
            Ops.recorder = self
            return push(Ops)
        mode = Ops()
        mode.recorder = self
        return mode

    def op(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Make one call and record its outputs."""
        name = str(func)
        if self.thread.busy or self.rows is None or gives_no_values(name) or aliases(func)[0]:
            return func(*args, **kwargs)
        input_slots = [
            *self.bits(self.read_by(func, name, args, kwargs)),
            *_plain_arguments(name, args, kwargs),
        ]
        result = func(*args, **kwargs)
        outputs = tensors_in(result)
        left = unwritten(func, args, kwargs, result)
        for index, output_name in left.items():
            self.unwritten[output_name] += self.attempt == 0
            if address := _address(outputs[index]):
                self._unwritten[address] = outputs[index]
        is_collective = name.startswith(COLLECTIVES)
        if is_collective:
            outputs = _finished(name, result, args)
        elif not outputs:
            outputs = tensors_in([kwargs[key] for key in _out_names(func) if key in kwargs])
        elif name == COPY_IN:
            outputs = outputs[:1]
        if not outputs:
            return result
        errors = self.errors_of(func, args, kwargs, outputs)
        node = _current_node()
        context: dict[str, Any] = {
            "phase": self.phase or ("fwd" if node is None else "bwd"),
            "node": "" if node is None else node.name(),
            "module": self.module_of(node),
            "in_ck": input_slots,
            **({"random": True} if is_random(func) else {}),
        }
        indices = [index for index in range(len(outputs)) if is_collective or index not in left]
        slots = self.bits([outputs[index] for index in indices])
        for index, slot in zip(indices, slots, strict=True):
            kind = "comm" if is_collective else "op"
            self.row(kind, name, outputs[index], slot, out=index, **errors[index], **context)
        self.calls += 1
        return result

    def read_by(self, func: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The inputs that an op computes from: not those that it only writes, nor unwritten memory."""
        only_written = _out_names(func)
        values = [*args, *(value for key, value in kwargs.items() if key not in only_written)]
        if name == COPY_IN:
            values = values[:1]
        if ".".join(name.split(".")[:2]) in OVERWRITES:
            values = values[1:]
        return [tensor for tensor in tensors_in(values) if _address(tensor) not in self._unwritten]

    def errors_of(self, func: Any, args: Any, kwargs: Any, outputs: Sequence[Tensor]) -> list[dict[str, Any]]:
        """What each output of an op is off by, where a recording measures it."""
        return [{} for _ in outputs]

    # Rows

    def facts(self, tensor: Tensor) -> dict[str, Any]:
        """What a row says of a tensor beside its checksum."""
        return described(tensor)

    @contextlib.contextmanager
    def _own_work(self) -> Iterator[None]:
        """What runs inside is the recorder's, and is not recorded."""
        was_busy, self.thread.busy = self.thread.busy, True
        try:
            with torch.no_grad():
                yield
        finally:
            self.thread.busy = was_busy

    def bits(self, tensors: Sequence[Tensor]) -> list[Any]:
        if self.rows is None:
            return [None] * len(tensors)
        with self._own_work(), self.rows.lock:
            return list(self.rows.bits(tensors))

    def row(
        self, kind: str, op: str, tensor: Tensor | None, slot: Any, *, phase: str, **columns: Any
    ) -> dict[str, Any]:
        """One row; a tensor without dense bits has none with values, and a row without a checksum else."""
        row = {"step": self.step, "attempt": self.attempt, "i": self.calls, "kind": kind, "op": op}
        row.update({"phase": phase, "ck": slot, **columns})
        if self.rows is None or (self.with_values and slot is None):
            return row
        if tensor is not None:
            with self._own_work():
                row.update(self.facts(tensor))
        return self.rows.add(row)

    def rows_of(self, kind: str, named: Sequence[tuple[str, Tensor]], phase: str) -> None:
        """Rows of weights, buffers or gradients."""
        slots = self.bits([tensor for _, tensor in named])
        for (name, tensor), slot in zip(named, slots, strict=True):
            self.row(kind, name, tensor, slot, phase=phase, module=owner_of(name))


class Ops(_dispatch.TorchDispatchMode):  # type: ignore[misc]
    recorder: Recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.recorder.thread.busy and any(map(_handles_ops, types)):
            return NotImplemented  # a DTensor takes its op apart first; the local ops arrive here next
        return self.recorder.op(func, args, kwargs or {})


def ranks() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    rank, world = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    is_launched = rank.isdecimal() and world.isdecimal() and int(rank) < int(world)
    return (int(rank), int(world)) if is_launched else (0, 1)


def plain_name(path: str, root: nn.Module) -> str:
    """A name without the wrappers that torch.compile, FSDP, checkpoints and DDP add."""
    path = _WRAPPERS.sub("", path).strip(".")
    is_replicated = type(root).__name__ == "DistributedDataParallel"
    return re.sub(r"^module(\.|$)", "", path) if is_replicated else path


def owner_of(name: str) -> str:
    return name.rpartition(".")[0]


def _plain_arguments(name: str, args: Any, kwargs: Any) -> list[str]:
    """A hash of the arguments that are not tensors: a factor from a clock is an input, too."""
    if name.startswith((*COLLECTIVES, "fsdp.")):  # groups and places in buffers
        return []
    text = _plain((args, sorted(kwargs.items())))
    return [hashlib.blake2b(text.encode(), digest_size=8).hexdigest()] if any(map(str.isdigit, text)) else []


def _plain(value: Any, depth: int = 0) -> str:
    if isinstance(value, (list, tuple)) and depth < 8:
        return f"({','.join(_plain(inner, depth + 1) for inner in value)})"
    if type(value) in (bool, int, float, complex, str):
        return repr(value)
    return type(value).__name__


def _out_names(func: Any) -> list[str]:
    """Arguments that an operator only writes; one that returns nothing gives its results there."""
    arguments = func._schema.arguments if hasattr(func, "_schema") else ()
    return [argument.name for argument in arguments if getattr(argument, "is_out", False)]


def _address(tensor: Tensor) -> int:
    """Address of its memory; 0 without its own."""
    try:
        return int(tensor.data_ptr())
    except (RuntimeError, NotImplementedError):  # sparse, or a subclass
        return 0


def _finished(name: str, result: Any, args: Any) -> list[Tensor]:
    """The outputs of a collective once it has ended; what was given is often where they are."""
    if ONE_SIDED.search(name):
        return []
    for value in result if isinstance(result, (tuple, list)) else [result]:
        if isinstance(value, torch.ScriptObject):
            value.wait()  # type: ignore[attr-defined]
    return tensors_in(result) or tensors_in(args[:1])


@functools.cache
def aliases(func: Any) -> tuple[bool, bool]:
    """Whether an op returns a view, and whether it writes into an argument; by the text of its schema,
    because torch 1.12 shows neither in another way. Without a schema the second is unknown, and taken for
    so."""
    if not hasattr(func, "_schema"):
        return False, True
    arguments, _, returns = str(func._schema).rpartition(") -> ")
    return _VIEW.search(returns) is not None, _WRITTEN.search(arguments) is not None


def is_random(func: Any) -> bool:
    tag = getattr(torch.Tag, "nondeterministic_seeded", None) if hasattr(torch, "Tag") else None
    return tag is not None and tag in getattr(func, "tags", ())


def _handles_ops(kind: type) -> bool:
    return issubclass(kind, Tensor) and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
