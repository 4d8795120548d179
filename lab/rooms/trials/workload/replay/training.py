"""Records the bits of a training program's first steps, and runs each step again from what it began with.

The program knows nothing of it: `nn.Module.__call__`, `torch.autograd.backward` and `grad` and the
collectives of `torch.distributed` are replaced, weights get hooks, and an optimizer's step ends a step. A
step's first forward and backward run again before the update, with the inputs, random numbers and buffers of
then. Everything is taken back after the last step that was asked for. It needs torch 2.4.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import platform
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.rooms.trials.replay import SETTINGS
from lab.rooms.trials.workload.replay.repeat import Saved, as_it_was, digests, outermost, save
from lab.workload.again import random_state
from lab.workload.recorder.bits import tensors_in
from lab.workload.recorder.format import OF_STEPS
from lab.workload.recorder.recorder import Recorder, is_compiling, owner_of, plain_name, ranks
from lab.workload.recorder.rows import Rows

TOGETHER = 64  # gradients that one launch reads
COLLECTIVES = (  # of torch.distributed, that a program may call itself
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
)


def start_from_env() -> None:
    """What the hook in a program calls once torch is imported: record, as the environment says."""
    out, steps, repeats, level, leave = os.environ[SETTINGS].rsplit("|", 4)
    recorder = Training(Path(out), steps=int(steps), repeats=int(repeats), level=level, leave=leave == "1")
    recorder.start()
    # A program that ends early leaves a record that says so.
    atexit.register(lambda: recorder.stop(ended=True))


class Training(Recorder):
    """One process's. `steps` are recorded, each with `repeats` repeats; level `op` or `module`."""

    def __init__(self, out: Path, *, steps: int, repeats: int, level: str, leave: bool) -> None:
        super().__init__(level, with_values=False)
        self.out, self.steps, self.repeats, self.leave = out, steps, repeats, leave
        self.step, self.phase = 0, "start"
        self.notes: list[str] = []
        self._roots: list[nn.Module] = []
        self._in_backward = 0
        self._open = False
        self._begins = threading.RLock()
        self._versions: dict[int, int] = {}  # of the weights of each root when the step began
        self._updated: dict[int, int] = {}  # the same after the last update
        self._saved: Saved | None = None
        self._late: list[tuple[dict[str, Any], Tensor, int]] = []  # gradients to read, and their versions
        self._read: dict[int, tuple[int, int]] = {}  # weight -> its gradient and version when last read
        self._stack = contextlib.ExitStack()  # what puts everything back

    # Start and end

    def start(self) -> None:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._stack.enter_context(self.patched())
        for name in ("backward", "grad"):
            self._replace(torch.autograd, name, self._backward)
        for name in COLLECTIVES:
            if hasattr(torch.distributed, name):
                self._replace(torch.distributed, name, self._collective)
        self._stack.callback(register_optimizer_step_pre_hook(lambda *_: self._before_update()).remove)
        self._stack.callback(register_optimizer_step_post_hook(lambda *_: self._after_update()).remove)

    def _replace(self, owner: Any, name: str, run: Any) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self.thread.busy or not self._open or os.getpid() != self._pid:
                return original(*args, **kwargs)
            return run(original, args, kwargs)

        setattr(owner, name, call)
        self._stack.callback(setattr, owner, name, original)

    def stop(self, *, ended: bool) -> None:
        """Take everything back and close the record, once."""
        if os.getpid() != self._pid:
            return
        self._stack.close()
        if self.rows is None:
            return
        if self._open:
            self.rows.flush(self.step - 1)  # the step that is open is not whole
        self.rows.close(
            ended=ended, notes=[*self.unwatched_note(), *self.notes][:100], unwritten=self.unwritten
        )
        self.rows = None

    # What the program does

    def _collective(self, original: Any, args: Any, kwargs: Any) -> Any:
        """A collective that the program calls itself, such as one on its gradients before the update."""
        if self.thread.depth or self._in_backward or self.attempt:  # seen by the mode that is active there
            return original(*args, **kwargs)
        previous, self.phase = self.phase, "update" if self.phase == "bwd" else self.phase
        try:
            level, self.level = self.level, "op"
            with self.pushed():
                return original(*args, **kwargs)
        finally:
            self.phase, self.level = previous, level

    def call(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """One call of a module, the program's or a repeat's."""
        is_outermost = self.thread.depth == 0
        is_checkpoint = is_outermost and self._in_backward and self.rows is not None  # its forward again
        if is_checkpoint or (self.thread.modules and not is_outermost):
            return self._inner(original, module, args, kwargs)
        if is_outermost:
            return self._outermost(original, module, args, kwargs)
        return original(module, *args, **kwargs)

    def _outermost(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        trained = torch.is_grad_enabled() and any(weight.requires_grad for weight in module.parameters())
        is_recorded = trained and (self.rows is not None or self.step < self.steps)
        if is_recorded and self.attempt == 0:
            with self._begins:  # threads may call the model at once: one begins the step, the others join it
                self._begin(module, args, kwargs)
        self.thread.depth += 1
        try:
            if not is_recorded:
                return original(module, *args, **kwargs)
            self.phase = "fwd"
            with self.pushed():
                result = self._inner(original, module, args, kwargs)
        finally:
            self.thread.depth -= 1
        self._gradients_of_outputs(result)
        return result

    def _inner(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        name = self.names.get(id(module), "")
        watched = self.level == "op" or name.rpartition(".")[2].isdecimal() or module in self._roots
        return self.module_call(original, module, args, kwargs, gradients=watched)

    def _gradients_of_outputs(self, result: Any) -> None:
        """Gradients that a repeat's backward begins with."""
        saved = self._saved
        if saved is None or self.attempt or saved.forwards != 1:
            return
        for index, tensor in enumerate(tensors_in(result)):
            if tensor.requires_grad:

                def keep(grad: Tensor, index: int = index) -> None:
                    if self.attempt == 0 and saved.backwards <= 1:
                        saved.gradients[index] = grad.detach().clone()

                with contextlib.suppress(RuntimeError):  # torch refuses it in a backward too
                    tensor.register_hook(keep)  # type: ignore[no-untyped-call]

    def _backward(self, original: Any, args: Any, kwargs: Any) -> Any:
        if self._saved is not None and self.attempt == 0:
            self._saved.backwards += 1
            if self._saved.backwards == 1 and self._saved.forwards > 1:
                self._saved.why_not = "several forwards came before the first backward"
            elif self._saved.backwards > self._saved.forwards:
                self._saved.why_not = "several backward passes use one forward"
        self.phase = "bwd"
        self._in_backward += 1
        try:
            with self.pushed():
                result = original(*args, **kwargs)
        finally:
            self._in_backward -= 1
            self._read_late()
        if self.world > 1:
            self._grads("reduced")
        return result

    # A step

    def _begin(self, root: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward of the program that may be the first of a step."""
        if self._open and any(_version(root) != self._versions.get(id(root)) for root in self._roots):
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
        self.forget_marks()
        if self.rows is None:
            self.rank, self.world = ranks()  # a program may join its group after the recorder has begun
            path = self.out / OF_STEPS.replace("*", str(self.rank))
            self.rows = Rows(path, _facts(root, self), packed=False)
        self.phase = "start"
        self._meet(root)
        for name, digest in digests(random_state()).items():
            self.row("random", name, None, digest, phase="start")
        self._versions = {id(root): _version(root) for root in self._roots}
        if self.step == 1 or self._versions != self._updated:
            self._weights()  # the first, or changed since the update by something else
        self.rows_of("buffer", [(plain_name(n, root), buffer) for n, buffer in root.named_buffers()], "start")
        batch = tensors_in((args, kwargs))
        for index, (tensor, slot) in enumerate(zip(batch, self.bits(batch), strict=True)):
            self.row("input", "batch", tensor, slot, out=index, phase="start")
        self._saved = save(root, args, kwargs) if self.repeats else None
        if self._saved is not None:
            self._saved.forwards = 1
            if _compiled(root) and self.level == "op":
                self.notes.append("a compiled model is seen from outside only")

    def _meet(self, root: nn.Module) -> None:
        if any(known is root for known in self._roots):
            return
        prefix = f"{type(root).__name__}{len(self._roots) + 1}." if self._roots else ""
        self._roots.append(root)
        self._versions[id(root)] = _version(root)
        self.name_modules(root, prefix)
        for name, weight in self._named(root):
            if weight.requires_grad and weight.is_leaf:

                def accumulated(weight: Tensor, name: str = name) -> None:
                    if not self.thread.busy and self._open and weight.grad is not None:
                        self._see_gradient(weight, weight.grad, name)

                hook = weight.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
                self._stack.callback(hook.remove)

    def _see_gradient(self, weight: Tensor, grad: Tensor, name: str) -> None:
        """Record a weight's gradient once backward has added to it; many at once if no hook can change it."""
        self._read[id(weight)] = id(grad), grad._version
        if self.level == "op" or self.world > 1 or len(weight._post_accumulate_grad_hooks or ()) > 1:
            self.rows_of("grad", [(name, grad)], self.phase)
            return
        row = self.row("grad", name, grad, None, phase=self.phase, module=owner_of(name))
        self._late.append((row, grad, grad._version))
        if len(self._late) >= TOGETHER:
            self._read_late()

    def _read_late(self) -> None:
        if self.rows is None:
            return
        with self.rows.lock:
            late, self._late = self._late, []
            same = [(row, grad) for row, grad, version in late if grad._version == version]
            for (row, _), slot in zip(same, self.bits([grad for _, grad in same]), strict=True):
                row["ck"] = slot
            if len(same) < len(late):
                self.rows.unseen["gradients that were changed inside the backward"] += len(late) - len(same)

    def _before_update(self) -> None:
        """The step's gradients are there and nothing has used them: now it runs again."""
        if self.thread.busy or not self._open or self.attempt or os.getpid() != self._pid:
            return
        self.phase = "update"
        self._grads("used", only_changed=self.level != "op")  # a change by `.data` has no version
        saved = self._saved
        if saved is not None and not saved.why_not:
            try:
                for attempt in range(1, self.repeats + 1):
                    self._again(saved, attempt)
            except Exception as error:  # noqa: BLE001  the program goes on; what was not repeated is said
                self.notes.append(f"step {self.step} could not run again: {_first_line(error)}")
            finally:
                self.attempt = 0
        elif saved is not None:
            self.notes.append(f"step {self.step} was not run again: {saved.why_not}")
        self._saved = None
        self.phase = "update"

    def _again(self, saved: Saved, attempt: int) -> None:
        if not saved.gradients:
            self.notes.append(f"step {self.step} was not run again: no gradient entered the model's outputs")
            return
        self.attempt = attempt
        depth, self.thread.depth = self.thread.depth, 0
        try:
            with as_it_was(saved), torch.enable_grad():
                outputs = tensors_in(saved.root(*saved.args, **saved.kwargs))
                wanted = outermost(outputs, sorted(saved.gradients))
                gradients = [saved.gradients[index].clone() for index in wanted]
                torch.autograd.backward([outputs[index] for index in wanted], gradients)
        finally:
            self.thread.depth = depth

    def _after_update(self) -> None:
        if self.thread.busy or not self._open or os.getpid() != self._pid or self.rows is None:
            return
        self.phase = "update"
        self._weights()
        self._updated = {id(root): _version(root) for root in self._roots}
        self._open = False
        self._saved = None
        self._read.clear()
        self.rows.flush(self.step)
        if self.step >= self.steps:
            self.stop(ended=True)
            if self.leave:
                print(f"lab: {self.steps} steps recorded; the program is ended here", file=sys.stderr)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)

    def _weights(self) -> None:
        self.rows_of("weight", [pair for root in self._roots for pair in self._named(root)], self.phase)

    def _named(self, root: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """The weights of a root; of a second model with its prefix."""
        prefix = f"{type(root).__name__}{self._roots.index(root) + 1}." if root is not self._roots[0] else ""
        return [(prefix + plain_name(name, root), weight) for name, weight in root.named_parameters()]

    def _grads(self, kind: str, *, only_changed: bool = False) -> None:
        """Every gradient; or those that something changed since their backward, as a collective does."""
        weights = [pair for root in self._roots for pair in self._named(root)]
        with_grad = [(name, weight, weight.grad) for name, weight in weights if weight.grad is not None]
        versions = {id(weight): (id(grad), grad._version) for _, weight, grad in with_grad}
        named = [
            (name, grad)
            for name, weight, grad in with_grad
            if not (only_changed and self._read.get(id(weight)) == versions[id(weight)])
        ]
        self._read.update(versions)
        self.rows_of(kind, named, self.phase)


def _version(root: nn.Module) -> int:
    return sum(weight._version for weight in root.parameters())


def _first_line(text: object) -> str:
    return (str(text).strip().splitlines() or [repr(text)])[0][:300]


def _compiled(root: nn.Module) -> bool:
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None)
        for module in root.modules()
    )


def _facts(root: nn.Module, recorder: Training) -> dict[str, Any]:
    """Where this ran, for the verdict and the page."""
    device = next(root.parameters()).device
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "rank": recorder.rank,
        "world": recorder.world,
        "host": platform.node(),
        "device": gpu.name if gpu else f"{device.type} {platform.machine()}",
        "uuid": str(getattr(gpu, "uuid", "")) if gpu else "",
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "model": type(root).__name__,
        "level": recorder.level,
        "replicated": any(type(module).__name__ == "DistributedDataParallel" for module in root.modules()),
        "compiled": _compiled(root),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
