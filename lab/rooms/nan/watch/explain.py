"""Who made the bad numbers of a forward, and what is reported of it: a Step, its Rows, the Totals."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.rooms.nan.watch.count import KINDS, Counter, plain_counts
from lab.rooms.nan.watch.forward import RECOMPUTE, Forward, Label
from lab.rooms.nan.watch.leaves import (
    CACHE,
    as_counted,
    leaves,
    part_of_layer,
    quiet,
    version,
)
from lab.rooms.nan.watch.roles import IN, OUT, Birth, Call, Leaf, after_failure, births, roles, uncertain


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
    extremes: list[str] = field(default_factory=list)  # of the last modules before the first bad number
    totals: dict[str, float] = field(default_factory=dict)  # by KINDS, over the distinct outputs of modules


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


NOT_COUNTED = np.full((1, len(KINDS)), -1.0)


class RunningTotals:
    """Sums of forwards that made the same calls."""

    def __init__(self, phase: str, forward: Forward) -> None:
        self.phase, self.labels = phase, forward.labels
        self.dtypes, self.sizes = forward.leaf_dtypes(), forward.leaf_numel()
        self.calls = 0
        self.first_bad = np.full(len(self.labels), -1)
        self._counts = np.zeros((len(self.labels), len(KINDS)))
        self._counts[:, 3:] = -1
        self._index, self._sums = np.zeros(len(self.labels), np.int64), NOT_COUNTED

    def add(self, step: Step, forward: Forward, bad: np.ndarray | None) -> None:
        """`bad` says for each leaf whether it is bad; None if none is."""
        self.calls += 1
        step.totals = _totals_of(forward.rows, forward.put_out())
        if forward.leaf_rows is self._index:  # equal forwards share theirs: add tensors, and not leaves
            add_counts(self._sums, forward.rows)
        else:
            self._settle()
            self._index, self._sums = forward.leaf_rows, forward.rows.copy()
        if bad is not None:
            self.first_bad[(self.first_bad < 0) & bad] = step.number

    @property
    def counts(self) -> np.ndarray:
        self._settle()
        return self._counts

    def _settle(self) -> None:
        # A tensor that was overwritten has index -1, which takes the added row.
        add_counts(self._counts, np.concatenate([self._sums, NOT_COUNTED])[self._index])
        self._sums = np.full_like(self._sums, -1)


def add_counts(counts: np.ndarray, added: np.ndarray) -> None:
    """Add counts in place and keep the largest magnitude; -1 only stays where neither has a number."""
    if min(counts.min(initial=0), added.min(initial=0)) == 0:  # all is known, as of a GPU
        counts[..., :4] += added[..., :4]
        np.maximum(counts[..., 4], added[..., 4], out=counts[..., 4])
        return
    counted = np.maximum(added[..., :4], 0)
    both_unknown = (counts[..., :4] < 0) & (added[..., :4] < 0)
    counts[..., :4] = np.where(both_unknown, -1, np.maximum(counts[..., :4], 0) + counted)
    counts[..., 4] = np.maximum(counts[..., 4], added[..., 4])


def _totals_of(counts: np.ndarray, put_out: np.ndarray) -> dict[str, float]:
    """(distinct tensors, kinds) -> sums by kind: a tensor that passes through three modules counts once."""
    outputs = counts[put_out]
    summed = outputs.sum(axis=0)
    if outputs.min(initial=0) < 0:
        summed = np.where(outputs.min(axis=0) < 0, -1, summed)
    summed[4] = outputs[:, 4].max(initial=-1 if len(outputs) else 0)
    return dict(zip(KINDS, summed.tolist(), strict=True))


HOLDERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # programs call what lies in them
NOT_CALLED = "was not called"
IN_CODE = ("output", "between", "unknown")  # births that a module's own code may have made


POS, NEG = "+inf", "-inf"
MOST_EXTREMES = 4


@dataclass(frozen=True)
class Judged:
    """Which leaves of a forward are bad (None: none), and where infinities are that may do no harm."""

    bad: np.ndarray | None
    infinities: Sequence[tuple[Label, str]] = ()
    waits: bool = False  # until the loss that is made of the output has been looked at
    masks: np.ndarray | None = (
        None  # minus infinities as of masks: to blame if the loss is infinite and no NaN
    )


class Explainer:
    """Explains forwards of one model; it remembers which weights were already bad.

    allow: modules (patterns of names, or classes) in which infinities are allowed, or "+inf" and "-inf".
    """

    def __init__(self, names: list[str], modules: list[nn.Module], allow: Sequence[str] = ()) -> None:
        self._names, self._modules, self.allow = names, modules, frozenset(allow)
        self._absorbed: set[tuple[Label, str]] = set()  # where infinities were, and gone before any harm
        self._sentinels: set[str] = set()  # buffers that began with infinities
        self._weights_bad: set[int] = set()
        self.bad_weights: list[dict[str, Any]] = []
        self._bad_weights: dict[str, int] = {}  # name -> module; of buffers those that were bad at first
        self._versions: list[int] = []  # of all weights and buffers, when they were read last
        self._parameters: dict[int, list[str]] = {}

    def check_weights(
        self, count: Counter, only: Sequence[int] | None = None, sentinels: list[str] | None = None
    ) -> list[dict[str, Any]]:
        """Parameters and buffers that hold something bad now, of all modules or of some.

        Their modules are known as producers from now on. Buffers that hold infinities and no NaN go to
        `sentinels` if that is given: masks, and the smallest number that an observer has met so far.
        """
        owned = [
            (number, name, part)
            for number in (range(len(self._modules)) if only is None else only)
            for name, tensor in _own_tensors(self._modules[number])
            for part in as_counted(tensor)[0]
        ]
        counts = quiet(count, [part for _, _, part in owned]) if owned else np.zeros((0, len(KINDS)))
        bad_weights = []
        for (number, name, tensor), row in zip(owned, counts, strict=True):
            if row[:3].sum() > 0:
                path = f"{self._names[number]}.{name}".lstrip(".")
                if name in self._modules[number]._buffers and not row[0]:
                    if sentinels is not None:
                        sentinels.append(path)
                        self._sentinels.add(path)
                    if not row[1] or path in self._sentinels:
                        continue
                self._weights_bad.add(number)
                kinds = dict(zip(KINDS, row.tolist(), strict=True))
                is_known = path in self._bad_weights
                if not is_known and (sentinels is not None or name in self._modules[number]._parameters):
                    self._bad_weights[path] = number  # a buffer may have been spoiled by what is explained
                    self.bad_weights.append({"name": path, **kinds})
                bad_weights.append({"name": path, "shape": _sizes(tensor.shape), **kinds})
        return bad_weights

    def judge(self, forward: Forward, *, has_loss: bool) -> Judged:
        """What is bad in a forward: NaN, and the infinities that are not gone before its output.

        With a loss behind it, that decides: infinities that reach the output wait for it. Beside a NaN, those
        count that may have become it: plus infinity and what overflowed, at a place where it was never gone
        before. Minus infinity of any other kind is a mask, and the NaN was made of it later.
        """
        rows, labels = forward.rows, forward.labels
        if forward.clean or not (rows[:, :3] > 0).any():
            return Judged(None)
        flags = np.concatenate([rows[:, :3] > 0, _overflowed(rows, forward.shapes())[:, None]], axis=1)
        flags = np.append(flags, np.zeros((1, 4), bool), axis=0)[forward.leaf_rows]  # UNKNOWN: the added row
        nan, plus, minus, overflowed = flags.T
        plus, minus = self._not_allowed(labels, plus, POS), self._not_allowed(labels, minus, NEG)
        if self._weights_bad:  # what a bad weight gives is not a mask
            from_weights = [module in self._weights_bad and side == OUT for module, side, _ in labels]
            nan = nan | ((plus | minus) & np.array(from_weights, bool))
        infinities = [
            (labels[leaf], sign)
            for sign, leaves_of in ((POS, plus & ~nan), (NEG, minus & ~nan))
            for leaf in np.flatnonzero(leaves_of)
        ]
        new_plus = plus & ~self._was_absorbed(labels, plus, POS)
        new_any_minus = minus & ~self._was_absorbed(labels, minus, NEG)
        new_minus = new_any_minus & overflowed
        if nan.any():
            return Judged(nan | new_plus | new_minus)
        if forward.phase == RECOMPUTE or not all(back for _, parent, back in forward.calls if parent < 0):
            bad = new_plus | new_minus  # it has no end that could tell what became of them
            return Judged(bad if bad.any() else None, infinities)
        sides = zip(labels, forward.leaf_call, strict=True)
        outer = np.array([side == OUT and forward.calls[call][1] < 0 for (_, side, _), call in sides], bool)
        plus_out, minus_out = bool((plus & outer).any()), bool((minus & outer).any())
        if not (plus_out or minus_out):
            return Judged(None, infinities)
        if not has_loss:
            return Judged(plus if plus_out else minus, infinities)
        return Judged(
            new_plus & plus_out | new_minus & minus_out, infinities, waits=True, masks=new_any_minus
        )

    def absorb(self, infinities: Sequence[tuple[Label, str]]) -> list[str]:
        """These did no harm, and will be no suspects here again; a sentence for each."""
        self._absorbed.update(infinities)
        return [
            f"{sign} in {leaf} of {self._names[module] or 'the model itself'}"
            for (module, _, leaf), sign in infinities
        ]

    def all_absorbed(self, forward: Forward) -> bool:
        """Whether NaN is absent, and infinities only where they were gone before."""
        rows, labels = forward.rows, forward.labels
        if (rows[:, 0] > 0).any():
            return False
        for column, sign in ((1, POS), (2, NEG)):
            leaves_of = np.append(rows[:, column] > 0, False)[forward.leaf_rows]
            if not all((labels[leaf], sign) in self._absorbed for leaf in np.flatnonzero(leaves_of)):
                return False
        return True

    def _was_absorbed(self, labels: Sequence[Label], flags: np.ndarray, sign: str) -> np.ndarray:
        return np.array(
            [bool(flag) and (labels[n], sign) in self._absorbed for n, flag in enumerate(flags)], bool
        )

    def _not_allowed(self, labels: Sequence[Label], flags: np.ndarray, sign: str) -> np.ndarray:
        if not self.allow or not flags.any():
            return flags
        if sign in self.allow:
            return np.zeros_like(flags)
        return np.array([bool(flag) and not self._allows(labels[n][0]) for n, flag in enumerate(flags)], bool)

    def _allows(self, number: int) -> bool:
        name, kind = self._names[number], type(self._modules[number]).__name__
        return any(fnmatchcase(name, pattern) or pattern == kind for pattern in self.allow)

    def _parameters_of(self, number: int) -> list[str]:
        """The names that `forward` has for its arguments."""
        if number not in self._parameters:
            try:
                self._parameters[number] = [*inspect.signature(self._modules[number].forward).parameters]
            except (TypeError, ValueError):
                self._parameters[number] = []
        return self._parameters[number]

    def explain(self, step: Step, forward: Forward, bad: np.ndarray, count: Counter) -> None:
        """Fill in the step's births, and whether bad numbers reached the model's output."""
        calls, leaves = self._story(forward, bad)
        step.births = births(calls, leaves)
        if self._weights_went_bad(step.births, count):
            calls, leaves = self._story(forward, bad)
            step.births = births(calls, leaves)
        if step.births and step.births[0].kind in IN_CODE:
            self._read_other_weights(count)
            step.births[0] = self._doubted(step.births[0])
        if forward.failed:
            step.births = [after_failure(birth, forward.failed) for birth in step.births]
        step.extremes = self._extremes(forward, bad)
        outer = {index for index, call in enumerate(calls) if call.parent < 0}
        step.reached_output = any(leaf.bad and leaf.side == OUT and leaf.call in outer for leaf in leaves)

    def _extremes(self, forward: Forward, bad: np.ndarray) -> list[str]:
        """The largest magnitudes that the last modules put out before the first bad number."""
        shapes, extremes = forward.shapes(), dict[str, str]()
        for leaf in reversed(range(int(np.flatnonzero(bad)[0]))):
            (number, side, _), u = forward.labels[leaf], int(forward.leaf_rows[leaf])
            if side == OUT and u >= 0 and forward.rows[u, 4] >= 0 and len(extremes) < MOST_EXTREMES:
                name, largest = self._names[number] or "the model itself", forward.rows[u, 4]
                share = largest / _largest(shapes[u][1])
                extremes.setdefault(
                    name, f"{name}: largest {largest:.4g} ({share:.1%} of {_dtype(shapes[u][1])})"
                )
        return [*reversed(extremes.values())]

    def _weights_went_bad(self, births: Sequence[Birth], count: Counter) -> bool:
        """Read the weights of suspected modules again: they may have changed since they were read."""
        names = {birth.module for birth in births if birth.kind in ("output", "between", "unknown")}
        names |= {birth.after for birth in births} | {birth.before for birth in births}
        suspects = [
            number
            for number, name in enumerate(self._names)
            if name in names and number not in self._weights_bad
        ]
        return bool(self.check_weights(count, suspects))

    def _read_other_weights(self, count: Counter) -> None:
        """Code may use the weights of any module: all are read, unless none was written since last time."""
        versions = [version(one) for module in self._modules for _, one in _own_tensors(module)]
        if versions != self._versions:
            self._versions = versions
            self.check_weights(count)

    def _doubted(self, birth: Birth) -> Birth:
        """The birth, or `unknown` if code that holds it may have taken bad weights of another module."""
        candidates = [
            name for name, number in self._bad_weights.items() if self._names[number] != birth.module
        ]
        if not candidates:
            return self._doubted_by_skipped(birth)
        inside = [name for name in candidates if name.startswith(f"{birth.module}.") or not birth.module]
        near = inside or candidates
        others_text = f" and {len(near) - 1} more" if len(near) > 1 else ""
        bad = f"the weights {near[0]}{others_text} are bad"
        reason = f"{bad}, which its code may have used: that would be the birth"
        return uncertain(birth, f"{birth.unsure}; and {reason}" if birth.unsure else reason)

    def _doubted_by_skipped(self, birth: Birth) -> Birth:
        """The birth, or `unknown` if a module was not called though parts of it ran: its code may have run.

        And if it has a module that is not watched, such as one that was put into `_modules` by hand.
        """
        if stranger := self._stranger_in(birth.module):
            return uncertain(birth, f"{stranger}, which became part of the model unseen, may have made it")
        for name in (birth.after, birth.before):
            skipped = self._between(birth.module, name) if birth.kind == "between" else ""
            if skipped:
                reason = f"{skipped} {NOT_CALLED}, though {name} was: its code may have run, and made it"
                return uncertain(birth, reason)
        return birth

    def _stranger_in(self, name: str) -> str:
        met, outer = {*map(id, self._modules)}, self._modules[self._names.index(name)]
        inside = (path for path, module in outer.named_modules() if id(module) not in met)
        return next((f"{name}.{path}".lstrip(".") for path in inside), "")

    def _between(self, outer: str, name: str) -> str:
        """A module with code of its own that `name` lies in, and that lies in `outer`."""
        while "." in name and name.rpartition(".")[0] != outer:
            name = name.rpartition(".")[0]
            module = self._modules[self._names.index(name)] if name in self._names else None
            inside = name.startswith(f"{outer}.") or not outer
            if inside and module is not None and not isinstance(module, HOLDERS):
                return name
        return ""

    def rows(self, forward: Forward, bad: np.ndarray | None) -> list[Row]:
        """The forward call by call."""
        calls, leaves = self._story(forward, bad)
        of_call, shapes, rows = roles(calls, leaves), forward.shapes(), []
        for seq, (number, side, leaf) in enumerate(forward.labels):
            module, kind = self._names[number], type(self._modules[number]).__name__
            u = int(forward.leaf_rows[seq])
            shape, dtype = (_sizes(shapes[u][0]), _dtype(shapes[u][1])) if u >= 0 else ("", "")
            values = tuple(forward.rows[u].tolist()) if u >= 0 else (-1.0,) * len(KINDS)
            role = of_call[forward.leaf_call[seq]]
            rows.append(Row(seq, module, kind, ("in", "out")[side], leaf, shape, dtype, values, role))
        return rows

    def _story(self, forward: Forward, bad: np.ndarray | None) -> tuple[list[Call], list[Leaf]]:
        calls = []
        cache_doubts = self._cache_doubts(forward) if bad is not None else {}
        gaps = dict[tuple[int, int], str]()
        for module, side, leaf, reason in forward.unseen:
            if reason != CACHE:
                of = self._names[module] or "the model itself"
                gaps[module, side] = f"{leaf} of {of} ({reason}) was not looked into"
        for number, (module, parent, returned) in enumerate(forward.calls):
            gone = not returned and forward.phase != "recompute"  # which may stop early by design
            doubt = gaps.get((module, IN)) or cache_doubts.get(number, "")
            weights_bad, gap = module in self._weights_bad, gaps.get((module, OUT), "")
            calls.append(Call(self._names[module], parent, gone, weights_bad, doubt, gap))
            if parent >= 0:
                calls[parent].children.append(number)
        leaves = []
        for seq, (_, side, name) in enumerate(forward.labels):
            unknown = forward.leaf_rows[seq] < 0
            is_bad = None if unknown else bad is not None and bool(bad[seq])
            leaves.append(Leaf(seq, forward.leaf_call[seq], side, name, is_bad))
        return calls, leaves

    def _cache_doubts(self, forward: Forward) -> dict[int, str]:
        """Why what a call takes for its key/value cache may have been bad before, by call."""
        takers = {number for number, _, _, reason in forward.unseen if reason == CACHE}
        hand_on = {parent for number, parent, _ in forward.calls if number in takers}  # to a child
        doubts = {}
        for call, (number, _, _) in enumerate(forward.calls):
            if number in takers and call not in hand_on:
                caches = [cache for index, cache in forward.caches if index == call] or [forward.cache]
                layer = self._layer_of(forward, call)
                parts = [part_of_layer(cache, layer) if layer is not None else None for cache in caches]
                held = [cache if part is None else part for cache, part in zip(caches, parts, strict=True)]
                doubts[call] = _doubt_of_cache(self._names[number] or "the model itself", held)
        return doubts

    def _layer_of(self, forward: Forward, call: int) -> int | None:
        """Which part of a cache is this call's; a module that serves many layers gets it as an argument."""
        number = forward.calls[call][0]
        layer = getattr(self._modules[number], "layer_idx", None)
        return layer if isinstance(layer, int) and "layer_idx" not in self._parameters_of(number) else None


