"""The recorder behind `lab.same`: a row per output of an op or module, of a weight and of a gradient.

Every row has a checksum of all bits that needs no order (so shards and threads add up), the L2 norm and the
largest magnitude of all elements, their sums under random signs (which elements that swap places or change
their sign move, and no norm shows), and some elements at places that depend on their number alone. With a
reference an op is called once more in float64 on the inputs it got: the error that is its own.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import inspect
import math
import os
import re
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.utils._python_dispatch
from torch import Tensor, nn

from lab.errors import StorageError, UsageError
from lab.workload.unwritten import gives_no_values, unwritten

FORMAT = 1
SAMPLES = 32
BUFFER = "buffer"  # the node of a weight that no gradient moves, but perhaps the forward itself
SIGNS = 4  # sums under random signs
CHUNK = 1 << 22  # elements whose checksum is computed at once
LEVELS = ("op", "module", "ends")
# A checkpoint's second forward ends by an exception, too; torch before 2.1 calls no hook then.
_HOOK = inspect.signature(nn.Module.register_forward_hook).parameters
_ALSO_WHERE_IT_RAISES: Any = {"always_call": True} if "always_call" in _HOOK else {}
_OF_A_WEIGHT = "torch::autograd::AccumulateGrad"
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
UNINDEXED = ("torch.uint16", "torch.uint32", "torch.uint64")  # no GPU picks elements of these
# In a schema: `Tensor(a)` is the memory of an argument, `Tensor(a!)` is written.
_VIEW, _WRITTEN = re.compile(r"\([a-z|*]+(?: -> [a-z|*]+)?\)"), re.compile(r"\([a-z|]+!")
_dispatch: Any = torch.utils._python_dispatch
# The number that the next node of the graph gets in this thread; None where torch is too old to say it.
_next_node: Any = getattr(torch.autograd, "_get_sequence_nr", lambda: None)


@contextlib.contextmanager
def recording(model: nn.Module, path: Path, level: str, reference: bool) -> Iterator[None]:
    """See `lab.same.record`."""
    if level not in LEVELS:
        raise UsageError(f"level {level!r} is not one of {', '.join(LEVELS)}")
    if hasattr(model, "_orig_mod") and level != "ends":
        raise UsageError(
            "the model is compiled, and hooks and op recording would change what is compiled",
            fix='record it with level="ends"',
        )
    part = path.with_name(path.name + ".part")
    file = _opened(part)
    with contextlib.ExitStack() as stack:
        stack.callback(os.replace, part, path)  # also if the block failed: the end mark says so
        recorder = Recorder(stack.enter_context(file), level, reference)
        stack.enter_context(_recorded(model, recorder))
        yield


def _opened(path: Path) -> gzip.GzipFile:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return gzip.open(path, "wb", compresslevel=4)
    except OSError as error:
        raise StorageError(f"cannot write the recording: {error.strerror}", location=path) from error


@contextlib.contextmanager
def _recorded(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    error_name = ""
    recorder.start(model)
    hooks = recorder.hooks(model)
    try:
        with recorder.pushed():
            yield
    except BaseException as error:
        error_name = type(error).__name__
        raise
    finally:
        for hook in hooks:
            hook.remove()
        recorder.end(model, error_name)


@contextlib.contextmanager
def moved(model: nn.Module, seed: int) -> Iterator[None]:
    """See `lab.same.nudged`."""
    weights = [one for one in model.parameters() if one.is_floating_point()]
    originals = [one.detach().clone() for one in weights]
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            for weight in weights:
                step = torch.randint(0, 4, weight.shape, generator=generator).to(weight.device)
                step = torch.where(weight == 0, 2, step)  # a zero has no relative noise
                up, down = (torch.full_like(weight, end) for end in (float("inf"), float("-inf")))
                moved_up, moved_down = torch.nextafter(weight, up), torch.nextafter(weight, down)
                weight.copy_(torch.where(step == 0, moved_up, torch.where(step == 1, moved_down, weight)))
        yield
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, originals, strict=True):
                weight.copy_(old)


class Recorder:
    """Writes rows; `modules` is the stack of the modules whose forward runs."""

    def __init__(self, file: Any, level: str, reference: bool) -> None:
        self._file, self.level, self._reference = file, level, reference
        self.modules: list[str] = []
        self.rows = 0
        self.calls = 0
        self._without: Counter[str] = Counter()
        self._looking = False  # the recorder's own ops are not the model's
        self._began: dict[int, list[tuple[int, str]]] = {}  # by thread: (first node, module that ran)
        self._owners: dict[int, str] = {}  # id of a weight -> its module
        self._on_outputs: list[Any] = []  # hooks of tensors, which may outlive the block
        self._left: Counter[str] = Counter()  # outputs that need not be written, by name
        self._unwritten: dict[
            int, Tensor
        ] = {}  # by address; kept alive, so that no other tensor gets the same one

    def start(self, model: nn.Module) -> None:
        """The head of the file, then every weight and buffer."""
        first_weight = next(model.parameters(), None)
        device = torch.device("cpu") if first_weight is None else first_weight.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        meta = {
            "format": FORMAT,
            "checksum": "mix64",
            "level": self.level,
            "dtype": "" if first_weight is None else _short(first_weight.dtype),
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
            "device": name,
        }
        self._line({"meta": meta})
        self._mark()
        for path, weight in model.named_parameters():
            self._owners[id(weight)] = _plain(path).rpartition(".")[0]
            self.row("weight", _plain(path), weight, phase="start")
        for path, tensor in model.named_buffers():
            self.row("weight", _plain(path), tensor, phase="start", node=BUFFER)

    def hooks(self, model: nn.Module) -> list[Any]:
        handles: list[Any] = []
        for path, module in [("", model)] if self.level == "ends" else model.named_modules():

            def enter(_: nn.Module, args: Any, path: str = path) -> None:
                self.modules.append(path)
                self._mark()
                if not path:
                    for argument, tensor in enumerate(_tensors(args)):
                        self.row("input", "input", tensor, out=argument)

            def leave(module: nn.Module, _: Any, result: Any, path: str = path) -> None:
                name = "" if hasattr(module, "_orig_mod") else type(module).__name__
                for output, tensor in enumerate(_tensors(result)):
                    self.row("module", name, tensor, out=output, module=path)
                    self._watch_gradient(tensor, name, output, path)
                while self.modules and self.modules.pop() != path:
                    pass  # a module inside raised: old torch then calls no forward hook
                self._mark()

            handles += [
                module.register_forward_pre_hook(enter),
                module.register_forward_hook(leave, **_ALSO_WHERE_IT_RAISES),
            ]
        return handles

    def _watch_gradient(self, tensor: Tensor, name: str, output: int, path: str) -> None:
        """A row of the gradient that reaches this output of a module."""

        def came(gradient: Tensor) -> None:
            self.row("module", name, gradient, out=output, module=path, phase="bwd")

        if tensor.requires_grad:
            self._on_outputs.append(tensor.register_hook(came))  # type: ignore[no-untyped-call]

    def _mark(self) -> None:
        """Nodes of the graph made from here on belong to the module that runs now."""
        number = _next_node()
        if number is not None:
            running = self.modules[-1] if self.modules else ""
            self._began.setdefault(threading.get_ident(), []).append((number, running))

    def _module_now(self, node: Any) -> str:
        """The module that runs, in a backward as a checkpoint's forward again; else the node's, if any."""
        if self.modules:
            return self.modules[-1]
        return "" if node is None else self._module_of(node)

    def _module_of(self, node: Any) -> str:
        """The module whose forward made `node`; "" where that is not known, or not the same by thread."""
        if node.name() == _OF_A_WEIGHT:
            return self._owners.get(id(node.variable), "")
        number = node._sequence_nr() if hasattr(node, "_sequence_nr") else -1
        places = [(marks, bisect_right(marks, number, key=itemgetter(0))) for marks in self._began.values()]
        names = {marks[at - 1][1] for marks, at in places if at}
        return names.pop() if len(names) == 1 else ""

    def pushed(self) -> Any:
        if self.level != "op":
            return contextlib.nullcontext()
        push = getattr(_dispatch, "push_torch_dispatch_mode", None)  # torch 1.12 makes the mode itself
        _Mode.recorder = self
        return push(_Mode) if push else _Mode()

    def end(self, model: nn.Module, error: str) -> None:
        """Every gradient, then the mark that nothing is cut off."""
        for hook in self._on_outputs:
            hook.remove()
        grads = 0
        for path, weight in model.named_parameters():
            if weight.grad is not None:
                self.row("grad", _plain(path), weight.grad, phase="end")
                grads += 1
        self._line(
            {
                "end": {
                    "rows": self.rows,
                    "grads": grads,
                    "error": error,
                    "no_reference": self._without,
                    "unwritten": self._left,
                }
            }
        )
        self._unwritten.clear()

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Make one call and record its outputs."""
        name = str(func)
        silent = self._looking or _makes_no_values(func, name)
        read = (
            [] if silent else [one for one in _tensors([*args, *kwargs.values()]) if self._holds_values(one)]
        )
        input_checksums = [_checksum(one) for one in read]
        result = func(*args, **kwargs)
        if silent or not _tensors(result):
            return result
        errors = self._local(func, name, args, kwargs, result)
        left = unwritten(func, args, kwargs, result)
        current = getattr(torch._C, "_current_autograd_node", lambda: None)()
        context = {
            "phase": "fwd" if current is None else "bwd",
            "node": "" if current is None else current.name(),
            "module": self._module_now(current),
        }
        for output, (tensor, error) in enumerate(zip(_tensors(result), errors, strict=True)):
            if output in left:
                self._leave_out(left[output], tensor)
            else:
                self.row("op", name, tensor, out=output, in_ck=input_checksums, **error, **context)
        self.calls += 1
        return result

    def _leave_out(self, name: str, tensor: Tensor) -> None:
        self._left[name] += 1
        if not _no_memory(tensor) and tensor.data_ptr():
            self._unwritten[tensor.data_ptr()] = tensor

    def _holds_values(self, tensor: Tensor) -> bool:
        return not self._unwritten or _no_memory(tensor) or tensor.data_ptr() not in self._unwritten

    def row(
        self, kind: str, op: str, tensor: Tensor, *, out: int = 0, phase: str = "fwd", **columns: Any
    ) -> None:
        was_looking, self._looking = self._looking, True
        try:
            tensor = (
                tensor.to_local() if hasattr(tensor, "to_local") else tensor
            )  # a rank's part of a DTensor
            if _no_memory(tensor):
                self._without[f"{op} (no plain tensor)"] += 1
                return
            place = {"i": self.calls, "kind": kind, "op": op, "out": out, "phase": phase}
            self._line({**place, **facts(tensor), **columns})
            self.rows += 1
        finally:
            self._looking = was_looking

    def _local(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> list[dict[str, Any]]:
        """Per output, its error against the same call in float64."""
        outs = _tensors(result)
        nothing: list[dict[str, Any]] = [{} for _ in outs]
        floats = [one for one in outs if one.is_floating_point()]
        if not floats or not self._reference or all(one.dtype == torch.float64 for one in floats):
            return nothing
        if _changes_arguments(func) or _is_random(func) or not name.startswith(("aten.", "aten::")):
            self._without[name] += 1
            return nothing
        try:
            exact = _tensors(func(*_doubled(args), **_doubled(kwargs)))
        except (RuntimeError, NotImplementedError, TypeError, ValueError):  # no float64 kernel
            self._without[name] += 1
            return nothing
        if len(exact) != len(outs):
            self._without[name] += 1
            return nothing
        return [_error(out, reference) for out, reference in zip(outs, exact, strict=True)]

    def _line(self, value: Any) -> None:
        self._file.write(msgspec.json.encode(value) + b"\n")


class _Mode(_dispatch.TorchDispatchMode):  # type: ignore[misc]
    recorder: Recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(_handles_ops, types)):
            return NotImplemented  # a DTensor takes its op apart first; the local ops arrive here next
        return _Mode.recorder.call(func, args, kwargs or {})


