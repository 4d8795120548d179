"""Who made the bad numbers of a forward: its calls and leaves in the form that `roles` reads."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.rooms.nan.watch.batch import Label
from lab.rooms.nan.watch.count import KINDS, Counter, plain_counts
from lab.rooms.nan.watch.forward import Forward, Seen
from lab.rooms.nan.watch.lane import RECOMPUTE
from lab.rooms.nan.watch.leaves import (
    CACHE,
    cached_pair,
    part_of_layer,
    positions_in,
    tensors_of_cache,
)
from lab.rooms.nan.watch.plain import as_counted, is_unbuilt, quiet
from lab.rooms.nan.watch.roles import IN, OUT, Birth, Call, Leaf, after_failure, births, roles, uncertain
from lab.rooms.nan.watch.steps import Row, Step

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
    """Explains forwards of one model; it remembers which weights and caches were already bad.

    allow: modules (patterns of names, or classes) in which infinities are no findings, or "+inf" and "-inf".
    """

    def __init__(self, names: list[str], modules: list[nn.Module], allow: Sequence[str] = ()) -> None:
        self._names, self._modules, self.allow = names, modules, frozenset(allow)
        self._absorbed: set[tuple[Label, str]] = set()  # where infinities were, and gone before any harm
        self._sentinels: set[str] = set()  # buffers that began with infinities
        self._weights_bad: set[int] = set()
        self.bad_weights: list[dict[str, Any]] = []
        self._bad_weights: dict[str, int] = {}  # name -> module; of buffers those that were bad at first
        self._versions: list[int] = []  # of all weights and buffers, when they were read last
        self._cache_bad: dict[int, int] = {}  # layer -> step since when
        self._cache_met: Callable[[], Any] = lambda: None  # the cache that this is said of
        self._cache_from = 0  # the first step that was looked into with it
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

    def judge(self, counted: Seen, forward: Forward, *, has_loss: bool) -> Judged:
        """What is bad in a forward: NaN, and the infinities that are not gone before its output.

        With a loss behind it, that decides: infinities that reach the output wait for it. Beside a NaN, those
        count that may have become it: plus infinity and what overflowed, at a place where it was never gone
        before. Minus infinity of any other kind is a mask, and the NaN was made of it later.
        """
        rows = counted.counts
        if counted.clean or not (rows[:, :3] > 0).any():
            return Judged(None)
        flags = np.concatenate([rows[:, :3] > 0, _overflowed(rows, counted.shapes())[:, None]], axis=1)
        flags = np.concatenate([flags, np.zeros((1, 4), bool)])[counted.index]  # -1 takes the added row
        nan, plus, minus, overflowed = flags.T
        plus, minus = (
            self._not_allowed(counted.labels, plus, POS),
            self._not_allowed(counted.labels, minus, NEG),
        )
        if self._weights_bad:  # what a bad weight gives is no mask
            from_weights = [module in self._weights_bad and side == OUT for module, side, _ in counted.labels]
            nan = nan | ((plus | minus) & np.array(from_weights, bool))
        infinities = [
            (counted.labels[leaf], sign)
            for sign, leaves_of in ((POS, plus & ~nan), (NEG, minus & ~nan))
            for leaf in np.flatnonzero(leaves_of)
        ]
        new_plus = plus & ~self._was_absorbed(counted.labels, plus, POS)
        new_any_minus = minus & ~self._was_absorbed(counted.labels, minus, NEG)
        new_minus = new_any_minus & overflowed
        if nan.any():
            return Judged(nan | new_plus | new_minus)
        if forward.phase == RECOMPUTE or not all(back for _, parent, back in forward.calls if parent < 0):
            bad = new_plus | new_minus  # it has no end that could tell what became of them
            return Judged(bad if bad.any() else None, infinities)
        outer = np.array(
            [side == OUT and forward.calls[call][1] < 0 for (_, side, _), call in _sides(counted)], bool
        )
        plus_out, minus_out = bool((plus & outer).any()), bool((minus & outer).any())
        if not (plus_out or minus_out):
            return Judged(None, infinities)
        if not has_loss:
            return Judged(plus if plus_out else minus, infinities)
        return Judged(
            new_plus & plus_out | new_minus & minus_out, infinities, waits=True, masks=new_any_minus
        )

    def absorb(self, infinities: Sequence[tuple[Label, str]]) -> list[str]:
        """These did no harm, and will be no suspects here again; in words."""
        self._absorbed.update(infinities)
        return [
            f"{sign} in {leaf} of {self._names[module] or 'the model itself'}"
            for (module, _, leaf), sign in infinities
        ]

    def all_absorbed(self, counted: Seen) -> bool:
        """Whether there is no NaN, and infinities only where they were gone before."""
        rows = counted.counts
        if (rows[:, 0] > 0).any():
            return False
        for column, sign in ((1, POS), (2, NEG)):
            leaves_of = np.append(rows[:, column] > 0, False)[counted.index]
            if not all((counted.labels[leaf], sign) in self._absorbed for leaf in np.flatnonzero(leaves_of)):
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

    def explain(
        self,
        step: Step,
        forward: Forward,
        counted: Seen,
        bad: np.ndarray,
        earlier: Sequence[Step],
        count: Counter,
    ) -> None:
        """Fill in the step's births, and whether bad numbers reached the model's output."""
        self._check_caches(step, forward, counted, earlier)
        calls, leaves = self._story(forward, counted, bad)
        step.births = births(calls, leaves)
        if self._weights_went_bad(step.births, count):
            calls, leaves = self._story(forward, counted, bad)
            step.births = births(calls, leaves)
        if step.births and step.births[0].kind in IN_CODE:
            self._read_other_weights(count)
            step.births[0] = self._doubted(step.births[0])
        if forward.failed:
            step.births = [after_failure(birth, forward.failed) for birth in step.births]
        step.extremes = self._extremes(counted, bad)
        outer = {index for index, call in enumerate(calls) if call.parent < 0}
        step.reached_output = any(leaf.bad and leaf.side == OUT and leaf.call in outer for leaf in leaves)

    def _extremes(self, counted: Seen, bad: np.ndarray) -> list[str]:
        """The largest magnitudes that the last modules put out before the first bad number."""
        shapes, extremes = counted.shapes(), dict[str, str]()
        for leaf in reversed(range(int(np.flatnonzero(bad)[0]))):
            (number, side, _), u = counted.labels[leaf], int(counted.index[leaf])
            if side == OUT and u >= 0 and counted.counts[u, 4] >= 0 and len(extremes) < MOST_EXTREMES:
                name, largest = self._names[number] or "the model itself", counted.counts[u, 4]
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
        versions = [_version(one) for module in self._modules for _, one in _own_tensors(module)]
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
        """The birth, or `unknown` if parts of a module that nobody called ran: its code may have run too.

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

    def rows(self, forward: Forward, counted: Seen, bad: np.ndarray | None) -> list[Row]:
        """The forward call by call."""
        calls, leaves = self._story(forward, counted, bad)
        of_call, shapes, rows = roles(calls, leaves), counted.shapes(), []
        for seq, (number, side, leaf) in enumerate(counted.labels):
            module, kind = self._names[number], type(self._modules[number]).__name__
            u = int(counted.index[seq])
            shape, dtype = (_sizes(shapes[u][0]), _dtype(shapes[u][1])) if u >= 0 else ("", "")
            values = tuple(counted.counts[u].tolist()) if u >= 0 else (-1.0,) * len(KINDS)
            role = of_call[counted.leaf_call[seq]]
            rows.append(Row(seq, module, kind, ("in", "out")[side], leaf, shape, dtype, values, role))
        return rows

    def _story(
        self, forward: Forward, counted: Seen, bad: np.ndarray | None
    ) -> tuple[list[Call], list[Leaf]]:
        calls = []
        doubt_of = {
            module: f"{leaf} of {self._names[module] or 'the model itself'} ({reason}) was not looked into"
            for batch in counted.batches
            for module, leaf, reason in batch.unseen
            if reason != CACHE
        }
        for number, (module, parent, returned) in enumerate(forward.calls):
            gone = not returned and forward.phase != "recompute"  # which may stop early by design
            since, doubt = forward.cached.get(number, (None, ""))
            doubt = doubt_of.get(module, doubt)
            calls.append(Call(self._names[module], parent, gone, module in self._weights_bad, since, doubt))
            if parent >= 0:
                calls[parent].children.append(number)
        leaves = []
        for seq, (_, side, name) in enumerate(counted.labels):
            unknown = counted.index[seq] < 0
            is_bad = None if unknown else bad is not None and bool(bad[seq])
            leaves.append(Leaf(seq, counted.leaf_call[seq], side, name, is_bad))
        return calls, leaves

    def _check_caches(self, step: Step, forward: Forward, counted: Seen, earlier: Sequence[Step]) -> None:
        """Whether the cache that a call takes was bad before this forward, or why that is not known."""
        skipped: dict[int, list[str]] = {}
        for number, leaf, reason in (one for batch in counted.batches for one in batch.unseen):
            if reason == CACHE:
                skipped.setdefault(number, []).append(leaf)
        if not skipped:
            return
        self._mind_which_cache(forward.cache, step.number)
        bad_steps = [one.number for one in earlier if one.bad_leaves and one.number >= self._cache_from]
        last_bad = bad_steps[-1] if bad_steps else -1
        hand_on = {
            parent for number, parent, _ in forward.calls if number in skipped
        }  # their caches to a child
        lengths = _query_lengths(counted)
        forward.cached = {
            call: self._of_cache(
                step, forward, call, skipped[number], lengths.get(call, step.query_length), last_bad
            )
            for call, (number, _, _) in enumerate(forward.calls)
            if number in skipped and call not in hand_on
        }

    def _mind_which_cache(self, cache: Any, step: int) -> None:
        """What was bad in a cache says nothing of another one."""
        if isinstance(cache, (tuple, list, dict)) or self._cache_met() is cache is not None:
            return  # containers are made anew at each step
        self._cache_bad.clear()
        self._cache_from = step
        try:
            self._cache_met = weakref.ref(cache)
        except TypeError:
            self._cache_met = lambda: None

    def _of_cache(
        self, step: Step, forward: Forward, call: int, leaves: Sequence[str], length: int, last_bad: int
    ) -> tuple[int | None, str]:
        """(since when keys and values of a call's layer are bad, why something else in its caches may be)"""
        layer, module = self._layer_of(forward, call), self._names[forward.calls[call][0]]
        taken = [(name, cache) for at, name, cache in forward.caches if at == call]
        caches = {name if isinstance(name, str) else f"args[{name}]": cache for name, cache in taken}
        since, doubt = None, ""
        for leaf in leaves:
            cache = caches.get(leaf, None if "." in leaf else forward.cache)
            part = part_of_layer(cache, layer) if layer is not None else None
            past = isinstance(cache, (tuple, list))  # what a call adds comes out in a new one
            pair = cached_pair(part) if length > 0 or past else None
            if layer is not None and pair is not None:
                end = positions_in(cache, layer, pair)
                begin = end if past else max(end - length, 0)
                bad_since = self._bad_since(layer, pair, begin, end, step.number, last_bad)
                since = bad_since if since is None else since
            description = f"the key/value cache {leaf} of {module or 'the model itself'}"
            doubt = doubt or _doubt_of_cache(description, cache if pair is None else part, pair or ())
        return since, doubt

    def _bad_since(
        self, layer: int, pair: tuple[Tensor, Tensor], begin: int, end: int, step: int, last_bad: int
    ) -> int | None:
        """Since which step keys or values before `begin`, where this forward's own are, were bad."""
        if _any_bad([side[..., :begin, :] for side in pair]):
            return self._cache_bad.setdefault(layer, last_bad)
        self._cache_bad.pop(layer, None)
        if _any_bad([side[..., :end, :] for side in pair]):
            self._cache_bad[layer] = step
        return None

    def _layer_of(self, forward: Forward, call: int) -> int | None:
        """Which part of a cache is this call's; a module that serves many layers is told at each call."""
        number = forward.calls[call][0]
        layer = getattr(self._modules[number], "layer_idx", None)
        return layer if isinstance(layer, int) and "layer_idx" not in self._parameters_of(number) else None