def _doubt_of_cache(module: str, held: Sequence[Any]) -> str:
    """Why a bad number may have come from what a cache holds; empty if it cannot have."""
    inside = [leaf for part in held for _, leaf in leaves(part, "", skips_caches=False)]
    readable = [leaf for leaf in inside if isinstance(leaf, Tensor)]
    if any_bad(readable):
        return f"the key/value cache of {module} holds bad numbers, which may have been there before"
    unread = len(readable) < len(inside) or any(as_counted(tensor)[1] for tensor in readable)
    return f"the key/value cache of {module} was not looked into" if unread or None in held else ""


def _own_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def _overflowed(rows: np.ndarray, shapes: Sequence[tuple[torch.Size, torch.dtype]]) -> np.ndarray:
    """Which tensors hold finite numbers near the largest of their type: their infinities are not masks."""
    largest = np.array([_largest(dtype) for _, dtype in shapes])
    return rows[:, 4] * 8 >= largest


def _largest(dtype: torch.dtype) -> float:
    try:
        return torch.finfo(dtype).max
    except TypeError:  # torch 1.12 has none for some types
        return float("inf")


def any_bad(tensors: Iterable[Tensor], count: Counter = plain_counts) -> bool:
    """Whether one of them holds a NaN or an infinity."""
    parts = [part for tensor in tensors for part in quiet(as_counted, tensor)[0]]
    return bool(parts) and bool((quiet(count, parts)[:, :3] > 0).any())


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")
