"""Records the bits of a training program's first steps, and runs each step again from what it began with.

The program knows nothing of it: `nn.Module.__call__`, `torch.autograd.backward` and `grad` and the
collectives of `torch.distributed` are replaced, weights get hooks, and an optimizer's step ends a step. A
step's first forward and backward run again before the update, with the inputs, random numbers and buffers of
then; the last repeats of the first step run with deterministic algorithms. Everything is taken back after
the last step that was asked for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lab.core.words import plural
from lab.rooms.trials.workload.replay.events import Events
from lab.rooms.trials.workload.replay.ops import Ops
from lab.rooms.trials.workload.replay.state import (
    Saved,
    as_it_was,
    digests,
    outermost,
    random_state,
    save,
    set_random,
    tensors_in,
)

# What torch warns of where it would raise if it might.
REFUSES = re.compile(r"does not have a deterministic implementation|is not deterministic because")
DETERMINISTIC = 100  # attempts from this number on run with deterministic algorithms
TOGETHER = 64  # gradients that one launch reads
COLLECTIVES = (  # of torch.distributed, that a program may call itself
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
)
_is_compiling = torch.compiler.is_compiling


class _Read(NamedTuple):
    """A tensor whose checksum is on its way: where it will be, as long as step and version are these."""

    tensor: weakref.ref[Tensor]
    step: int
    version: int
    place: Any


class _Here(threading.local):
    """Where one thread is: a program may call its model from several."""

    def __init__(self) -> None:
        self.path: list[str] = []  # of the modules that run, if they are recorded
        self.inside = 0  # depth of calls below an outermost one, recorded or not
        self.busy = False  # the recorder's own operators are not the program's
        self.last: list[_Read] = []  # the outputs of the module that ended last, where operators are not seen


class Recorder:
    """One process's. `steps` are recorded, each with `repeats` repeats; level `op` or `module`."""

    def __init__(self, out: Path, *, steps: int, repeats: int, level: str, leave: bool) -> None:
        self.out, self.steps, self.repeats, self.level, self.leave = out, steps, repeats, level, leave
        self.here = _Here()
        self.step = 0
        self.attempt = 0
        self.phase = "start"
        self.notes: list[str] = []
        self._unwatched: set[str] = set()  # outputs whose gradients no hook can see
        self.events_of_last_step = 0
        self.module_of: dict[int, str] = {}  # sequence number of a node -> module of its forward
        self._events: Events | None = None
        self._names: dict[int, str] = {}
        self._roots: list[nn.Module] = []
        self._in_backward = 0
        self._open = False
        self._versions: dict[int, int] = {}  # of the weights of each root when the step began
        self._updated: dict[int, int] = {}  # the same after the last update
        self._lock = threading.RLock()
        # Outputs that nobody need write: by address, held so that none takes their place; counted by name.
        self.unwritten: dict[int, Tensor] = {}
        self.left_out: Counter[str] = Counter()
        self._saved: Saved | None = None
        self._late: list[tuple[dict[str, Any], Tensor, int]] = []  # gradients to read, and their versions
        self._read: dict[int, tuple[int, int]] = {}  # weight -> its gradient and version when last read
        self._hooks: list[Any] = []
        self._pid = os.getpid()
        self._stack = contextlib.ExitStack()

    # Entering and leaving

    def start(self) -> None:
        original, backward, grad = nn.Module.__call__, torch.autograd.backward, torch.autograd.grad
        recorder = self

        def call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
            return recorder.call(original, self, args, kwargs)

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            return recorder.backward(backward, args, kwargs)

        def run_grad(*args: Any, **kwargs: Any) -> Any:
            return recorder.backward(grad, args, kwargs)

        for owner, name, new in (
            (nn.Module, "__call__", call),
            (torch.autograd, "backward", run_backward),
            (torch.autograd, "grad", run_grad),
        ):
            old = getattr(owner, name)
            setattr(owner, name, new)
            self._stack.callback(setattr, owner, name, old)
        for name in COLLECTIVES:
            if (old := getattr(torch.distributed, name, None)) is not None:
                setattr(torch.distributed, name, self._collective(old))
                self._stack.callback(setattr, torch.distributed, name, old)
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._hooks.append(register_optimizer_step_pre_hook(lambda *_: self._before_update()))
        self._hooks.append(register_optimizer_step_post_hook(lambda *_: self._after_update()))

    def stop(self, *, ended: bool) -> None:
        """Take everything back and close the record, once."""
        if os.getpid() != self._pid:
            return
        self._stack.close()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._events is not None:
            if self._open:
                self._events.flush(self.step - 1)  # the step that is open is not whole
            if self._unwatched:
                few = ", ".join(sorted(self._unwatched)[:5])
                outputs = plural(len(self._unwatched), "output")
                self.notes.insert(
                    0, f"the gradients of {outputs} were not seen: torch refuses a hook on {few}"
                )
            self._events.close(ended=ended, notes=self.notes[:100], unwritten=self.left_out)
            self._events = None

    # What the program does

    def _collective(self, original: Any) -> Any:
        """A collective that the program calls itself, such as one on its gradients before the update."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return original(*args, **kwargs)
            here = self.here
            seen = here.inside or self._in_backward  # by the mode that is active there
            if seen or here.busy or not self._open or self.attempt or os.getpid() != self._pid:
                return original(*args, **kwargs)
            before, self.phase = self.phase, "update" if self.phase == "backward" else self.phase
            try:
                with Ops(self):
                    return original(*args, **kwargs)
            finally:
                self.phase = before

        return call

    def call(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """One call of a module, the program's or a repeat's."""
        here = self.here
        if here.busy or os.getpid() != self._pid:
            return original(module, *args, **kwargs)
        if self._in_backward and self._events is not None and here.inside == 0:
            return self._inner(original, module, args, kwargs)  # a checkpoint computes its forward again
        if here.inside == 0:
            return self._outermost(original, module, args, kwargs)
        if here.path:
            return self._inner(original, module, args, kwargs)
        return original(module, *args, **kwargs)

    def _outermost(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        trained = torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters())
        here = self.here
        if not trained or (self._events is None and self.step >= self.steps):
            here.inside += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                here.inside -= 1
        if self.attempt == 0:
            with self._lock:
                self._begin(module, args, kwargs)
        here.inside += 1
        try:
            self.phase = "forward"
            with self._looking():
                out = self._inner(original, module, args, kwargs)
        finally:
            here.inside -= 1
        self._gradients_of_outputs(out)
        return out

    def _inner(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        name = self._names.get(id(module), f"({type(module).__name__})")
        here = self.here
        here.path.append(name)
        given = self.bits_of(tensors_in([*args, *kwargs.values()])) if self.level == "op" else []
        here.inside += 1
        try:
            out = original(module, *args, **kwargs)
        finally:
            here.inside -= 1
            here.path.pop()
        if made := tensors_in(out):
            bits = self.bits_of(made) if self.level == "op" else self._bits_of_outputs(made)
            event = self.event("module", type(module).__name__, module=name, given=given, made=bits)
            if self.level == "op" or name.rpartition(".")[2].isdecimal() or module in self._roots:
                self._watch_gradients(made, name, type(module).__name__)
            if self.level != "op":
                del event["in"]
        return out

    def _bits_of_outputs(self, made: Sequence[Tensor]) -> list[Any]:
        """A container gives what its last module gave: the same tensor is read once."""
        known = [one for one in self.here.last if one.step == self.step]

        def place(tensor: Tensor) -> Any:
            return next(
                (k.place for k in known if k.tensor() is tensor and k.version == tensor._version), None
            )

        found = [place(one) for one in made]
        new = iter(self.bits_of([one for one, there in zip(made, found, strict=True) if there is None]))
        bits = [next(new) if there is None else there for there in found]
        self.here.last = [
            _Read(weakref.ref(one), self.step, one._version, where)
            for one, where in zip(made, bits, strict=True)
            if not one.is_inference()  # it has no version
        ]
        return bits

    def _watch_gradients(self, made: Sequence[Tensor], module: str, kind: str) -> None:
        for at, one in enumerate(made):

            def see(grad: Tensor, at: int = at) -> None:
                if not self.here.busy:
                    self.event("ograd", f"{kind}:{at}", module=module, made=self.bits_of([grad]))

            try:
                if one.requires_grad and not (one.is_leaf and one.grad_fn is None):
                    one.register_hook(see)  # type: ignore[no-untyped-call]
            except RuntimeError:  # such as one of several views of what was changed in place
                self._unwatched.add(f"{module}:{at}")

    def _gradients_of_outputs(self, out: Any) -> None:
        """What a repeat's backward begins with."""
        saved, attempt = self._saved, self.attempt
        if saved is None or attempt or saved.forwards != 1:
            return
        for at, one in enumerate(tensors_in(out)):
            if one.requires_grad:

                def keep(grad: Tensor, at: int = at) -> None:
                    if self.attempt == 0 and saved.backwards <= 1:
                        saved.gradients[at] = grad.detach().clone()

                with contextlib.suppress(RuntimeError):  # torch refuses it in a backward too
                    one.register_hook(keep)  # type: ignore[no-untyped-call]

    def backward(self, original: Any, args: Any, kwargs: Any) -> Any:
        if self.here.busy or self._events is None or not self._open or os.getpid() != self._pid:
            return original(*args, **kwargs)
        if self._saved is not None and self.attempt == 0:
            self._saved.backwards += 1
            if self._saved.backwards == 1 and self._saved.forwards > 1:
                self._saved.why_not = "several forwards came before the first backward"
            elif self._saved.backwards > self._saved.forwards:
                self._saved.why_not = "several backward passes use one forward"
        self.phase = "backward"
        self._in_backward += 1
        try:
            with self._looking():
                out = original(*args, **kwargs)
        finally:
            self._in_backward -= 1
            self._read_late()
        if _world() > 1:
            self._grads("reduced")
        return out

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        if self.level != "op":
            yield
            return
        with Ops(self):
            yield

    # A step

    def _begin(self, root: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward of the program that may be the first of a step."""
        if self._open and any(self._version(one) != self._versions.get(id(one)) for one in self._roots):
            self.notes.append(f"step {self.step} was not run again: no optimizer of torch ended it")
            self._after_update()
        if self._open:
            if self._saved is not None:
                self._saved.forwards += 1
            self._meet(root)
            return
        if self.step >= self.steps:
            return
        self.step += 1
        self._open = True
        self.module_of.clear()
        self.unwritten.clear()
        if self._events is None:
            self._events = Events(self.out, _rank(), _facts(root, self))
        self.phase = "start"
        self._meet(root)
        for name, digest in digests(random_state()).items():
            self._event({"kind": "random", "name": name, "m": "", "out": [digest]})
        self._versions = {id(one): self._version(one) for one in self._roots}
        if self.step == 1 or self._versions != self._updated:
            self._weights()  # the first, or changed since the update by something else
        buffers = [(name, one) for name, one in root.named_buffers() if one is not None]
        for (name, _), bits in zip(buffers, self.bits_of([one for _, one in buffers]), strict=True):
            self._event({"kind": "buffer", "name": name, "m": "", "out": [bits]})
        self._event(
            {"kind": "input", "name": "batch", "m": "", "out": self.bits_of(tensors_in((args, kwargs)))}
        )
        self._saved = save(root, args, kwargs) if self.repeats else None
        if self._saved is not None:
            self._saved.forwards = 1
            if _compiled(root) and self.level == "op":
                self.notes.append("a compiled model is seen from outside only")

    def _meet(self, root: nn.Module) -> None:
        if any(one is root for one in self._roots):
            return
        prefix = f"{type(root).__name__}{len(self._roots) + 1}." if self._roots else ""
        self._roots.append(root)
        self._versions[id(root)] = self._version(root)
        for name, module in root.named_modules():
            self._names.setdefault(id(module), prefix + name or type(root).__name__)
        for name, weight in root.named_parameters():
            if weight.requires_grad and weight.is_leaf:

                def see(one: Tensor, name: str = prefix + name) -> None:
                    if not self.here.busy and self._open and one.grad is not None:
                        self._see_gradient(one, one.grad, name)

                self._hooks.append(weight.register_post_accumulate_grad_hook(see))  # type: ignore[no-untyped-call]

    def _see_gradient(self, weight: Tensor, grad: Tensor, name: str) -> None:
        """Of a weight, when its backward has added to it; many at once where no hook can change it before."""
        self._read[id(weight)] = id(grad), grad._version
        if self.level == "op" or _world() > 1 or len(weight._post_accumulate_grad_hooks or ()) > 1:
            self.event("grad", name, module=_owner(name), made=self.bits_of([grad]))
            return
        event = self.event("grad", name, module=_owner(name), made=[None])
        with self._lock:
            self._late.append((event, grad, grad._version))
        if len(self._late) >= TOGETHER:
            self._read_late()

    def _read_late(self) -> None:
        with self._lock:
            late, self._late = self._late, []
            same = [(event, grad) for event, grad, version in late if grad._version == version]
            for (event, _), bits in zip(same, self.bits_of([grad for _, grad in same]), strict=True):
                event["out"] = [bits]
            if self._events is not None and len(same) < len(late):
                kind = "gradients that were changed inside the backward"
                self._events.unseen[kind] = self._events.unseen.get(kind, 0) + len(late) - len(same)

    def _before_update(self) -> None:
        """The step's gradients are there and nothing has used them: now it runs again."""
        if self.here.busy or not self._open or self.attempt or os.getpid() != self._pid:
            return
        self.phase = "update"
        self._grads("used", only_changed=self.level != "op")  # a change by `.data` has no version
        saved = self._saved
        if saved is not None and not saved.why_not:
            if self._attempts(saved, range(1, self.repeats + 1)) and self.step == 1:
                self._deterministically(saved)
        elif saved is not None:
            self.notes.append(f"step {self.step} was not run again: {saved.why_not}")
        self._saved = None
        self.phase = "update"

    def _attempts(self, saved: Saved, numbers: Sequence[int]) -> bool:
        """Run the step again, once per number; -> whether all of them ended."""
        for attempt in numbers:
            try:
                self._again(saved, attempt)
            except Exception as error:  # noqa: BLE001  the program goes on; what was not repeated is said
                self.notes.append(f"step {self.step} could not run again: {_first_line(error)}")
                return False
            finally:
                self.attempt = 0
        return True

    def _deterministically(self, saved: Saved) -> None:
        """Two repeats with deterministic algorithms, as strictly as this step allows.

        Some operators (flash attention's backward) turn deterministic only where torch may raise. Whether it
        would is asked first, by a repeat in which it only warns: an error in the middle of a backward leaves
        a distributed model unusable.
        """
        numbers = (DETERMINISTIC, DETERMINISTIC + 1)
        with _deterministic(only_warn=True), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            if not self._attempts(saved, numbers[:1]):
                return
        self._forget(numbers)  # in any case, so that all ranks run it as often
        why = next((text for one in heard if REFUSES.search(text := str(one.message))), "")
        if not why:
            with _deterministic(only_warn=False):
                try:
                    for attempt in numbers:
                        self._again(saved, attempt)
                    return
                except Exception as error:  # noqa: BLE001  of which nothing warned
                    why = str(error)
                finally:
                    self.attempt = 0
            self._forget(numbers)
        self.notes.append(
            f"step {self.step} ran with deterministic algorithms only where there are any (warn_only): "
            f"{_first_line(why).partition(', but you set')[0]}"
        )
        with _deterministic(only_warn=True):
            self._attempts(saved, numbers)

    def _forget(self, attempts: Sequence[int]) -> None:
        if self._events is not None:
            self._events.forget(self.step, attempts)

    def _again(self, saved: Saved, attempt: int) -> None:
        if not saved.gradients:
            self.notes.append(f"step {self.step} was not run again: no gradient entered the model's outputs")
            return
        self.attempt = attempt
        before, self.here.inside = self.here.inside, 0
        try:
            with as_it_was(saved), torch.enable_grad():
                # Once more: autocast and the rest above may have drawn.
                set_random(saved.random)
                outputs = tensors_in(saved.root(*saved.args, **saved.kwargs))
                wanted = outermost(outputs, sorted(saved.gradients))
                torch.autograd.backward(
                    [outputs[at] for at in wanted], [saved.gradients[at].clone() for at in wanted]
                )
        finally:
            self.here.inside = before

    def _after_update(self) -> None:
        if self.here.busy or not self._open or os.getpid() != self._pid or self._events is None:
            return
        self.phase = "update"
        self._weights()
        self._updated = {id(one): self._version(one) for one in self._roots}
        self._open = False
        self._saved = None
        self._read.clear()
        before = self._events.events
        self._events.flush(self.step)
        self.events_of_last_step = self._events.events - before
        if self.step >= self.steps:
            self.stop(ended=True)
            if self.leave:
                print(f"lab: {self.steps} steps recorded; the program is ended here", file=sys.stderr)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)

    def _weights(self) -> None:
        named = [pair for root in self._roots for pair in root.named_parameters()]
        for (name, _), bits in zip(named, self.bits_of([one for _, one in named]), strict=True):
            self._event({"kind": "weight", "name": name, "m": _owner(name), "out": [bits]})

    @staticmethod
    def _version(root: nn.Module) -> int:
        return sum(one._version for one in root.parameters())

    def _grads(self, kind: str, *, only_changed: bool = False) -> None:
        """Every gradient; or those that something changed since their backward, as a collective does."""
        weights = [pair for root in self._roots for pair in root.named_parameters()]
        now = {name: (id(one.grad), one.grad._version) for name, one in weights if one.grad is not None}
        named = [
            (name, one.grad)
            for name, one in weights
            if one.grad is not None and not (only_changed and self._read.get(id(one)) == now[name])
        ]
        self._read.update({id(one): now[name] for name, one in weights if name in now})
        for (name, _), bits in zip(named, self.bits_of([one for _, one in named]), strict=True):
            self._event({"kind": kind, "name": name, "m": _owner(name), "out": [bits]})

    # Events

    def module(self) -> str:
        return self.here.path[-1] if self.here.path else ""

    def bits_of(self, tensors: Sequence[Tensor]) -> list[Any]:
        if self._events is None:
            return [None] * len(tensors)
        before, self.here.busy = self.here.busy, True
        try:
            with torch.no_grad(), self._lock:
                return list(self._events.bits(list(tensors)))
        finally:
            self.here.busy = before

    def event(
        self,
        kind: str,
        name: str,
        *,
        module: str,
        made: list[Any],
        given: list[Any] | None = None,
        node: str = "",
        shape: str = "",
        random: bool = False,
    ) -> dict[str, Any]:
        more = {"node": node, "shape": shape, "random": random}
        found = {"kind": kind, "name": name, "m": module, "in": given or [], "out": made}
        return self._event({**found, **{key: value for key, value in more.items() if value}})

    def _event(self, event: dict[str, Any]) -> dict[str, Any]:
        if self._events is None:
            return event
        return self._events.add({"s": self.step, "k": self.attempt, "p": self.phase, **event})


@contextlib.contextmanager
def _deterministic(*, only_warn: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=only_warn)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


def _first_line(text: object) -> str:
    return (str(text).strip().splitlines() or [repr(text)])[0][:300]


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _compiled(root: nn.Module) -> bool:
    return any(
        hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) for one in root.modules()
    )


def _world() -> int:
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _rank() -> int:
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0


def _facts(root: nn.Module, recorder: Recorder) -> dict[str, Any]:
    """Where this ran, for the verdict and the page."""
    device = next(root.parameters()).device
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "host": platform.node(),
        "device": gpu.name if gpu else f"{device.type} {platform.machine()}",
        "uuid": str(getattr(gpu, "uuid", "")) if gpu else "",
        "world": _world(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "model": type(root).__name__,
        "level": recorder.level,
        "replicated": any(type(one).__name__ == "DistributedDataParallel" for one in root.modules()),
        "compiled": _compiled(root),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