def _doubt_of_cache(description: str, held: Any, but: Sequence[Tensor]) -> str:
    """Why a bad number may have come from what a cache holds, `but` some tensors; empty if it cannot have."""
    parts = [None] if held is None else [*tensors_of_cache(held)]
    unrelated = [part for part in parts if part is not None and not any(part is known for known in but)]
    if _any_bad(unrelated):
        return f"{description} holds bad numbers, which may have been there before"
    unread = None in parts or any(as_counted(one)[1] for one in unrelated)
    return f"{description} was not looked into" if unread else ""


def _query_lengths(counted: Seen) -> dict[int, int]:
    """How many positions each call took: of its first input of (batch, positions, dim)."""
    lengths, shapes = dict[int, int](), counted.shapes()
    for call, (_, side, _), index in zip(counted.leaf_call, counted.labels, counted.index, strict=True):
        if side == IN and index >= 0 and len(shapes[index][0]) == 3:
            lengths.setdefault(call, int(shapes[index][0][1]))
    return lengths


def _own_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def _version(tensor: Tensor) -> int:
    """How often it was written; -1 where torch does not count that."""
    return -1 if tensor.is_inference() or is_unbuilt(tensor) else tensor._version


def _sides(counted: Seen) -> Iterator[tuple[Label, int]]:
    return zip(counted.labels, counted.leaf_call, strict=True)


def _overflowed(rows: np.ndarray, shapes: Sequence[tuple[torch.Size, torch.dtype]]) -> np.ndarray:
    """Which tensors hold finite numbers near the largest of their type: their infinities are no masks."""
    largest = np.array([_largest(dtype) for _, dtype in shapes])
    return rows[:, 4] * 8 >= largest


def _largest(dtype: torch.dtype) -> float:
    try:
        return torch.finfo(dtype).max
    except TypeError:  # torch 1.12 has none for some types
        return float("inf")


def _any_bad(tensors: list[Tensor]) -> bool:
    return bool(
        quiet(plain_counts, [part for tensor in tensors for part in as_counted(tensor)[0]])[:, :3].sum() > 0
    )


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")
