"""Whether two recordings are of the same work, axis by axis, and how much of an operation both sides know.

What is absent on either side is `not compared`, never equal. Both sides are compared as far as both go:
without ops on one side every operation would be gone there and new here, and tools write kernels' names in
other ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from lab.compare.side import Key, Work, memory_name
from lab.compare.units import Units

RECORDED = 0.05  # share of GPU operations with an op (of these, with shapes), from which on both count
COMMON = 0.5  # of GPU time in work that both sides have: with less they are not comparable
Detail = Callable[[Key], Hashable]  # what an operation is held by; None where it is not known
SAME, DIFFERS, NOT_COMPARED = "same", "differs", "not compared"
_OF_NSYS = re.compile(r"<unnamed>|\((?:bool|int|unsigned long|long)\)-?\d|\[lambda\(")


class Axis(msgspec.Struct, kw_only=True):
    """One way in which the work may be another. a, b: what each side says, "" if nothing; share: of the GPU
    time that is equal, of what is compared by operations."""

    name: str
    state: str
    a: str = ""
    b: str = ""
    share: float | None = None


def at_common_detail(
    of_a: Sequence[Work], of_b: Sequence[Work]
) -> tuple[tuple[list[Work], list[Work]], list[str]]:
    """The processes of both sides as far as the first of both go, and what was left out of the comparison."""
    a, b = of_a[0], of_b[0]
    notes = []
    ops = [_share(work.has_op) for work in (a, b)]
    shapes = [_share(work.is_key(lambda key: bool(key[1]))[work.has_op]) for work in (a, b)]
    drop: tuple[str, ...] = ()
    if max(ops) > RECORDED >= min(ops):
        lacking = "A" if ops[0] < ops[1] else "B"
        notes.append(f"{lacking} records no ops: kernels are compared without their ops and shapes")
        drop = ("op", "dims", "types")
    elif min(ops) > RECORDED and max(shapes) > RECORDED >= min(shapes):
        lacking = "A" if shapes[0] < shapes[1] else "B"
        notes.append(f"{lacking} records no shapes: ops are compared without them")
        drop = ("dims", "types")
    tools = [_tools_of_copies(work) for work in (a, b)]
    plain = _is_nsys_style(a) != _is_nsys_style(b) or (all(tools) and tools[0] != tools[1])
    if plain:
        notes.append("kernels' names are written in two ways: compared without arguments and casts")
    sides = [*of_a], [*of_b]
    if drop or plain:
        for side in sides:
            side[:] = [replace(work, drop=drop, plain=plain) for work in side]
    return sides, notes


def unlike_edges(a: Work, b: Work) -> list[str]:
    """A sentence where one side lost more of its calls at an edge of the recording than the other, and with
    them the ops of what they launched: the same kernel has an op here and none there."""
    bare_ns = [int(work.dur_ns[~work.has_op].sum()) for work in (a, b)]
    unlinked = [ns / max(int(work.dur_ns.sum()), 1) for ns, work in zip(bare_ns, (a, b), strict=True)]
    torn = a if unlinked[0] > unlinked[1] else b
    lost = any(
        lack.rule == "H" and lack.place in ("head", "tail") and (lack.share or 0.0) > RECORDED
        for lack in torn.trace.lacks
    )
    records_ops = min(_share(work.has_op) for work in (a, b)) > RECORDED
    if not lost or max(unlinked) - min(unlinked) <= RECORDED or not records_ops:
        return []
    return [
        f"{torn.trace.source.name}: {max(unlinked):.1%} of GPU time has no known op, because the calls that "
        f"launched it were not recorded, and {min(unlinked):.1%} on the other side"
    ]


def _share(mask: np.ndarray) -> float:
    return float(mask.sum()) / max(len(mask), 1)


def _tools_of_copies(work: Work) -> set[str]:
    """The tools that write the names of its copies and fills so."""
    return {memory[0] for key in work.keys[0] if (memory := memory_name(key[3]))}


def _is_nsys_style(work: Work) -> bool:
    return any(_OF_NSYS.search(key[3]) for key in work.keys[0])


def axes_of(a: Units, b: Units) -> list[Axis]:
    """World, rank, board, shapes, types, grids and blocks of both sides."""
    metas = a.work.trace.meta, b.work.trace.meta
    recorded: dict[str, list[int | None] | list[str]] = {
        "world size": [meta.world_size for meta in metas],
        "rank": [meta.rank for meta in metas],
        "board": [", ".join(dict.fromkeys(filter(None, meta.devices))) for meta in metas],
    }
    details: dict[str, Detail] = {
        "shapes": lambda key: key[:2] if key[0] and key[1] else None,
        "types": lambda key: (key[0], key[2]) if key[0] and key[2] else None,
    }
    axes = []
    for name, sides in recorded.items():
        texts = ["" if side is None else str(side) for side in sides]
        state = NOT_COMPARED if "" in texts else SAME if texts[0] == texts[1] else DIFFERS
        axes.append(Axis(name=name, state=state, a=texts[0], b=texts[1]))
    for name, detail in details.items():
        is_recorded = [any(map(detail, units.sums)) for units in (a, b)]
        axes.append(_measured(name, is_recorded, common_share(a, b, detail) if all(is_recorded) else None))
    for name in ("grid", "block"):
        launches = [_launches(units, name) for units in (a, b)]
        common = [key for key in launches[0] if key in launches[1]]
        share = None
        if common and a.work.trace.collector == b.work.trace.collector:  # two tools may count in two ways
            total_ns = sum(a.sums[key][1] for key in common)
            equal_ns = sum(a.sums[key][1] for key in common if launches[0][key] == launches[1][key])
            share = equal_ns / total_ns if total_ns else 1.0
        axes.append(_measured(f"{name}s", list(map(bool, launches)), share))
    return axes


def _measured(name: str, is_recorded: list[bool], share: float | None) -> Axis:
    """share: of the GPU time that is equal; None where it is not compared."""
    a, b = ("recorded" if recorded else "" for recorded in is_recorded)
    state = NOT_COMPARED if share is None else SAME if share == 1 else DIFFERS
    return Axis(name=name, state=state, a=a, b=b, share=share)


def _launches(units: Units, name: str) -> dict[Key, frozenset[tuple[int, ...]]]:
    """The distinct grids or blocks of each key, of those where all are recorded."""
    (names, key_of), ops = units.work.keys, units.work.ops
    rows = np.flatnonzero(units.chosen)
    sizes = np.stack([key_of[rows], *(getattr(ops, f"{name}_{axis}")[rows] for axis in "xyz")], axis=1)
    launches: dict[Key, set[tuple[int, ...]]] = {}
    for index, *dims in np.unique(sizes, axis=0).tolist() if len(sizes) else ():
        launches.setdefault(names[index], set()).add(tuple(dims))
    return {key: frozenset(dims) for key, dims in launches.items() if min(min(size) for size in dims) > 0}


def incomparable(axes: list[Axis], a: Units, b: Units) -> str:
    """Why the two are not the same work; "" if they may be."""
    by_name = {axis.name: axis for axis in axes}
    world, rank = by_name["world size"], by_name["rank"]
    if DIFFERS in (world.state, rank.state):
        sides = [
            f"rank {r or 'unknown'} of {w or 'unknown'}" for r, w in ((rank.a, world.a), (rank.b, world.b))
        ]
        return f"{sides[0]} on A and {sides[1]} on B: not one rank's change"
    if reason := _other_work(a, b):
        return reason
    below = {axis.name: axis.share for axis in axes if axis.share is not None and axis.share < COMMON}
    if "types" in below:
        return f"only {below['types']:.0%} of the GPU time is in ops of types that both have"
    for name in ("grids", "blocks"):
        if name in below and by_name["shapes"].state == NOT_COMPARED:
            differing = f"{name} differ for {1 - below[name]:.0%} of their GPU time"
            return (
                f"shapes were not recorded, and of the kernels that both have {differing}: "
                "another batch, sequence length or model"
            )
    return ""


def _other_work(a: Units, b: Units) -> str:
    if not all(any(key[0] for key in units.sums) for units in (a, b)):
        if (share := common_share(a, b, lambda key: key[3])) >= COMMON:
            return ""
        problem = (
            "in kernels of a name that both have, and no op is known on one side: another kernel cannot be "
            "told from another program"
        )
    elif (share := common_share(a, b, lambda key: key[:2] if key[0] else None)) >= COMMON:
        return ""
    elif common_share(a, b, lambda key: key[0] or None) >= COMMON:
        problem = (
            "in ops of shapes that both have: another batch, sequence length or model, or shapes were "
            "recorded on one side only"
        )
    else:
        problem = "in ops that both have: these are different programs"
    return f"only {100 * share:.0f} % of the GPU time is {problem}"


def without_times(a: Units, b: Units) -> str:
    """Why times cannot be compared; "" if they can."""
    bare = [name for name, units in (("A", a), ("B", b)) if not units.mean_ns("kernel_sum")]
    if not bare:
        return ""
    return f"no GPU operation of {' and '.join(bare)} has a duration: counts are compared, times are not"


def common_share(a: Units, b: Units, detail: Detail) -> float:
    """The share of the GPU time in what both sides have, of the side that has less of it; what is not known
    may be. Of the calls in a recording without any duration."""
    shares = []
    for units, further in ((a, b), (b, a)):
        common = {detail(key) for key in further.sums} | {None}
        timed = any(ns for _, ns in units.sums.values())
        sizes = {key: ns if timed else n for key, (n, ns) in units.sums.items()}
        total = sum(sizes.values())
        shared = sum(size for key, size in sizes.items() if detail(key) in common)
        shares.append(shared / total if total else 0.0)
    return min(shares)


def axes_words(axes: list[Axis]) -> list[str]:
    """What differs, and what was not compared."""
    lines = []
    absent: dict[str, list[str]] = {}
    for axis in axes:
        if axis.state == DIFFERS:
            equal = f"{axis.share:.0%} of the GPU time is equal" if axis.share is not None else ""
            lines.append(f"{axis.name}: {equal or f'{axis.a} -> {axis.b}'}")
        elif axis.state == NOT_COMPARED:
            sides = " and ".join(side for side, text in (("A", axis.a), ("B", axis.b)) if not text)
            reason = f"absent in {sides}" if sides else "recorded by two tools, or of no common kernel"
            absent.setdefault(reason, []).append(axis.name)
    return [*lines, *(f"not compared ({reason}): {', '.join(names)}" for reason, names in absent.items())]
