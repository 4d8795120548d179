"""The watch: every call of every module of a model, with what went in and what came out, counted.

While the model runs, each module only appends references to a list: no kernel is launched, nothing waits. When the
outermost call ends, all tensors are counted together (workload_count), and only if something is bad are the calls put
into order to name who made it (roles). References are counted and let go chunk by chunk where they would fill the memory.

What was written in place after it passed is not what passed. The first forward of a phase notes the versions of what was written
before (workload_events). Where there was nothing to note the next ones note nothing: a tensor of version 0 was never written. One
that has another version all the same is unknown in that forward, and from the next one on versions are noted.

A module's `forward` is replaced by a wrapper for as long as the watch lasts and put back afterwards; there are no torch
hooks at all, which would cost several microseconds a module and which torch 1.12 cannot give keyword arguments.
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.errors import LabError, UsageError
from lab.rooms.nan.watch.choose import choose_counter, counter_named
from lab.rooms.nan.watch.count import (
    KINDS,
    Counted,
    Counter,
    beginning,
    plain_counts,
)
from lab.rooms.nan.watch.events import PASSED, Batch, Forward, Seen, Template, Written
from lab.rooms.nan.watch.leaves import cached_pair, is_skipped, leaves
from lab.rooms.nan.watch.roles import IN, OUT, Birth, Call, Leaf, births, roles

NOTHING, VERSIONS, EVERYTHING = range(
    3
)  # what wrappers do beside appending: note versions, or count at once (or no watch)
WEIGH_EVERY = 3 * 64  # places of the list between two looks at the memory that references hold
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
    _totals: dict[str, float] | None = None
    _part: _Totals | None = field(default=None, repr=False, compare=False)

    @property
    def totals(self) -> dict[str, float]:
        """Counts by KINDS over the distinct tensors that modules put out; added up a few forwards at a time."""
        if self._totals is None and self._part is not None:
            self._part.settle()
        return self._totals or {}


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
        self._begin_count = beginning(self._count)
        self.budget_bytes = budget_bytes or _budget(device)
        self.check_weights = check_weights
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.weights: list[dict[str, Any]] = []
        self._weights_bad: set[int] = set()
        self._cache_bad: dict[int, int] = {}
        self._totals: dict[tuple[str, tuple[tuple[int, int, str], ...]], _Totals] = {}
        self._last: dict[str, _Totals] = {}
        self._kept = 0  # steps with rows
        self._plain = [((at, IN, "args[0]"), (at, OUT, "output")) for at in range(len(self._names))]
        self._events: list[Any] = []
        self._written: Written = {}
        self._never_written: dict[str, bool] = {}  # by phase; once False it stays so
        self._templates: dict[str, Template | None] = {}
        self._forward = Forward()
        self._replaced: list[tuple[nn.Module, Any, Any]] = []
        # Overwriting modules leave nothing to count later, so each tensor is counted at once.
        self._at_once = any(getattr(module, "inplace", False) is True for module in self._modules)
        self._weigh_at = WEIGH_EVERY
        self._mode = EVERYTHING  # the wrappers' one test; outside of a forward too
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
        self._ended, self._mode = True, EVERYTHING
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
        extend, events, gone, passed = self._events.extend, self._events, ~at, at + PASSED

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._mode:
                return self._carefully(at, forward, args, kwargs)
            extend((at, args, kwargs))
            output = forward(*args, **kwargs)
            extend((gone, output, None))
            if len(events) > self._weigh_at:
                self._weigh()
            return output

        def watched_leaf(*args: Any, **kwargs: Any) -> Any:
            # Nothing happens inside, so coming and going are one event.
            if kwargs or len(args) != 1:
                return watched(*args, **kwargs)
            return watched_input(args[0])

        def watched_input(input: Any) -> Any:
            if self._mode:
                return self._carefully_passed(at, forward, input)
            output = forward(input)
            extend((passed, input, output))
            return output

        # No arguments to pack where a module takes one of this name, as torch's own layers do: half of the price.
        one = leaf and _parameters(forward) == ["input"]
        return functools.wraps(forward)(watched_input if one else watched_leaf if leaf else watched)

    def _carefully(self, at: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call whose tensors' versions are noted, or that is counted at once, or that begins a forward."""
        if self._ended:
            return forward(*args, **kwargs)
        if not self._inside:
            return self._outermost(at, forward, args, kwargs)
        self._arrived(at, args, kwargs)
        output = forward(*args, **kwargs)
        self._returned(at, output)
        if len(self._events) > self._weigh_at:
            self._weigh()
        return output

    def _carefully_passed(self, at: int, forward: Callable[..., Any], taken: Any) -> Any:
        if self._mode == EVERYTHING:
            return self._carefully(at, forward, (taken,), {})
        before: Written = {}
        _note(taken, "args[0]", 0, before)
        output = forward(taken)
        place = len(self._events)
        self._events.extend((at + PASSED, taken, output))
        self._written.update({(place + 1, leaf): version for (_, leaf), version in before.items()})
        _note(output, "output", place + 2, self._written)
        return output

    def _arrived(self, at: int, args: Any, kwargs: Any) -> None:
        place = len(self._events)
        self._events.extend((at, args, kwargs))
        if self._mode == EVERYTHING:
            self._absorb()
        elif self._mode == VERSIONS:
            for number, value in enumerate(args):
                _note(value, f"args[{number}]", place + 1, self._written)
            for name, value in kwargs.items():
                if not is_skipped(name):
                    _note(value, name, place + 2, self._written)

    def _returned(self, at: int, output: Any) -> None:
        place = len(self._events)
        self._events.extend((~at, output, None))
        if self._mode == EVERYTHING:
            self._absorb()
        elif self._mode == VERSIONS:
            _note(output, "output", place + 1, self._written)

    def _outermost(self, at: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A whole forward: its events, then its count. An exception of the model passes on after the count."""
        self._forward = Forward(len(self.steps), *_phase(args, kwargs))
        self._inside, self._mode = True, self._mode_for(self._forward.phase, args, kwargs)
        # One token's activations fill no memory.
        self._weigh_at = sys.maxsize if self._forward.query_length == 1 else WEIGH_EVERY
        collecting = gc.isenabled()
        gc.disable()  # thousands of small events at once would set it off, over all of the program's objects
        try:
            self._arrived(at, args, kwargs)
            output = forward(*args, **kwargs)
            self._returned(at, output)
        finally:
            try:
                step = self._finish()
            finally:
                if collecting:
                    gc.enable()
        if step.bad_leaves and self.on_bad == "raise":
            place = step.births[0].place if step.births else "unknown"
            raise NonFiniteError(
                f"a NaN or an infinity was first seen {place}", where=f"step {step.number} ({step.phase})"
            )
        if step.bad_leaves and callable(self.on_bad):
            self.on_bad(step)
        return output

    def _mode_for(self, phase: str, args: Any, kwargs: Any) -> int:
        if self._at_once or _without_versions(args, kwargs):
            return EVERYTHING
        return NOTHING if self._never_written.get(phase) else VERSIONS

    def _weigh(self) -> None:
        """Count and let go what is held once it fills the budget."""
        held, events = self._forward, self._events
        for place in range(held.weighed, len(events), 3):
            at = events[place]
            value = events[place + 2] if at >= PASSED else events[place + 1] if at < 0 else None
            for one in (value,) if isinstance(value, Tensor) else value if isinstance(value, tuple) else ():
                if isinstance(one, Tensor):
                    held.bytes += one.numel() * one.element_size()
        held.weighed = len(events)
        self._weigh_at = held.weighed + WEIGH_EVERY
        if held.bytes > self.budget_bytes:
            self._absorb()

    # After the forward.

    def _absorb(self, last: bool = False) -> None:
        """Begin the count of all tensors of the events so far; labels stay in their place, unless these are the `last`."""
        forward, at_once = self._forward, self._mode == EVERYTHING
        whole = last and forward.empty() and not at_once
        found = self._absorb_as_before() if whole else None
        if found is None:
            batch = self._read(self._events, forward)
            if whole and not forward.stack:
                self._templates[forward.phase] = Template.of(self._events, forward, batch)
            counted = self._begin_count(batch.tensors)
            found = batch, Counted(counted.rows()) if at_once else counted
        forward.take(*found)
        if not at_once and found[0].ever_written:
            self._note_writes(found[0])
        if not last:
            found[0].let_go()
            self._let_go()
            self._weigh_at = WEIGH_EVERY

    def _absorb_as_before(self) -> tuple[Batch, Counted] | None:
        """A whole forward by the template of its phase; None if it is not its equal."""
        template = self._templates.get(self._forward.phase)
        values = template.read(self._events) if template is not None else None
        if template is None or values is None:
            return None
        tensors = template.distinct(values)
        counted = self._begin_count(tensors)  # first, so that the GPU counts what is being looked at
        batch = template.confirm(values, tensors, self._written)
        if batch is None:
            return None
        self._forward.calls, self._forward.cache = template.calls, template.cache(self._events)
        return batch, counted

    def _let_go(self) -> None:
        self._events.clear()
        self._written.clear()
        self._forward.weighed = self._forward.bytes = 0

    def _note_writes(self, batch: Batch) -> None:
        """Tensors were written in place: before they passed, afterwards, or who knows when."""
        first = self._never_written.get(self._forward.phase) is not False
        self._never_written[self._forward.phase] = False
        where = f"forward {self._forward.number}"
        if batch.overwritten and self._mode == VERSIONS and not self._at_once:
            self._at_once = True
            self.notes.append(
                f"{batch.overwritten} tensors were overwritten in place before the end of {where}; "
                "from then on each is counted at once"
            )
        elif batch.overwritten and first:
            self.notes.append(
                f"{batch.overwritten} tensors of {where} were written in place, as none before; "
                "whether after they passed is noted from then on"
            )

    def _read(self, events: list[Any], forward: Forward) -> Batch:
        """Events one by one, as they come: any model, any structure."""
        batch = Batch(None if self._mode == EVERYTHING else self._written)
        for place in range(0, len(events), 3):
            at, first, second = events[place : place + 3]
            if at >= PASSED:
                at -= PASSED
                call = forward.pass_through(at)
                batch.add(first, self._plain[at][0], call, (place + 1,))
                batch.add_output(at, second, call, self._plain[at][1], (place + 2,))
            elif at >= 0:
                call = forward.enter(at, second)
                batch.add_inputs(at, first, second, call, self._plain[at][0], place)
            else:
                call = forward.leave(~at)
                batch.add_output(~at, first, call, self._plain[~at][1], (place + 1,))
        return batch

    def _finish(self) -> Step:
        forward = self._forward
        try:
            self._absorb(last=True)
            seen = forward.read_out()
            return self._take(forward, seen)
        finally:
            self._inside, self._mode = False, EVERYTHING
            self._let_go()
            self._forward = Forward()

    def _take(self, forward: Forward, seen: Seen) -> Step:
        if self._mode == VERSIONS:
            self._never_written.setdefault(forward.phase, True)
        step = Step(forward.number, forward.phase, forward.query_length)
        bad = None
        if np.count_nonzero(seen.counts[:, :3]):
            bad = np.append(seen.counts[:, :3].sum(axis=1) > 0, False)[seen.index]  # -1 takes the added False
            step.bad_leaves = int(bad.sum())
            self._explain(step, forward, seen, bad)
        first_of_phase = forward.phase not in self._last
        self._sum_up(step, seen, bad)
        if (bad is not None and self._kept < MOST_KEPT) or (self.keep_rows and first_of_phase):
            self._kept += 1
            step.rows = self._rows(forward, seen, bad)
        self.steps.append(step)
        return step

    def _explain(self, step: Step, forward: Forward, seen: Seen, bad: np.ndarray) -> None:
        self._look_at_caches(step, forward)
        calls, told = self._story(forward, seen, bad)
        step.births = births(calls, told)
        outer = {at for at, call in enumerate(calls) if call.parent < 0}
        step.reached_output = any(leaf.bad and leaf.side == OUT and leaf.call in outer for leaf in told)

    def _story(self, forward: Forward, seen: Seen, bad: np.ndarray | None) -> tuple[list[Call], list[Leaf]]:
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
            Leaf(
                seq,
                seen.leaf_call[seq],
                label[1],
                label[2],
                None if seen.index[seq] < 0 else bad is not None and bool(bad[seq]),
            )
            for seq, label in enumerate(seen.labels)
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

    def _sum_up(self, step: Step, seen: Seen, bad: np.ndarray | None) -> None:
        """Add this forward to the running totals of forwards with the same calls."""
        part = self._last.get(step.phase)
        if part is None or (part.labels is not seen.labels and part.labels != seen.labels):
            key = (step.phase, tuple(seen.labels))
            if key not in self._totals:
                self._totals[key] = _Totals(step.phase, seen.labels, seen.leaf_dtypes(), seen.leaf_numel())
            part = self._last[step.phase] = self._totals[key]
        part.add(step, seen, bad)

    def _rows(self, forward: Forward, seen: Seen, bad: np.ndarray | None) -> list[Row]:
        calls, told = self._story(forward, seen, bad)
        of_call, shapes, rows = roles(calls, told), seen.shapes(), []
        for seq, (at, side, leaf) in enumerate(seen.labels):
            u = int(seen.index[seq])
            shape, dtype = (_sizes(shapes[u][0]), _dtype(shapes[u][1])) if u >= 0 else ("", "")
            values = tuple(seen.counts[u].tolist()) if u >= 0 else (-1.0,) * len(KINDS)
            rows.append(
                Row(
                    seq,
                    self._names[at],
                    type(self._modules[at]).__name__,
                    ("in", "out")[side],
                    leaf,
                    shape,
                    dtype,
                    values,
                    of_call[seen.leaf_call[seq]],
                )
            )
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
    """Running sums of forwards that made the same calls; many at a time, as every numpy call has its price."""

    def __init__(
        self, phase: str, labels: list[tuple[int, int, str]], dtypes: list[str], sizes: np.ndarray
    ) -> None:
        self.phase, self.labels, self.dtypes, self.sizes = phase, labels, dtypes, sizes
        self.calls = 0
        self.first_bad = np.full(len(labels), -1)
        self._counts = np.zeros((len(labels), len(KINDS)))
        self._counts[:, 3:] = -1
        self._waiting: list[tuple[Step, np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, step: Step, seen: Seen, bad: np.ndarray | None) -> None:
        """`bad` says for each leaf whether it is, None if none is."""
        self.calls += 1
        step._part = self
        self._waiting.append((step, seen.counts, seen.index, seen.put_out))
        if bad is not None:
            self.first_bad[(self.first_bad < 0) & bad] = step.number
        if len(self._waiting) >= MOST_WAITING:
            self.settle()

    @property
    def counts(self) -> np.ndarray:
        self.settle()
        return self._counts

    def settle(self) -> None:
        """Add up what waits. Forwards that were read by one template have the same arrays of places, and go together."""
        for _, equal in itertools.groupby(self._waiting, key=lambda one: (id(one[2]), id(one[3]))):
            steps, counts, index, put_out = zip(*equal, strict=True)
            stacked = np.stack(counts)
            for step, totals in zip(steps, _unique_totals(stacked[:, put_out[0]]), strict=True):
                step._totals, step._part = totals, None
            summed = np.concatenate([_summed(stacked), NOT_COUNTED])[index[0]]  # -1 takes the added row
            _add_counts(self._counts, summed)
        self._waiting.clear()


def _summed(counts: np.ndarray) -> np.ndarray:
    """(forwards, tensors, kinds) -> (tensors, kinds); -1 where none was counted."""
    summed = np.where((counts < 0).all(axis=0), -1, np.maximum(counts, 0).sum(axis=0))
    summed[:, 4] = counts[:, :, 4].max(axis=0)
    return summed


def _add_counts(counts: np.ndarray, more: np.ndarray) -> None:
    """Sum the counts and keep the largest magnitude; -1 is no number and only stays where both have none."""
    known = np.maximum(more[..., :4], 0)
    both_unknown = (counts[..., :4] < 0) & (more[..., :4] < 0)
    counts[..., :4] = np.where(both_unknown, -1, np.maximum(counts[..., :4], 0) + known)
    counts[..., 4] = np.maximum(counts[..., 4], more[..., 4])


def _note(value: Any, leaf: str, place: int, written: Written) -> None:
    """How often tensors had been written when they passed, if ever."""
    if isinstance(value, Tensor):
        if value._version:
            written[place, leaf] = value._version
    elif value is not None:
        name = "" if isinstance(value, Mapping) and leaf == "output" else leaf
        for inner, tensor in leaves(value, name):
            if tensor is not None and tensor._version:
                written[place, inner] = tensor._version


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


def _unique_totals(counts: np.ndarray) -> list[dict[str, float]]:
    """(forwards, distinct tensors, kinds) -> sums by kind of each forward: a tensor that passes through three modules counts once."""
    if not counts.shape[1]:
        return [dict.fromkeys(KINDS, 0.0) for _ in counts]
    summed = np.where(counts.min(axis=1) < 0, -1, counts.sum(axis=1))
    summed[:, 4] = counts[:, :, 4].max(axis=1)
    return [dict(zip(KINDS, row, strict=True)) for row in summed.tolist()]


def _by_kind(row: np.ndarray) -> dict[str, float]:
    return dict(zip(KINDS, row.tolist(), strict=True))


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _without_versions(args: Any, kwargs: Any) -> bool:
    """Whether tensors are made, or were, where torch counts no writes."""
    given = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return bool(torch.is_inference_mode_enabled()) or any(map(Tensor.is_inference, given))


def _counter(name: str | None, device: torch.device) -> tuple[str, Counter, str]:
    return choose_counter(device) if name is None else (name, counter_named(name), "asked for")


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
        raise UsageError(
            "a compiled model cannot be watched: its modules are fused into one program",
            fix="watch the model before torch.compile or torch.jit",
        )
    if "DataParallel" in kinds:
        raise UsageError(
            "nn.DataParallel copies the model for every call", fix="watch the model inside it, on one GPU"
        )
