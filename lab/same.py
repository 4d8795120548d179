"""Record what a model computes, to compare two runs of it with `lab same A B`.

    from lab import same
    with same.record(model, "a.same.jsonl.gz"):
        model(inputs).sum().backward()

    with same.nudged(model, seed=1), same.record(model, "floor1.same.jsonl.gz"):
        model(inputs).sum().backward()      # the noise floor: weights moved by at most one ulp

Nothing of a recorder stays on the model after the block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.errors import UsageError, needs

with needs("workload"):
    import torch
    from torch import Tensor, nn

    from lab.workload.recorder.bits import tensors_in
    from lab.workload.recorder.recorder import LEVELS, Recorder, plain_name, ranks
    from lab.workload.recorder.rows import Rows

__all__ = ("nudged", "record")


@contextlib.contextmanager
def record(
    model: nn.Module, path: str | Path, *, level: str = "op", reference: bool = True
) -> Iterator[None]:
    """Write to `path` (gzipped JSON lines) what `model` computes inside the block; of several ranks a folder.

    level: `op` for every dispatched op (eager models), `module` for the outputs of modules, `ends` for the
    model's inputs, outputs and gradients alone (a compiled model, whose graph the other levels would change).
    reference: call each op once more in float64 on its own inputs. Raises UsageError for a compiled model
    at another level than `ends`, and StorageError if `path` cannot be written.
    """
    if level not in LEVELS:
        raise UsageError(f"level {level!r} is not one of {', '.join(LEVELS)}")
    if hasattr(model, "_orig_mod") and level != "ends":
        raise UsageError(
            "the model is compiled, and recording modules and ops would change what is compiled",
            fix='record it with level="ends"',
        )
    recorder = _ModelRecorder(model, level, reference)
    rank, world = ranks()
    recorder.begin(Path(path) / f"rank{rank}.same.jsonl.gz" if world > 1 else Path(path))
    error_name = ""
    try:
        with recorder.patched(), recorder.counting_steps(), recorder.pushed():
            yield
    except BaseException as error:
        error_name = type(error).__name__
        raise
    finally:
        recorder.end(error_name)


class _ModelRecorder(Recorder):
    """Of one model: weights, then inputs, outputs and gradients by module, then gradients of weights."""

    def __init__(self, model: nn.Module, level: str, reference: bool) -> None:
        super().__init__(level, with_values=True, reference=reference)
        self._model = model
        self._is_wrapped = type(model).__name__ == "DistributedDataParallel"
        self.name_modules(model)

    def begin(self, path: Path) -> None:
        weight = next(self._model.parameters(), None)
        device = torch.device("cpu") if weight is None else weight.device
        meta = {
            "level": self.level,
            "rank": self.rank,
            "world": self.world,
            "dtype": "" if weight is None else str(weight.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        }
        self.rows = Rows(path, meta, packed=True)
        self._mark()
        self.rows_of("weight", self._named("parameters"), "start")
        self.rows_of("buffer", self._named("buffers"), "start")

    def _named(self, kind: str) -> list[tuple[str, Tensor]]:
        pairs = getattr(self._model, f"named_{kind}")()
        return [(plain_name(name, self._model), tensor) for name, tensor in pairs]

    @contextlib.contextmanager
    def counting_steps(self) -> Iterator[None]:
        """An optimizer's update ends a step; torch before 2.0 does not tell of it, and all is one step."""
        from torch.optim import optimizer

        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        handle = register(lambda *_: self._updated()) if register else None
        try:
            yield
        finally:
            if handle is not None:
                handle.remove()

    def _updated(self) -> None:
        if self.thread.busy or self.rows is None:
            return
        self._gradients()
        self.rows_of("weight", self._named("parameters"), "update")
        self.rows.flush(self.step)
        self.step += 1

    def _gradients(self) -> None:
        pairs = [(name, weight.grad) for name, weight in self._named("parameters") if weight.grad is not None]
        self.rows_of("grad", pairs, "end")

    def call(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        is_root = module is self._model
        if id(module) not in self.names or (self.level == "ends" and not is_root):
            return original(module, *args, **kwargs)
        if is_root:
            inputs = tensors_in([*args, *kwargs.values()])
            for index, (tensor, slot) in enumerate(zip(inputs, self.bits(inputs), strict=True)):
                self.row("input", "input", tensor, slot, out=index, phase="fwd")
        if is_root and self._is_wrapped:  # the model inside gives the same
            return original(module, *args, **kwargs)
        return self.module_call(original, module, args, kwargs)

    def end(self, error: str) -> None:
        """Every gradient, then the mark that nothing is cut off."""
        assert self.rows is not None
        for handle in self._handles:
            handle.remove()
        self._gradients()
        self.rows.flush(self.step)
        self.rows.close(error=error, unwritten=self.unwritten, notes=self.unwatched_note())
        self.forget_marks()


@contextlib.contextmanager
def nudged(model: nn.Module, seed: int) -> Iterator[None]:
    """Make a quarter of the weights one ulp larger and a quarter one ulp smaller inside the block."""
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    originals = [weight.detach().clone() for weight in weights]
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
            for weight, original in zip(weights, originals, strict=True):
                weight.copy_(original)
