"""The change of summed kernel time by phase, module, op or kernel: every launch is in one row.

Modules are the profiler's own (with_modules, with_stack), else the program's ranges. An operation of the
backward pass lies in the module of its forward operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import msgspec
import numpy as np

from lab.compare.units import Units
from lab.recordings.capture import MODULE, OP, Capture
from lab.recordings.graphs.frames import class_of, modules_of
from lab.recordings.phase_names import PhaseNames, is_step, is_warmup
from lab.recordings.projection import Projection, project
from lab.recordings.projection.sums import forward_operators
from lab.recordings.tables import Table
from lab.recordings.views import launch_calls

KINDS = ("phase", "module", "op", "kernel")
BOTH, ONLY_A, ONLY_B = "both", "only in A", "only in B"
MUCH = 0.1  # of the kernel time in no known phase: said
NO_PHASE, NO_MODULE, NO_OP = "no known phase", "no module recorded", "no known op"
DEEPEST = 64  # modules inside each other; what is deeper counts to the last of them
_LIBRARIES = ("nccl", "rccl", "cub::", "cublas", "cudnn")
Path = tuple[str, ...]  # a phase, then instances of modules, outermost first
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
    """One side's units, and where in the program each operation was launched: `place` (n,) indexes
    `places`, each a phase ("": not known) and the modules around it (none: ()). source of the modules:
    recorded, ranges, or ""."""

    units: Units
    place: np.ndarray
    places: list[tuple[str, Path]]
    source: str

    def paths_of(self, rows: np.ndarray) -> list[Path]:
        """The phase and the modules around each of these operations."""
        paths = [(phase, *modules) if phase else modules for phase, modules in self.places]
        return [paths[index] for index in self.place[rows].tolist()]

    @cached_property
    def sums(self) -> list[CallsAndNs]:
        """Calls and ns per unit of each of `places`."""
        chosen, count, size = self.units.chosen, self.units.count, len(self.places)
        n = np.bincount(self.place[chosen], minlength=size) / count
        ns = np.bincount(self.place[chosen], weights=self.units.work.dur_ns[chosen], minlength=size) / count
        return list(zip(n.tolist(), ns.tolist(), strict=True))

    def by_phase(self) -> dict[str, CallsAndNs]:
        return _summed(zip((phase or NO_PHASE for phase, _ in self.places), self.sums, strict=True))


def placed(units: Units) -> Placed:
    trace = units.work.trace
    projection = project(trace)
    path, origin = projection.ops.path, projection.ops.origin  # origin: the path of the forward operator
    of_modules = np.where(origin > 0, origin, path)
    ranges = projection.capture.ranges
    range_names = {
        projection.capture.name(index) for index in set(ranges.name_id[ranges.kind != OP].tolist())
    }

    @lru_cache(None)
    def names_of(node: int) -> Path:
        """The names of the ranges along a path of the tree, outermost first, without those of operators."""
        return tuple(name for name in projection.path(node) if name in range_names)

    modules_of_node: Callable[[int], Path] = lru_cache(None)(lambda node: _modules(names_of(node)))
    recorded: list[Path] = []
    if trace.meta.stacks and any(recorded := _recorded(trace, projection)):
        paths = list(dict.fromkeys(recorded))
        index_of = {path: index for index, path in enumerate(paths)}
        of_modules, modules_of_node = np.array([index_of[path] for path in recorded]), paths.__getitem__
    nodes, node_of = np.unique(
        np.stack([path, of_modules], axis=1)[units.work.order], axis=0, return_inverse=True
    )
    place_of = [
        (next(filter(None, map(_phase_of, reversed(names_of(outer)))), ""), modules_of_node(inner))
        for outer, inner in nodes.tolist()
    ]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(place_of))}
    place = np.array([numbers[place] for place in place_of], dtype=np.int64)[node_of.reshape(-1)]
    source = "recorded" if any(recorded) else "ranges" if any(inner for _, inner in numbers) else ""
    return Placed(units, place, [*numbers], source)


_phase_of = lru_cache(maxsize=4096)(PhaseNames().phase_of)


def _modules(names: Path) -> Path:
    return tuple(
        name.removeprefix(MODULE)
        for name in names
        if not (_phase_of(name) or is_step(name) or is_warmup(name))
        # The profiler's own marks, and what libraries write.
        and not ("#" in name or "::" in name or name.lower().startswith(_LIBRARIES))
    )[:DEEPEST]


def _recorded(trace: Capture, projection: Projection) -> list[Path]:
    """The modules around each operation's launch, else around its forward operator."""
    frames, ranges = modules_of(trace), projection.capture.ranges
    paths: list[Path] = [()] * len(trace.ops)

    def add(rows: np.ndarray, around: Table) -> None:
        modules = frames.modules(around.pid, around.tid, around.start_ns)
        for row, path in zip(rows.tolist(), modules, strict=True):
            paths[row] = path[:DEEPEST]

    call = launch_calls(trace)
    add(np.flatnonzero(call >= 0), trace.api.take(call[call >= 0]))
    bare = np.flatnonzero([not path for path in paths])
    forward = forward_operators(ranges, projection.instances.parent, projection.ops.range[bare])
    add(bare[forward >= 0], ranges.take(forward[forward >= 0]))
    return paths