def facts(tensor: Tensor) -> dict[str, Any]:
    """Shape, norms over all elements, counts of NaN and infinity, checksum and sampled elements."""
    flat = tensor.detach().contiguous().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    size = flat.numel()
    positions = sample_places(size)
    words = flat.view(_WORDS[flat.element_size()]) if str(flat.dtype) in UNINDEXED else flat
    picked = (
        words[torch.tensor(positions, device=flat.device)].view(flat.dtype).double().tolist() if size else []
    )
    description: dict[str, Any] = {
        "shape": list(tensor.shape),
        "dtype": _short(tensor.dtype),
        "ck": _checksum(tensor),
        "sample_at": positions,
        "sample": picked,
    }
    return {**description, **_norms(flat)}


def _norms(flat: Tensor) -> dict[str, Any]:
    """L2 norm, largest magnitude, sums under random signs and counts over all elements, by parts: all in
    float64 may not fit."""
    squares, largest, nan, inf = 0.0, 0.0, 0, 0
    sums = [0.0] * SIGNS
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].double()
        squares += float(part.square().sum())
        largest = max(largest, float(part.abs().max()))
        nan, inf = nan + int(part.isnan().sum()), inf + int(part.isinf().sum())
        sums = [one + more for one, more in zip(sums, _signed_sums(part, start), strict=True)]
    return {
        "l2": math.sqrt(squares) if squares >= 0 else squares,
        "absmax": math.nan if nan else largest,
        "nan": nan,
        "inf": inf,
        "signed": sums,
    }


