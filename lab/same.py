"""Record what a model computes, to compare two runs of it with `lab same A B`.

    from lab import same
    with same.record(model, "a.same.jsonl.gz"):
        model(inputs).sum().backward()

    with same.nudged(model, seed=1), same.record(model, "floor1.same.jsonl.gz"):
        model(inputs).sum().backward()      # the noise floor: weights moved by at most one ulp

Nothing of a recorder stays on the model after the block. Beside a checksum of all bits a row has the L2 norm
and the largest magnitude of all elements, their sums under random signs (which elements that swap places or
change their sign move, and no norm shows), and some elements at places that depend on their number alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.errors import UsageError, needs

with needs("workload"):
    import torch
    from torch import Tensor, nn

    from lab.workload.recorder.bits import KEY, dense, mix64, tensors_in
    from lab.workload.recorder.recorder import LEVELS, Recorder, aliases, is_random, plain_name, ranks
    from lab.workload.recorder.rows import Rows, described

__all__ = ("nudged", "record")

SAMPLES = 32
SIGNS = 4  # sums under random signs
CHUNK = 1 << 22  # elements that are summed at once
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
UNINDEXED = ("torch.uint16", "torch.uint32", "torch.uint64")  # no GPU picks elements of these


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
        super().__init__(level, with_values=True)
        self._model, self._reference = model, reference
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

    def errors_of(self, func: Any, args: Any, kwargs: Any, outputs: Sequence[Tensor]) -> list[dict[str, Any]]:
        """Per output, its error against the same call in float64."""
        nothing: list[dict[str, Any]] = [{} for _ in outputs]
        floats = [tensor for tensor in outputs if tensor.is_floating_point()]
        if not self._reference or not floats or all(tensor.dtype == torch.float64 for tensor in floats):
            return nothing
        is_library = not str(func).startswith(("aten.", "aten::"))
        exact: list[Tensor] = []
        if not (aliases(func)[1] or is_random(func) or is_library):
            with contextlib.suppress(RuntimeError, NotImplementedError, TypeError, ValueError):
                exact = tensors_in(func(*_doubled(args), **_doubled(kwargs)))
        if len(exact) != len(outputs):  # or the op has no float64 kernel
            return nothing
        return [_error(output, reference) for output, reference in zip(outputs, exact, strict=True)]

    def facts(self, tensor: Tensor) -> dict[str, Any]:
        return facts_of(tensor, self.rank, self.world)

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


def facts_of(tensor: Tensor, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Shape, norms of all elements, counts of NaN and infinity, sampled elements; of a DTensor its part.

    With several ranks also what lets parts be added up: positions within the whole tensor.
    """
    plain = dense(tensor)
    if plain is None:
        return {}
    flat = plain.reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    size = flat.numel()
    positions = sample_places(size)
    words = flat.view(_WORDS[flat.element_size()]) if str(flat.dtype) in UNINDEXED else flat
    picked = words[torch.tensor(positions, device=flat.device)].view(flat.dtype) if size else flat
    parts = _parts(tensor, plain, flat, rank, world) if world > 1 else {}
    samples = {"sample_at": positions, "sample": picked.double().tolist()}
    return {**described(plain), **samples, **_norms(flat), **parts}


def _norms(flat: Tensor) -> dict[str, Any]:
    """L2 norm, largest magnitude, sums under random signs and counts over all elements, by parts: all in
    float64 may not fit."""
    squares, largest, nan, inf = 0.0, 0.0, 0, 0
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].double()
        squares += float(part.square().sum())
        largest = max(largest, float(part.abs().max()))
        nan, inf = nan + int(part.isnan().sum()), inf + int(part.isinf().sum())
    shape = (flat.numel(),)
    return {
        "l2": math.sqrt(squares) if squares >= 0 else squares,
        "absmax": math.nan if nan else largest,
        "nan": nan,
        "inf": inf,
        "signed": signed_sums(flat, shape, shape, (0,)),
    }


