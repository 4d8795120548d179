"""The watch: every call of every module of a model, with what went in and what came out, counted.

While the model runs, each module only appends references to a list: no kernel is launched, nothing waits. When the
outermost call ends, all tensors are counted together (workload_count), and only if something is bad are the calls put
into order to name who made it (roles). References are let go chunk by chunk where they would fill the memory.

A module's `forward` is replaced by a wrapper for as long as the watch lasts and put back afterwards; there are no torch
hooks at all, which would cost several microseconds a module and which torch 1.12 cannot give keyword arguments.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.errors import LabError, UsageError
from lab.rooms.nan.roles import IN, OUT, Birth, Call, Leaf, births, roles
from lab.rooms.nan.workload_count import KINDS, Counter, choose_counter, kernel_named, plain_counts
from lab.rooms.nan.workload_events import Batch, Event, Forward, Template, output_version, versions
from lab.rooms.nan.workload_leaves import cached_pair, is_skipped

WEIGH_EVERY = 64  # events between two looks at the memory that references hold
MOST_WAITING = 64  # forwards whose counts wait to be added up
NOT_COUNTED = np.full((1, len(KINDS)), -1.0)
MOST_KEPT = 64  # forwards with bad numbers that are kept call by call


class NonFiniteError(LabError, FloatingPointError):
    """A watched forward made a NaN or an infinity, and the watch was asked to stop there."""

    exit_code = 1


@dataclass(frozen=True)
class Row:
    """One leaf of one call in a forward that is kept call by call."""

    seq: int
    module: str
    kind: str  # the module's class
    side: str
    leaf: str
    shape: str
    dtype: str
    counts: tuple[float, ...]  # by KINDS; -1: not counted
    role: str


@dataclass
class Step:
    """One forward of the whole model."""

    number: int
    phase: str
    query_length: int
    bad_leaves: int = 0
    reached_output: bool = False
    births: list[Birth] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)


@dataclass
class Total:
    """All calls of one module, leaf and phase together. `first_bad_step` is -1 while all were clean."""

    module: str
    kind: str
    side: str
    leaf: str
    phase: str
    dtype: str
    calls: int = 0
    numel: int = 0  # by the sizes of the first of equal forwards
    counts: np.ndarray = field(default_factory=lambda: np.zeros(len(KINDS)))
    first_bad_step: int = -1


def watch(model: nn.Module, **options: Any) -> Watch:
    """`with watch(model) as w: model(...)`; afterwards `w.first`, `w.steps`, `w.totals()`. See `Watch`."""
    return Watch(model, **options)


class Watch:
    """Watches a model between `__enter__` and `__exit__`.

    counter: "kernel", "bits", "norm" or "plain" (default: the best on the model's device). on_bad: "keep" goes on, "raise"
    raises NonFiniteError after the forward that went bad, a function is called with its `Step`. budget_bytes: what
    references may hold before they are counted and let go. keep_rows: keep call by call the first forward of a phase too.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        counter: str | None = None,
        on_bad: str | Callable[[Step], None] = "keep",
        budget_bytes: int | None = None,
        keep_rows: bool = True,
        check_weights: bool = True,
    ) -> None:
        if on_bad not in ("keep", "raise") and not callable(on_bad):
            raise UsageError(f"on_bad is {on_bad!r}", fix='"keep", "raise" or a function of a Step')
        _refuse_what_cannot_be_watched(model)
        self.model, self.on_bad, self.keep_rows = model, on_bad, keep_rows
        named = dict(model.named_modules())
        self._names, self._modules = list(named), list(named.values())
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.counter, self._count, self.counter_reason = _counter(counter, device)
        self.budget_bytes = budget_bytes or _budget(device)
        self.check_weights = check_weights
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.weights: list[dict[str, Any]] = []
        self._weights_bad: set[int] = set()
        self._cache_bad: dict[int, int] = {}
        self._totals: dict[tuple[str, tuple[tuple[int, int, str], ...]], _Totals] = {}
        self._last: dict[str, _Totals] = {}
        self._plain = [((at, IN, "args[0]"), (at, OUT, "output")) for at in range(len(self._names))]
        self._events: list[Event] = []
        self._templates: dict[str, Template | None] = {}
        self._forward = Forward()
        self._replaced: list[tuple[nn.Module, Any, Any]] = []
        # Overwriting modules leave nothing to count later, so each tensor is counted at once.
        self._at_once = any(getattr(module, "inplace", False) is True for module in self._modules)
        self._weigh_at = WEIGH_EVERY
        self._slow = True  # the wrappers' one test: outside a forward, counting at once, or no watch any more
        self._inside = self._ended = False

    # Coming and going.

    def __enter__(self) -> Watch:
        if self._replaced or self._ended:
            raise UsageError("this watch was entered before", fix="make a new one: watch(model)")
        if self.check_weights:
            self._look_at_weights()
        for at, module in enumerate(self._modules):
            mine = module.__dict__.get("forward")
            wrapper = self._wrap(at, module.forward, next(module.children(), None) is None)
            module.__dict__["forward"] = wrapper
            self._replaced.append((module, mine, wrapper))
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = self._slow = True
        for module, mine, wrapper in self._replaced:
            if module.__dict__.get("forward") is not wrapper:
                continue  # wrapped again by somebody else meanwhile: ours only passes on from now
            if mine is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = mine
        self._replaced.clear()

    # What was seen.

    @property
    def first(self) -> Birth | None:
        """The first place where bad numbers were made; None while all is finite."""
        return next((step.births[0] for step in self.steps if step.births), None)

    @property
    def first_step(self) -> Step | None:
        return next((step for step in self.steps if step.births), None)

    @property
    def clean(self) -> bool:
        return not any(step.bad_leaves for step in self.steps) and not self.weights

    def totals(self) -> list[Total]:
        """All calls, summed by module, side, leaf and phase."""
        found: dict[tuple[int, int, str, str], Total] = {}
        for part in self._totals.values():
            for at, (module, side, leaf) in enumerate(part.labels):
                key = (module, side, leaf, part.phase)
                total = found.get(key)
                if total is None:
                    kind = type(self._modules[module]).__name__
                    words = (self._names[module], kind, ("in", "out")[side], leaf, part.phase)
                    total = found[key] = Total(*words, part.dtypes[at])
                    total.counts[3:] = -1
                total.calls += part.calls
                total.numel += part.calls * int(part.sizes[at])
                _add_counts(total.counts, part.counts[at])
                bad_step = int(part.first_bad[at])
                if bad_step >= 0 and (total.first_bad_step < 0 or bad_step < total.first_bad_step):
                    total.first_bad_step = bad_step
        return list(found.values())

    # While the model runs.

    def _wrap(self, at: int, forward: Callable[..., Any], leaf: bool) -> Callable[..., Any]:
        """The stand-in for a module's forward. What it does for every call of every module is this, and no more."""
        append, events = self._events.append, self._events

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._slow:
                return self._slowly(at, forward, args, kwargs)
            if kwargs or len(args) != 1 or type(args[0]) is not Tensor:
                noted = versions(args, kwargs)
            else:
                noted = [args[0]._version]
            append((at, args, kwargs, noted))
            output = forward(*args, **kwargs)
            append((~at, output, None, output._version if type(output) is Tensor else output_version(output)))
            if len(events) > self._weigh_at:
                self._weigh()
            return output

        def watched_leaf(*args: Any, **kwargs: Any) -> Any:
            # Nothing happens inside, so coming and going are one event.
            if kwargs or len(args) != 1:
                return watched(*args, **kwargs)
            return watched_input(args[0])

        def watched_input(input: Any) -> Any:
            if self._slow or type(input) is not Tensor:
                return watched(input)
            version = input._version
            output = forward(input)
            after = output._version if type(output) is Tensor else output_version(output)
            append((at, input, version, output, after))
            return output

        # No arguments to pack where a module takes one of this name, as torch's own layers do: half of the price.
        one = leaf and _parameters(forward) == ["input"]
        return functools.wraps(forward)(watched_input if one else watched_leaf if leaf else watched)

    def _slowly(self, at: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._ended:
            return forward(*args, **kwargs)
        if not self._inside:
            return self._outermost(at, forward, args, kwargs)
        self._events.append((at, args, kwargs, None))
        self._absorb()
        output = forward(*args, **kwargs)
        self._events.append((~at, output, None, None))
        self._absorb()
        return output

    def _outermost(self, at: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A whole forward: its events, then its count. An exception of the model passes on after the count."""
        careful = self._at_once or _inference_mode()
        self._forward = forward_now = Forward(len(self.steps), *_phase(args, kwargs))
        # Sizes are asked for once a phase: reading them costs as much as counting.
        forward_now.keep_shapes = (
            forward_now.phase not in self._templates or self._last.get(forward_now.phase) is None
        )
        self._inside, self._slow = True, careful
        # One token's activations fill no memory.
        self._weigh_at = sys.maxsize if self._forward.query_length == 1 else WEIGH_EVERY
        collecting = gc.isenabled()
        gc.disable()  # thousands of small events at once would set it off, over all of the program's objects
        self._events.append((at, args, kwargs, None if careful else versions(args, kwargs)))
        try:
            output = forward(*args, **kwargs)
            self._events.append((~at, output, None, None if careful else output_version(output)))
        finally:
            self._inside, self._slow = False, True
            step = self._finish()
            if collecting:
                gc.enable()
        if step.bad_leaves and self.on_bad == "raise":
            place = step.births[0].place if step.births else "unknown"
            raise NonFiniteError(f"a NaN or an infinity was first seen {place}", where=f"step {step.number} ({step.phase})")  # fmt: skip
        if step.bad_leaves and callable(self.on_bad):
            self.on_bad(step)
        return output

    def _weigh(self) -> None:
        """Count and let go what is held once it fills the budget."""
        held = self._forward
        for event in self._events[held.weighed :]:
            value = event[3] if len(event) == 5 else event[1] if event[0] < 0 else None
            for one in (value,) if isinstance(value, Tensor) else value if isinstance(value, tuple) else ():
                if isinstance(one, Tensor):
                    held.bytes += one.numel() * one.element_size()
        held.weighed = len(self._events)
        self._weigh_at = held.weighed + WEIGH_EVERY
        if held.bytes > self.budget_bytes:
            self._absorb()

    # After the forward.

    def _absorb(self) -> None:
        """Count all tensors of the events so far and keep labels in their place."""
        forward, events = self._forward, self._events
        whole = not forward.calls
        template = self._templates.get(forward.phase) if whole else None
        batch = template.read(events, forward) if template else None
        if batch is None:
            batch = self._read(events, forward)
            if whole and not forward.stack and not self._at_once:
                self._templates[forward.phase] = Template.of(events, forward, batch)
        forward.take(batch, self._count(batch.tensors))
        events.clear()
        forward.weighed = forward.bytes = 0
        self._weigh_at = WEIGH_EVERY
        if batch.overwritten and not self._at_once:
            self._at_once = True
            self.notes.append(f"{batch.overwritten} tensors were overwritten in place before the end of forward "
                              f"{forward.number}; from then on each is counted at once")  # fmt: skip

    def _read(self, events: list[Event], forward: Forward) -> Batch:
        """Events one by one, as they come: any model, any structure."""
        batch = Batch()
        for number, event in enumerate(events):
            at = event[0]
            if len(event) == 5:
                _, taken, before, output, after = event
                call = forward.pass_through(at)
                batch.tensor(taken, before, self._plain[at][0], call, (number, 1))
                batch.add_output(at, output, after, call, self._plain[at][1], (number, 3))
            elif at >= 0:
                call = forward.enter(at, event[2])
                batch.add_inputs(at, event, call, self._plain[at][0], number)
            else:
                call = forward.leave(~at)
                batch.add_output(~at, event[1], event[3], call, self._plain[~at][1], (number, 1))
        return batch

    def _finish(self) -> Step:
        forward = self._forward
        self._absorb()
        counts, index = forward.counts(), forward.index()
        bad = np.append(counts[:, :3].sum(axis=1) > 0, False)[index]  # -1 takes the added False
        step = Step(forward.number, forward.phase, forward.query_length)
        step.bad_leaves = int(bad.sum())
        step.totals = _unique_totals(counts, forward.outputs(index))
        first_of_phase = all(other.phase != step.phase for other in self.steps)
        if step.bad_leaves:
            self._explain(step, forward, index, bad)
        self._sum_up(forward, counts, index, bad)
        kept = sum(1 for other in self.steps if other.rows)
        if (step.bad_leaves and kept < MOST_KEPT) or (self.keep_rows and first_of_phase):
            step.rows = self._rows(forward, counts, index, bad)
        self.steps.append(step)
        self._forward = Forward()
        return step

    def _explain(self, step: Step, forward: Forward, index: np.ndarray, bad: np.ndarray) -> None:
        self._look_at_caches(step, forward)
        calls, told = self._story(forward, index, bad)
        step.births = births(calls, told)
        outer = {at for at, call in enumerate(calls) if call.parent < 0}
        step.reached_output = any(leaf.bad and leaf.side == OUT and leaf.call in outer for leaf in told)

    def _story(self, forward: Forward, index: np.ndarray, bad: np.ndarray) -> tuple[list[Call], list[Leaf]]:
        """The forward as roles.py wants it."""
        calls = []
        for number, (at, parent, returned) in enumerate(forward.calls):
            layer = getattr(self._modules[at], "layer_idx", None)
            since = self._cache_bad.get(layer) if isinstance(layer, int) else None
            since = since if since is not None and since < forward.number else None
            calls.append(Call(self._names[at], parent, not returned, at in self._weights_bad, since))
            if parent >= 0:
                calls[parent].children.append(number)
        told = [
            Leaf(seq, forward.leaf_call[seq], label[1], label[2], None if index[seq] < 0 else bool(bad[seq]))
            for seq, label in enumerate(forward.labels)
        ]
        return calls, told

    def _look_at_caches(self, step: Step, forward: Forward) -> None:
        """Which layers' keys or values are bad, and since when: what was there before this forward, and what it added."""
        earlier = [other.number for other in self.steps if other.bad_leaves]
        layers = {getattr(self._modules[at], "layer_idx", None) for at, _, _ in forward.calls}
        for layer in (one for one in layers if isinstance(one, int) and one not in self._cache_bad):
            pair = cached_pair(forward.cache, layer)
            if pair is None:
                continue
            if _any_bad([_before(one, step.query_length) for one in pair]):
                self._cache_bad[layer] = earlier[-1] if earlier else -1
            elif _any_bad(list(pair)):
                self._cache_bad[layer] = step.number

    def _sum_up(self, forward: Forward, counts: np.ndarray, index: np.ndarray, bad: np.ndarray) -> None:
        """Add this forward to the running totals of forwards with the same calls."""
        last = self._last.get(forward.phase)
        if last is None or (last.labels is not forward.labels and last.labels != forward.labels):
            key = (forward.phase, tuple(forward.labels))
            if key not in self._totals:
                sizes = forward.leaf_numel(index)
                self._totals[key] = _Totals(forward.phase, forward.labels, forward.leaf_dtypes(), sizes)
            last = self._last[forward.phase] = self._totals[key]
        last.add(counts, index, bad if bad.any() else None, forward.number)

    def _rows(self, forward: Forward, counts: np.ndarray, index: np.ndarray, bad: np.ndarray) -> list[Row]:
        calls, told = self._story(forward, index, bad)
        of_call = roles(calls, told)
        rows = []
        for seq, (at, side, leaf) in enumerate(forward.labels):
            u = int(index[seq])
            shape, dtype = (
                (_sizes(forward.shapes[u][0]), _dtype(forward.shapes[u][1])) if u >= 0 else ("", "")
            )
            values = tuple(counts[u].tolist()) if u >= 0 else (-1.0,) * len(KINDS)
            rows.append(Row(seq, self._names[at], type(self._modules[at]).__name__, ("in", "out")[side], leaf,
                            shape, dtype, values, of_call[forward.leaf_call[seq]]))  # fmt: skip
        return rows

    def _look_at_weights(self) -> None:
        """Parameters and buffers once; bad ones are in `weights`, and their modules known as producers."""
        owned = [
            (at, name, tensor)
            for at, module in enumerate(self._modules)
            for name, tensor in [*module.named_parameters(recurse=False), *_numbers_of(module)]
            if tensor.is_floating_point() and tensor.device.type != "meta"
        ]
        counts = self._count([tensor for _, _, tensor in owned]) if owned else np.zeros((0, len(KINDS)))
        for (at, name, tensor), row in zip(owned, counts, strict=True):
            if row[:3].sum() > 0:
                self._weights_bad.add(at)
                path = f"{self._names[at]}.{name}".lstrip(".")
                self.weights.append({"name": path, "shape": _sizes(tensor.shape), **_by_kind(row)})


def _parameters(forward: Callable[..., Any]) -> list[str]:
    """Names of what a module's forward takes; none where Python cannot tell."""
    try:
        return list(inspect.signature(forward).parameters)
    except (TypeError, ValueError):
        return []


class _Totals:
    """Running sums of forwards that made the same calls; a few at a time, as every numpy call has its price."""

    def __init__(
        self, phase: str, labels: list[tuple[int, int, str]], dtypes: list[str], sizes: np.ndarray
    ) -> None:
        self.phase, self.labels, self.dtypes, self.sizes = phase, labels, dtypes, sizes
        self.calls = 0
        self.first_bad = np.full(len(labels), -1)
        self._counts = np.zeros((len(labels), len(KINDS)))
        self._counts[:, 3:] = -1
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, counts: np.ndarray, index: np.ndarray, bad: np.ndarray | None, step: int) -> None:
        """The counts of distinct tensors, and for each leaf which of them it is; `bad` is None if none is."""
        self.calls += 1
        self._waiting.append((counts, index))
        if bad is not None:
            self.first_bad[(self.first_bad < 0) & bad] = step
        if len(self._waiting) >= MOST_WAITING:
            self._settle()

    @property
    def counts(self) -> np.ndarray:
        self._settle()
        return self._counts

    def _settle(self) -> None:
        for counts, index in self._waiting:
            _add_counts(self._counts, np.concatenate([counts, NOT_COUNTED])[index])  # -1 takes the added row
        self._waiting.clear()


def _add_counts(counts: np.ndarray, more: np.ndarray) -> None:
    """Sum the counts and keep the largest magnitude; -1 is no number and only stays where both have none."""
    known = np.maximum(more[..., :4], 0)
    both_unknown = (counts[..., :4] < 0) & (more[..., :4] < 0)
    counts[..., :4] = np.where(both_unknown, -1, np.maximum(counts[..., :4], 0) + known)
    counts[..., 4] = np.maximum(counts[..., 4], more[..., 4])


def _phase(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, int]:
    """prefill or decode by the length of the query, `forward` for a model that has none."""
    for name in ("input_ids", "inputs_embeds", "decoder_input_ids"):
        if isinstance(kwargs.get(name), Tensor):
            return _by_length(kwargs[name])
    if args and isinstance(args[0], Tensor) and args[0].dim() == 2 and not args[0].is_floating_point():
        return _by_length(args[0])
    return "forward", 0


def _by_length(tensor: Tensor) -> tuple[str, int]:
    length = int(tensor.shape[1]) if tensor.dim() > 1 else 1
    return ("prefill" if length > 1 else "decode"), length


def _before(cached: Tensor, query_length: int) -> Tensor:
    """The positions that were in a cache of shape (batch, heads, positions, dim) before this forward."""
    return cached[..., : max(cached.shape[-2] - query_length, 0), :]


def _numbers_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers but for masks, in which -inf is legal."""
    return [(name, tensor) for name, tensor in module.named_buffers(recurse=False) if not is_skipped(name)]


def _any_bad(tensors: list[Tensor]) -> bool:
    return bool(plain_counts(tensors)[:, :3].sum() > 0)


def _unique_totals(counts: np.ndarray, chosen: np.ndarray) -> dict[str, float]:
    """Counts over distinct tensors: one that passes through three modules counts once."""
    if not chosen.any():
        return dict.fromkeys(KINDS, 0.0)
    rows = counts[chosen]
    summed = np.where(rows[:, :4].min(axis=0) < 0, -1, rows[:, :4].sum(axis=0))
    return dict(zip(KINDS, [*summed.tolist(), float(rows[:, 4].max())], strict=True))


def _by_kind(row: np.ndarray) -> dict[str, float]:
    return dict(zip(KINDS, row.tolist(), strict=True))


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _inference_mode() -> bool:
    return bool(torch.is_inference_mode_enabled())


def _counter(name: str | None, device: torch.device) -> tuple[str, Counter, str]:
    return choose_counter(device) if name is None else (name, kernel_named(name), "asked for")


def _budget(device: torch.device) -> int:
    """A quarter of the free memory, at most 4 GiB."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(free // 4, 4 << 30)
    return 1 << 30


def _refuse_what_cannot_be_watched(model: nn.Module) -> None:
    """Models whose modules do not run as Python calls one by one."""
    kinds = {type(module).__name__ for module in model.modules()}
    if isinstance(model, torch.jit.ScriptModule) or "OptimizedModule" in kinds:
        raise UsageError("a compiled model cannot be watched: its modules are fused into one program",
                         fix="watch the model before torch.compile or torch.jit")  # fmt: skip
    if "DataParallel" in kinds:
        raise UsageError(
            "nn.DataParallel copies the model for every call", fix="watch the model inside it, on one GPU"
        )