def _signed_sums(part: Tensor, start: int) -> list[float]:
    """Of elements (n,) from place `start` on, under SIGNS signs that depend on the place alone."""
    place = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
    bits = _mix64((place + 1) * 0x1E3779B97F4A7C15)
    return [float(torch.where((bits >> (40 + one)) & 1 == 0, part, -part).sum()) for one in range(SIGNS)]


def sample_places(size: int) -> list[int]:
    """Up to SAMPLES places, the same in every run for a tensor of `size` elements."""
    if size <= SAMPLES:
        return list(range(size))
    return sorted({((2 * k + 1) * 2654435761 % 2**32) * size >> 32 for k in range(SAMPLES)})


def _checksum(tensor: Tensor) -> str:
    """The sum of mix64(bits xor key(place)) over all elements: swaps and sign flips change it."""
    if _no_memory(tensor):
        return ""
    flat = tensor.detach().contiguous().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    words = flat.view(torch.uint8) if flat.dtype == torch.bool else flat.view(_WORDS[flat.element_size()])
    total = 0
    for start in range(0, words.numel(), CHUNK):
        part = words[start : start + CHUNK].to(torch.int64)
        place = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
        total += int(_mix64(part ^ (place * 0x1E3779B97F4A7C15)).sum())
    return f"{total % 2**64:016x}"


