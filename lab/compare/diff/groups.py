"""The change of summed kernel time by phase, module, op or kernel: every launch is in one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from lab.compare.diff.places import Places, places_of
from lab.compare.side import Work
from lab.compare.units import Units
from lab.recordings.graphs.frames import class_of

KINDS = ("phase", "module", "op", "kernel")
BOTH, ONLY_A, ONLY_B = "both", "only in A", "only in B"
MUCH = 0.1  # of the kernel time in no known phase: said
NO_PHASE, NO_MODULE, NO_OP = "no known phase", "no module recorded", "no known op"
Path = tuple[str, ...]  # a phase, then modules, outermost first
CallsAndNs = tuple[float, float]  # per unit
NOTHING: CallsAndNs = (0.0, 0.0)


class Group(msgspec.Struct, kw_only=True):
    """One row: calls and ns per unit of what is in it alone; `change_ns` of all rows add up to the whole.

    on: both, only in A, only in B. With modules `times` counts the layers that the row stands for, and
    `whole_change_ns` is with all modules inside.
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
    sides = ({phase or NO_PHASE: sums for phase, sums in _phases(side).items()} for side in (a, b))
    return _grouped(*sides)


def by_op(a: Units, b: Units) -> list[Group]:
    return _grouped(*(_summed(units, 0, NO_OP) for units in (a, b)))


def by_kernel(a: Units, b: Units) -> list[Group]:
    return _grouped(*(_summed(units, 3, "unnamed") for units in (a, b)))


def by_module(a: Placed, b: Placed) -> list[Group]:
    """Phases and modules from the outermost in, in their order of launch; layers of one class are one row."""
    sides = [_by_class(side) for side in (a, b)]
    times = {
        path: max(len(side[path][1]) for side in sides if path in side) for side in sides for path in side
    }
    groups = []
    for path in _in_order(sides):
        (n_a, ns_a), (n_b, ns_b) = (side[path][0] if path in side else NOTHING for side in sides)
        if not path and not (n_a or n_b):
            continue
        inner_ns = [
            sum(sums[1] for inner, (sums, _) in side.items() if inner[: len(path)] == path) for side in sides
        ]
        names = [
            f"{name} x{times[path[: depth + 1]]}" if times[path[: depth + 1]] > 1 else name
            for depth, name in enumerate(path)
        ]
        groups.append(
            Group(
                key=" / ".join(names) or NO_MODULE,
                on=_on(path in sides[0], path in sides[1]) if path else _on(bool(n_a), bool(n_b)),
                n_a=n_a,
                n_b=n_b,
                ns_a=ns_a,
                ns_b=ns_b,
                change_ns=ns_b - ns_a,
                times=times[path],
                whole_change_ns=inner_ns[1] - inner_ns[0],
            )
        )
    return groups


def _by_class(side: Placed) -> dict[Path, tuple[CallsAndNs, set[Path]]]:
    """Own calls and ns of each path of classes, and of those above it; and the instances that it stands for,
    below one instance of what is around it."""
    place_of, paths = _paths(side)
    n, ns = _sums(side, place_of, len(paths))
    chosen = np.flatnonzero(side.units.chosen)
    chosen = chosen[np.argsort(side.work.launched_ns[chosen], kind="stable")]
    classes: dict[Path, tuple[CallsAndNs, set[Path]]] = {}
    instances: dict[Path, dict[Path, set[str]]] = {}
    for place in dict.fromkeys(place_of[chosen].tolist()):
        path = paths[place]
        for depth in range(len(path) + 1):
            kinds = tuple(map(class_of, path[:depth]))
            classes.setdefault(kinds, (NOTHING, set()))
            if depth:
                instances.setdefault(kinds, {}).setdefault(path[: depth - 1], set()).add(path[depth - 1])
        kinds = tuple(map(class_of, path))
        calls, time_ns = classes[kinds][0]
        classes[kinds] = ((calls + float(n[place]), time_ns + float(ns[place])), classes[kinds][1])
    for kinds, by_parent in instances.items():
        classes[kinds][1].update((name,) for name in max(by_parent.values(), key=len))
    return classes


