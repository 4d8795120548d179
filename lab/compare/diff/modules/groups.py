"""The change of summed kernel time by phase, module, op or kernel: every launch is in one row."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from lab.compare.diff.modules.places import Places, places_of
from lab.compare.diff.modules.tree import BOTH, ONLY_A, ONLY_B, Match, Node, lines, match
from lab.compare.side import Work
from lab.compare.units import Units

KINDS = ("phase", "module", "op", "kernel")
MUCH = 0.1  # of the kernel time in no known phase: said
NO_PHASE, NO_MODULE, NO_OP = "no known phase", "no module recorded", "no known op"


class Group(msgspec.Struct, kw_only=True):
    """One row: calls and ns per unit of what is in it alone; `change_ns` of all rows add up to the whole.

    on: both, renamed, only in A, only in B. With modules `times` counts the layers that the row stands for,
    and `whole_change_ns` is with all modules inside.
    """

    key: str
    on: str
    n_a: float
    n_b: float
    ns_a: float
    ns_b: float
    change_ns: float
    times: int = 1
    whole_change_ns: float | None = None


@dataclass(frozen=True)
class Placed:
    """One side's units with the place of each operation: rows (n,) of `Trace.kernels`, those of the units."""

    work: Work
    units: Units
    places: Places


def placed(work: Work, units: Units) -> Placed:
    return Placed(work, units, places_of(work.trace))


def by_phase(a: Placed, b: Placed) -> list[Group]:
    return _grouped(*({key or NO_PHASE: value for key, value in _phases(one).items()} for one in (a, b)))


def by_op(a: Units, b: Units) -> list[Group]:
    return _grouped(*(_summed(one, 0, NO_OP) for one in (a, b)))


def by_kernel(a: Units, b: Units) -> list[Group]:
    return _grouped(*(_summed(one, 3, "unnamed") for one in (a, b)))


def by_module(a: Placed, b: Placed) -> list[Group]:
    """The folded trees from the top down: phases, modules in their order of launch, layers as one row."""
    found = []
    for line in lines(matched(a, b)):
        if line.path and not (line.n_a or line.n_b or line.whole_ns_a or line.whole_ns_b):
            continue
        if not line.path and not (line.n_a or line.n_b):
            continue
        found.append(
            Group(
                key=" / ".join(line.path) or NO_MODULE,
                on=line.state if line.path else _on(line.n_a, line.n_b),
                n_a=line.n_a,
                n_b=line.n_b,
                ns_a=line.ns_a,
                ns_b=line.ns_b,
                change_ns=line.ns_b - line.ns_a,
                times=line.times,
                whole_change_ns=line.whole_ns_b - line.whole_ns_a,
            )
        )
    return found


def matched(a: Placed, b: Placed) -> Match:
    return match(tree_of(a), tree_of(b))


def tree_of(side: Placed) -> Node:
    """Phases, then modules; in order of the first launch."""
    pair, names = _pairs(side)
    n, ns = _sums(side, pair, len(names))
    keys, which = side.work.keys
    root = Node("")
    chosen = np.flatnonzero(side.units.chosen)
    chosen = chosen[np.argsort(side.work.launched_ns[chosen], kind="stable")]
    first: dict[int, int] = {}
    for place in pair[chosen].tolist():
        first.setdefault(place, len(first))
    ops = np.stack([pair[chosen], which[chosen]], axis=1)
    used, count = np.unique(ops, axis=0, return_counts=True) if len(ops) else (ops, np.empty(0))
    for place in sorted(first, key=first.__getitem__):
        node = root.at(names[place])
        node.n += float(n[place])
        node.ns += float(ns[place])
    for (place, key), times in zip(used.tolist(), count.tolist(), strict=True):
        node, op = root.at(names[place]), keys[key][0]
        node.ops[op] = node.ops.get(op, 0.0) + times / side.units.count
    return root


def path_at(side: Placed, row: int) -> tuple[str, ...]:
    """Phase and modules around one operation of `Work`."""
    return places_at(side, np.array([row]))[0]


def places_at(side: Placed, rows: np.ndarray) -> list[tuple[str, ...]]:
    """The distinct phases and modules around these operations of `Work`."""
    at = side.work.order[rows]
    places = side.places
    found = np.unique(np.stack([places.phase[at], places.module[at]], axis=1), axis=0)
    return [
        ((places.phases[phase],) if places.phases[phase] else ()) + places.modules[module]
        for phase, module in found.tolist()
    ]


def _pairs(side: Placed) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """The place of each operation (n,), in the order of `Work`, as an index of paths of phase and modules."""
    places, order = side.places, side.work.order
    pair = places.phase[order] * len(places.modules) + places.module[order]
    used, which = np.unique(pair, return_inverse=True)
    names = []
    for one in used.tolist():
        phase, module = divmod(one, len(places.modules))
        names.append(((places.phases[phase],) if places.phases[phase] else ()) + places.modules[module])
    return which.reshape(-1), names


def _sums(side: Placed, of: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Calls and ns per unit of each index in `of` (n,), which is in the order of `Work`."""
    chosen, count = side.units.chosen, side.units.count
    n = np.bincount(of[chosen], minlength=size) / count
    ns = np.bincount(of[chosen], weights=side.work.dur_ns[chosen], minlength=size) / count
    return n, ns


def _phases(side: Placed) -> dict[str, tuple[float, float]]:
    n, ns = _sums(side, side.places.phase[side.work.order], len(side.places.phases))
    found: dict[str, tuple[float, float]] = {}
    for name, calls, time in zip(side.places.phases, n.tolist(), ns.tolist(), strict=True):
        if calls:
            before = found.get(name, (0.0, 0.0))
            found[name] = (before[0] + calls, before[1] + time)
    return found


def _summed(units: Units, part: int, unknown: str) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for key, (n, ns) in units.sums.items():
        before = found.get(key[part] or unknown, (0.0, 0.0))
        found[key[part] or unknown] = (before[0] + n, before[1] + ns)
    return found


def _grouped(a: dict[str, tuple[float, float]], b: dict[str, tuple[float, float]]) -> list[Group]:
    """One row per key, largest change first."""
    none = (0.0, 0.0)
    found = []
    for key in {**a, **b}:
        (n_a, ns_a), (n_b, ns_b) = a.get(key, none), b.get(key, none)
        change = ns_b - ns_a
        found.append(
            Group(key=key, on=_on(n_a, n_b), n_a=n_a, n_b=n_b, ns_a=ns_a, ns_b=ns_b, change_ns=change)
        )
    return sorted(found, key=lambda one: (-abs(one.change_ns), one.key))


def _on(n_a: float, n_b: float) -> str:
    return BOTH if n_a and n_b else ONLY_A if n_a else ONLY_B


def limits(a: Placed, b: Placed) -> list[str]:
    """What --by phase and --by module cannot see."""
    found = []
    for side, one in (("A", a), ("B", b)):
        ns = {phase: ns for phase, (_, ns) in _phases(one).items()}
        bare = ns.get("", 0.0) / sum(ns.values()) if sum(ns.values()) else 0.0
        if not any(ns):
            found.append(f"{side} names no phase (forward, backward, ...)")
        elif bare > MUCH:
            found.append(f"{side}: {bare:.0%} of the kernel time is in no phase that is known by its name")
        if not one.places.source:
            found.append(
                f"{side} records no modules: with_modules=True, with_stack=True, or ranges around them"
            )
    if {a.places.source, b.places.source} == {"recorded", "ranges"}:
        found.append("modules are the profiler's on one side and the program's ranges on the other")
    return found