def _mix64(z: Tensor) -> Tensor:
    """A bijection of 64-bit words (int64, wrapping); shifts are logical by a mask."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ ((z >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    return z ^ ((z >> 31) & (2**33 - 1))


def _error(out: Tensor, exact: Tensor) -> dict[str, Any]:
    """Relative L2 error and the largest error over the RMS of the reference."""
    if not out.is_floating_point() or not out.numel() or not exact.is_floating_point():
        return {}
    true = exact.double()
    off, size = out.double() - true, float(true.norm())
    if not size > 0:
        return {"local_rel": 0.0, "local_max_rms": 0.0} if not bool(off.any()) else {}
    rms = size / true.numel() ** 0.5
    return {"local_rel": float(off.norm()) / size, "local_max_rms": float(off.abs().max()) / rms}


def _doubled(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(_doubled, value))
    return {key: _doubled(one) for key, one in value.items()} if isinstance(value, dict) else value


def _makes_no_values(func: Any, name: str) -> bool:
    """Views show values that are recorded already; what `empty` returns is not computed."""
    return gives_no_values(name) or _aliases(func)[0]


def _changes_arguments(func: Any) -> bool:
    return _aliases(func)[1]


@functools.cache
def _aliases(func: Any) -> tuple[bool, bool]:
    """Whether an op returns a view, and whether it writes into an argument; by the text of its schema,
    because torch 1.12 shows neither in another way. Without a schema the second is unknown, and taken for
    so."""
    if not hasattr(func, "_schema"):
        return False, True
    arguments, _, returns = str(func._schema).rpartition(") -> ")
    return _VIEW.search(returns) is not None, _WRITTEN.search(arguments) is not None


def _is_random(func: Any) -> bool:
    tag = getattr(torch.Tag, "nondeterministic_seeded", None) if hasattr(torch, "Tag") else None
    return tag is not None and tag in getattr(func, "tags", ())


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for one in value.values() for tensor in _tensors(one)]
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _tensors(one)]
    return []


def _handles_ops(kind: type) -> bool:
    return issubclass(kind, Tensor) and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


def _no_memory(tensor: Tensor) -> bool:
    if _handles_ops(type(tensor)):
        return True
    return tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized


def _plain(path: str) -> str:
    """The name of a weight without the wrapper that torch.compile adds."""
    return path.replace("_orig_mod.", "")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