def signed_sums(
    flat: Tensor, shape: Sequence[int], full_shape: Sequence[int], offset: Sequence[int]
) -> list[float]:
    """Sums of elements under SIGNS signs that depend on their place in the whole tensor alone.

    flat: the elements of a part of `shape` that begins at `offset` (per dimension) of a tensor of shape
    `full_shape`; sums of parts add up to those of the whole.
    """
    sums = [0.0] * SIGNS
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].double()
        left = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
        place, stride = torch.zeros_like(left), 1
        for length, whole_length, begin in zip(shape[::-1], full_shape[::-1], offset[::-1], strict=True):
            place += (left % length + begin) * stride
            left, stride = torch.div(left, length, rounding_mode="floor"), stride * whole_length
        bits = mix64((place + 1) * KEY)
        for sign in range(SIGNS):
            sums[sign] += float(torch.where((bits >> (40 + sign)) & 1 == 0, part, -part).sum())
    return sums


def _parts(tensor: Tensor, plain: Tensor, flat: Tensor, rank: int, world: int) -> dict[str, Any]:
    """What this rank's part is of the whole tensor: by placements, else for each dimension it may be of."""
    shape = list(plain.shape) + ([2] if plain.is_complex() else [])
    if (placements := getattr(tensor, "placements", None)) is not None:
        mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
        coordinate, full_shape = list(mesh.get_coordinate() or ()), list(tensor.shape)
        names = [_placement(placement) for placement in placements]
        offset = part_offset(full_shape, names, list(mesh.shape), coordinate)
        facts_of_part = {"place": names, "coordinate": coordinate, "full_shape": full_shape}
        if offset is None or plain.is_complex():
            return facts_of_part
        return {**facts_of_part, "signed": signed_sums(flat, shape, full_shape, offset)}
    sharded = []
    for dimension, length in enumerate(shape):
        full_shape, offset = list(shape), [0] * len(shape)
        full_shape[dimension], offset[dimension] = length * world, rank * length
        sharded.append(signed_sums(flat, shape, full_shape, offset))
    return {"sharded": sharded}


def _placement(placement: Any) -> str:
    """`S0`, `R`, `P` for a sum; any other in torch's words."""
    kind = type(placement).__name__
    if kind == "Shard":
        return f"S{placement.dim}"
    is_sum = kind in ("Partial", "_Partial") and getattr(placement, "reduce_op", "sum") == "sum"
    return "P" if is_sum else "R" if kind == "Replicate" else str(placement)[:40]


def part_offset(
    full_shape: Sequence[int], placements: Sequence[str], mesh: Sequence[int], coordinate: Sequence[int]
) -> list[int] | None:
    """Where a part begins, per dimension, by the rule of torch.chunk; None where the rule is not known."""
    shape, offset = list(full_shape), [0] * len(full_shape)
    for name, ranks, index in zip(placements, mesh, coordinate, strict=True):
        if name in ("R", "P"):
            continue
        if name[0] != "S" or not name[1:].isdecimal():
            return None
        dimension = int(name[1:])
        chunk = -(-shape[dimension] // ranks)
        begin = min(chunk * index, shape[dimension])
        offset[dimension] += begin
        shape[dimension] = min(chunk, shape[dimension] - begin)
    return offset


def sample_places(size: int) -> list[int]:
    """Up to SAMPLES places, the same in every run for a tensor of `size` elements."""
    if size <= SAMPLES:
        return list(range(size))
    return sorted({((2 * k + 1) * 2654435761 % 2**32) * size >> 32 for k in range(SAMPLES)})


def _doubled(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(_doubled, value))
    return {key: _doubled(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _error(output: Tensor, exact: Tensor) -> dict[str, Any]:
    """The L2 norm of the error over that of the reference."""
    if not output.is_floating_point() or not output.numel() or not exact.is_floating_point():
        return {}
    reference = exact.double()
    off, size = output.double() - reference, float(reference.norm())
    if not size > 0:
        return {} if bool(off.any()) else {"local_rel": 0.0}
    return {"local_rel": float(off.norm()) / size}