def _in_order(sides: list[dict[Path, tuple[CallsAndNs, set[Path]]]]) -> list[Path]:
    """A's order of launch; what only B has stands behind what is around it."""
    order = [*sides[0], *(path for path in sides[1] if path not in sides[0])]
    rank = {path: index for index, path in enumerate(order)}
    return sorted(order, key=lambda path: [rank[path[:depth]] for depth in range(len(path) + 1)])


def path_at(side: Placed, row: int) -> Path:
    """Phase and modules around one operation of `Work`."""
    return places_at(side, np.array([row]))[0]


def places_at(side: Placed, rows: np.ndarray) -> list[Path]:
    """The distinct phases and modules around these operations of `Work`."""
    ops = side.work.order[rows]
    pairs = np.unique(np.stack([side.places.phase[ops], side.places.module[ops]], axis=1), axis=0)
    return [_path(side.places, phase, module) for phase, module in pairs.tolist()]


def _path(places: Places, phase: int, module: int) -> Path:
    return ((places.phases[phase],) if places.phases[phase] else ()) + places.modules[module]


def _paths(side: Placed) -> tuple[np.ndarray, list[Path]]:
    """The place of each operation (n,), in the order of `Work`, as an index of paths of phase and modules."""
    places, order = side.places, side.work.order
    pair = places.phase[order] * len(places.modules) + places.module[order]
    distinct, place_of = np.unique(pair, return_inverse=True)
    paths = [_path(places, *divmod(index, len(places.modules))) for index in distinct.tolist()]
    return place_of.reshape(-1), paths


def _sums(side: Placed, index: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Calls and ns per unit of each value of `index` (n,), which is in the order of `Work`."""
    chosen, count = side.units.chosen, side.units.count
    n = np.bincount(index[chosen], minlength=size) / count
    ns = np.bincount(index[chosen], weights=side.work.dur_ns[chosen], minlength=size) / count
    return n, ns


def _phases(side: Placed) -> dict[str, CallsAndNs]:
    n, ns = _sums(side, side.places.phase[side.work.order], len(side.places.phases))
    phases: dict[str, CallsAndNs] = {}
    for name, calls, time_ns in zip(side.places.phases, n.tolist(), ns.tolist(), strict=True):
        if calls:
            _add(phases, name, (calls, time_ns))
    return phases


def _summed(units: Units, part: int, unknown: str) -> dict[str, CallsAndNs]:
    """Sum operations by one part of their key."""
    sums: dict[str, CallsAndNs] = {}
    for key, calls_ns in units.sums.items():
        _add(sums, key[part] or unknown, calls_ns)
    return sums


def _add(sums: dict[str, CallsAndNs], name: str, calls_ns: CallsAndNs) -> None:
    calls, time_ns = sums.get(name, NOTHING)
    sums[name] = (calls + calls_ns[0], time_ns + calls_ns[1])


def _grouped(a: Mapping[str, CallsAndNs], b: Mapping[str, CallsAndNs]) -> list[Group]:
    """One row per key, largest change first."""
    groups = []
    for key in {**a, **b}:
        (n_a, ns_a), (n_b, ns_b) = a.get(key, NOTHING), b.get(key, NOTHING)
        on = _on(bool(n_a), bool(n_b))
        groups.append(Group(key=key, on=on, n_a=n_a, n_b=n_b, ns_a=ns_a, ns_b=ns_b, change_ns=ns_b - ns_a))
    return sorted(groups, key=lambda group: (-abs(group.change_ns), group.key))


def _on(in_a: bool, in_b: bool) -> str:
    return BOTH if in_a and in_b else ONLY_A if in_a else ONLY_B


def limits(a: Placed, b: Placed) -> list[str]:
    """What --by phase and --by module cannot see."""
    texts = []
    for name, side in (("A", a), ("B", b)):
        ns = {phase: ns for phase, (_, ns) in _phases(side).items()}
        unknown = ns.get("", 0.0) / sum(ns.values()) if sum(ns.values()) else 0.0
        if not any(ns):
            texts.append(f"{name} names no phase (forward, backward, ...)")
        elif unknown > MUCH:
            texts.append(f"{name}: {unknown:.0%} of the kernel time is in no phase that is known by its name")
        if not side.places.source:
            texts.append(
                f"{name} records no modules: with_modules=True, with_stack=True, or ranges around them"
            )
    if {a.places.source, b.places.source} == {"recorded", "ranges"}:
        texts.append("modules are the profiler's on one side and the program's ranges on the other")
    return texts