def by_phase(a: Placed, b: Placed) -> list[Group]:
    return _grouped(a.by_phase(), b.by_phase())


def by_key(name: str, a: Units, b: Units) -> list[Group]:
    """name: op or kernel."""
    part, unknown = (0, NO_OP) if name == "op" else (3, "unnamed")
    return _grouped(
        *(_summed((key[part] or unknown, sums) for key, sums in units.sums.items()) for units in (a, b))
    )


def by_module(a: Placed, b: Placed) -> list[Group]:
    """Phases and modules from the outermost in, in their order of launch; layers of one class are one row."""
    sides = [_by_class(side) for side in (a, b)]
    times = {path: max(side[path][1] for side in sides if path in side) for side in sides for path in side}
    # A's order; what only B has stands behind what is around it.
    rank = {path: index for index, path in enumerate(times)}
    groups = []
    for path in sorted(rank, key=lambda path: [rank[path[:depth]] for depth in range(len(path) + 1)]):
        # Around all modules is what is in none; a side that has nothing there is not counted.
        own_sums = [side[path][0] if path in side and (path or side[path][0][0]) else None for side in sides]
        if own_sums == [None, None]:
            continue
        inner_ns = [
            sum(ns for inner, ((_, ns), _) in side.items() if inner[: len(path)] == path) for side in sides
        ]
        counts = [times[path[: depth + 1]] for depth in range(len(path))]
        names = [f"{name} x{n}" if n > 1 else name for name, n in zip(path, counts, strict=True)]
        group = _group(" / ".join(names) or NO_MODULE, *own_sums)
        group.times, group.whole_change_ns = times[path], inner_ns[1] - inner_ns[0]
        groups.append(group)
    return groups


def _by_class(side: Placed) -> dict[Path, tuple[CallsAndNs, int]]:
    """Own calls and ns of each path of classes, and of those above it; and how many instances it stands for,
    below one instance of what is around it."""
    chosen = np.flatnonzero(side.units.chosen)
    by_launch = chosen[np.argsort(side.units.work.launched_ns[chosen], kind="stable")]
    sums_of: dict[Path, CallsAndNs] = {}
    instances: dict[Path, dict[Path, set[str]]] = defaultdict(lambda: defaultdict(set))
    for index in dict.fromkeys(side.place[by_launch].tolist()):
        phase, modules = side.places[index]
        path = (phase, *modules) if phase else modules
        classes = tuple(map(class_of, path))
        for depth in range(len(path) + 1):
            sums_of.setdefault(classes[:depth], NOTHING)
            if depth:
                instances[classes[:depth]][path[: depth - 1]].add(path[depth - 1])
        sums_of[classes] = _added(sums_of[classes], side.sums[index])
    return {
        path: (calls_and_ns, max(map(len, instances[path].values()), default=0))
        for path, calls_and_ns in sums_of.items()
    }


def _summed(parts: Iterable[tuple[str, CallsAndNs]]) -> dict[str, CallsAndNs]:
    sums: dict[str, CallsAndNs] = {}
    for name, calls_and_ns in parts:
        if calls_and_ns[0]:
            sums[name] = _added(sums.get(name, NOTHING), calls_and_ns)
    return sums


def _added(sums: CallsAndNs, calls_and_ns: CallsAndNs) -> CallsAndNs:
    return sums[0] + calls_and_ns[0], sums[1] + calls_and_ns[1]


def _grouped(a: Mapping[str, CallsAndNs], b: Mapping[str, CallsAndNs]) -> list[Group]:
    """One row per key, largest change first."""
    groups = [_group(key, a.get(key), b.get(key)) for key in {**a, **b}]
    return sorted(groups, key=lambda group: (-abs(group.change_ns), group.key))


def _group(key: str, a: CallsAndNs | None, b: CallsAndNs | None) -> Group:
    (n_a, ns_a), (n_b, ns_b) = a or NOTHING, b or NOTHING
    on = ONLY_B if a is None else ONLY_A if b is None else BOTH
    return Group(key=key, on=on, n_a=n_a, n_b=n_b, ns_a=ns_a, ns_b=ns_b, change_ns=ns_b - ns_a)


def limits(a: Placed, b: Placed) -> list[str]:
    """What --by phase and --by module cannot see."""
    texts = []
    for name, side in (("A", a), ("B", b)):
        ns = {phase: ns for phase, (_, ns) in side.by_phase().items()}
        unknown = ns.get(NO_PHASE, 0.0) / (sum(ns.values()) or 1.0)
        if ns.keys() <= {NO_PHASE}:
            texts.append(f"{name} names no phase (forward, backward, ...)")
        elif unknown > MUCH:
            texts.append(f"{name}: {unknown:.0%} of the kernel time is in no phase that is known by its name")
        if not side.source:
            texts.append(
                f"{name} records no modules: with_modules=True, with_stack=True, or ranges around them"
            )
    if {a.source, b.source} == {"recorded", "ranges"}:
        texts.append("modules are the profiler's on one side and the program's ranges on the other")
    return texts
