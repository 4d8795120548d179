"""A run on several ranks against its one-rank twin: the first module that differs beyond rounding.

Parts of a tensor are put together by their placements: sums under random signs of its elements, each at its
place in the whole, add up over the parts, and no element has to leave its rank. A DTensor says what its parts
are. A plain tensor is a replica where it has the twin's shape, and a part along the one dimension in which it
is shorter by the number of ranks.

Rounding: with floors or a float64 reference of the twin, BEYOND times what they move the tensor. Without,
ROUNDING half ulps of its type times the square root of how many module outputs came before: rounding errors
of a chain add up like a random walk.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from lab.compare.same.floors import check_noise
from lab.compare.same.judge import BEYOND
from lab.compare.same.pairs import EPS, LEAST, floats, moved
from lab.compare.same.places import Key, keyed, place_of
from lab.compare.same.places import Place as PlaceOfRow
from lab.core.words import plural, ranks_text
from lab.workload.recorder.format import Recording, Row

ROUNDING = 16.0
CANCELS = 1e-3  # of its peers' size: a tensor below is held against this, because only rounding is left of it
EXACT = 0.01  # of a scale that is named, and of the mean's factor in the gradients of a part of the batch
LISTED = 20
KINDS = ("input", "weight", "module", "grad")


class Place(PlaceOfRow, kw_only=True):
    """A tensor of the twin that the ranks do not have.

    relative, threshold: the L2 norm of the difference over the tensor's.
    """

    relative: float | None
    threshold: float
    ranks: tuple[int, ...]  # whose parts or replicas are off; all of them for parts of a sum


class Verdict(msgspec.Struct, kw_only=True):
    """outcome: within rounding | differs | undecided | not comparable."""

    outcome: str
    reason: str
    world: int
    compared: int
    measured: bool  # whether the threshold rests on floors or a reference
    largest_ratio: float  # of a difference over its threshold
    first_place: Place | None = msgspec.field(name="first")
    places: list[Place]
    not_compared: dict[str, int]
    problems: list[str]
    notes: list[str] = []  # of the recorder: what it could not see


class _Whole(NamedTuple):
    """A tensor as some ranks have it together."""

    signed: np.ndarray
    squares: float | None  # None: the norm of a sum does not follow from its parts
    bad: tuple[int, int]  # NaN and infinities
    ranks: tuple[int, ...]


def judge_parallel(
    twin: Recording, ranks: Sequence[Recording], floors: Sequence[Recording], reference: Recording | None
) -> Verdict:
    """Compare in the order in which the twin computed. Pure. Raises UsageError for a floor that is not the
    twin's."""
    check_noise(twin, floors, reference)
    tables = {recording.rank: _keyed(recording) for recording in ranks}
    world = ranks[0].world
    rows = _in_time(_keyed(twin))
    noise = [*floors, *([reference] if reference else [])]
    limits = _Limits(rows, [_keyed(recording) for recording in noise])
    mean_factor = _mean_factor(rows, tables, world)
    places: list[Place] = []
    sums: list[Place] = []  # parts of a sum that nothing has added up yet
    not_compared: Counter[str] = Counter()
    compared, largest_ratio = 0, 0.0
    for key, row in rows.items():
        parts = _parts(tables, key)
        absent = sorted(tables.keys() - parts.keys())
        wholes = list(_wholes(row, parts, world)) if parts else []
        some_part = next(iter(parts.values()), row)
        limit, size = limits.of(key, row, some_part), limits.size(row)
        if parts and absent:
            explanation = f"{ranks_text(absent)} never computed it"
            places.append(_place(row, None, limits.of(key, row, row), absent, explanation))
            continue
        if not wholes:
            not_compared["its parts have no known place" if parts else "the ranks do not have it"] += 1
            continue
        compared += 1
        is_of_batch = row.phase == "bwd" and some_part.shape[:1] != row.shape[:1]
        factor = mean_factor if is_of_batch else 1.0
        off = [(_relative(row, whole, factor, size), whole) for whole in wholes]
        worst = max(relative for relative, _ in off)
        largest_ratio = max(largest_ratio, worst / limit)
        if worst <= limit:
            sums = []
            continue
        beyond = sorted({rank for relative, whole in off if relative > limit for rank in whole.ranks})
        if _is_sum(row, parts, limit, size):
            explanation = "each rank has a part of the sum: an all-reduce is missing"
            sums.append(_place(row, worst, limit, beyond, explanation))
            continue
        # A module whose parts the next one was to add up is where it began.
        places += [*sums, _place(row, worst, limit, beyond, _explain(row, off, limit))]
        sums = []
    # A sum that nothing added up until the end; behind another place it may follow from that.
    places = places or sums
    if lone := set().union(*tables.values()) - rows.keys():
        not_compared["only the ranks have it"] = len(lone)
    runs = {**{f"rank {run.rank}": run for run in ranks}, "twin": twin}
    verdict = Verdict(
        outcome="",
        reason="",
        world=world,
        compared=compared,
        measured=bool(noise),
        largest_ratio=largest_ratio if math.isfinite(largest_ratio) else 1e300,
        first_place=places[0] if places else None,
        places=places[:LISTED],
        not_compared=dict(not_compared),
        problems=[
            *(f"{name}: {lack}" for name, run in runs.items() for lack in run.lacks),
            *_mixed(twin, ranks),
        ],
        notes=[f"{name}: {note}" for name, run in runs.items() for note in run.notes],
    )
    verdict.outcome, verdict.reason = _outcome(verdict, len(rows))
    return verdict


def _mixed(twin: Recording, ranks: Sequence[Recording]) -> list[str]:
    """What is missing, or does not belong together."""
    numbers, world = {recording.rank for recording in ranks}, ranks[0].world
    problems = []
    if absent := sorted({*range(world)} - numbers):
        problems.append(f"no recording of {ranks_text(absent)}")
    if len(numbers) < len(ranks) or {recording.world for recording in ranks} != {world}:
        problems.append(
            "the recordings of ranks are of several runs: one rank twice, or other numbers of ranks"
        )
    if twin.world > 1:
        problems.append(f"the twin is one of {twin.world} ranks itself")
    return problems


def _outcome(verdict: Verdict, rows: int) -> tuple[str, str]:
    if not verdict.first_place and (not verdict.compared or 2 * verdict.compared < rows):
        return "not comparable", f"{verdict.compared:,} of the twin's {rows:,} tensors have a partner"
    if verdict.first_place:
        return "differs", f"first at {place_text(verdict.first_place)}"
    left_out = [f"{plural(n, 'tensor')} not compared ({why})" for why, n in verdict.not_compared.items()]
    if verdict.problems or left_out:
        return "undecided", "; ".join([*verdict.problems, *left_out])
    return "within rounding", f"{plural(verdict.compared, 'tensor')} of {plural(verdict.world, 'rank')}"


def _keyed(recording: Recording) -> dict[Key, Row]:
    """Rows that both can have, by what they are and how many of the same came before."""
    rows = (row for row in recording.rows if row.kind in KINDS)
    return keyed((row for row in rows if row.l2 is not None or row.nan or row.inf), _key)


def _key(row: Row) -> Key:
    name = row.op if row.kind in ("weight", "grad") else ""
    return (row.step, row.kind, row.phase, row.module, name, row.out)


def _parts(tables: Mapping[int, Mapping[Key, Row]], key: Key) -> dict[int, Row]:
    """What each rank has of a tensor of the twin."""
    return {rank: table[key] for rank, table in tables.items() if key in table}


def _in_time(rows: Mapping[Key, Row]) -> dict[Key, Row]:
    """Order as computed: gradients of weights, read at the end, from the last module to the first."""
    ordered: list[tuple[Key, Row]] = []
    for is_grad, group in groupby(rows.items(), key=lambda item: item[1].kind == "grad"):
        items = list(group)
        ordered += items[::-1] if is_grad else items
    return dict(ordered)


def _wholes(row: Row, parts: Mapping[int, Row], world: int) -> Iterator[_Whole]:
    """Each set of ranks that together has the tensor; none where that is not known."""
    some_part = next(iter(parts.values()))
    if some_part.place:
        groups: dict[tuple[int, ...], dict[int, Row]] = defaultdict(dict)
        for rank, part in parts.items():
            pairs = zip(part.place, part.coordinate, strict=False)
            groups[tuple(index for name, index in pairs if name == "R")][rank] = part
        is_known = all(name in ("R", "P") or name[0] == "S" for name in some_part.place) and some_part.signed
        if is_known and some_part.full_shape == row.shape:
            is_sum = "P" in some_part.place
            yield from (_added(g, [part.signed for part in g.values()], is_sum) for g in groups.values())
    elif some_part.shape == row.shape:
        yield from (_added({rank: part}, [part.signed], False) for rank, part in parts.items())
    else:
        shorter = [
            d for d, pair in enumerate(zip(some_part.shape, row.shape, strict=False)) if len({*pair}) > 1
        ]
        if len(some_part.shape) == len(row.shape) and len(shorter) == 1:
            dimension = shorter[0]
            if all(p.shape[dimension] * world == row.shape[dimension] and p.sharded for p in parts.values()):
                yield _added(parts, [part.sharded[dimension] for part in parts.values()], False)


def _added(parts: Mapping[int, Row], sums: Sequence[Sequence[float | None]], is_sum: bool) -> _Whole:
    squares = sum((part.l2 if part.l2 is not None else math.nan) ** 2 for part in parts.values())
    bad = sum(part.nan for part in parts.values()), sum(part.inf for part in parts.values())
    return _Whole(
        np.sum([floats(values, math.nan) for values in sums], axis=0),
        None if is_sum else squares,
        bad,
        tuple(parts),
    )


def _relative(row: Row, together: _Whole, factor: float, size: float) -> float:
    """The difference to the twin's tensor, by sums under signs and by the norm, over `size`."""
    if together.bad != (row.nan, row.inf):
        return math.inf
    if row.l2 is None:
        return 0.0  # NaN or infinities in both, equally many
    off = factor * together.signed - np.array(floats(row.signed, math.nan))
    change = float(np.sqrt(np.square(off).mean())) if len(off) else 0.0
    if together.squares is not None:
        change = max(change, abs(factor * math.sqrt(together.squares) - row.l2))
    relative = change / size if size else (0.0 if change == 0 else math.inf)
    return relative if math.isfinite(relative) else math.inf


def _is_sum(row: Row, parts: Mapping[int, Row], limit: float, size: float) -> bool:
    """Whether replicas are parts of a sum instead: together they are the twin's tensor."""
    if row.kind != "module" or any(part.place or part.shape != row.shape for part in parts.values()):
        return False
    added = _added(parts, [part.signed for part in parts.values()], True)
    return len(parts) > 1 and _relative(row, added, 1.0, size) <= limit


def _explain(row: Row, off: Sequence[tuple[float, _Whole]], limit: float) -> str:
    if row.kind == "weight":
        return "weights differ before the step" if row.phase == "start" else "weights differ after the update"
    apart = [together for relative, together in off if relative > limit]
    texts = [] if len(apart) == len(off) else ["the other ranks have it right"]
    twin, sums = np.array(floats(row.signed)), apart[0].signed
    squares = float(twin @ twin)
    if squares and row.l2 and len(apart) == len(off):
        scale = float(sums @ twin) / squares
        left = float(np.square(sums - scale * twin).sum()) / squares
        if left < EXACT**4 and abs(scale - 1) > EXACT:
            texts.append(f"{scale:.4g} times the twin's")
    return "; ".join(texts)


class _Limits:
    """What rounding may move each tensor of the twin by, relative to its size."""

    def __init__(self, rows: Mapping[Key, Row], noise: Sequence[Mapping[Key, Row]]) -> None:
        self._noise = noise
        self._depth: dict[Key, int] = {}
        modules = 0
        rms: dict[tuple[str, str], list[float]] = defaultdict(list)
        for key, row in rows.items():
            modules += row.kind == "module"
            self._depth[key] = modules + 1
            if row.l2:
                rms[row.kind, row.phase].append(row.l2 / math.sqrt(math.prod(row.shape) or 1))
        self._rms = {kind: median(values) for kind, values in rms.items()}

    def size(self, row: Row) -> float:
        peers = self._rms.get((row.kind, row.phase), 0.0) * math.sqrt(math.prod(row.shape) or 1)
        return max(row.l2 or 0.0, CANCELS * peers)

    def of(self, key: Key, row: Row, part: Row) -> float:
        eps = max(EPS.get(row.dtype, 0.0), EPS.get(part.dtype, 0.0))
        if row.kind == "input" or (row.kind == "weight" and row.phase == "start" and row.step == 1):
            return max(LEAST, eps if row.dtype != part.dtype else 0.0)  # copies, perhaps to another type
        floors = [moved(row, table[key]) for table in self._noise if key in table]
        finite = [
            floor * (row.l2 or 0.0) / (self.size(row) or 1.0) for floor in floors if math.isfinite(floor)
        ]
        if finite:
            return BEYOND * max(*finite, eps, LEAST)
        return ROUNDING * max(eps, LEAST) * math.sqrt(self._depth[key])


def _mean_factor(rows: Mapping[Key, Row], tables: Mapping[int, Mapping[Key, Row]], world: int) -> float:
    """What makes gradients of a rank's mean over its part of the batch those of the mean over all of it."""
    for key, row in rows.items():
        parts = _parts(tables, key)
        if row.kind == "module" and row.phase == "bwd" and len(parts) == world and row.l2:
            wholes = list(_wholes(row, parts, world))
            if len(wholes) == 1 and wholes[0].squares and parts[min(parts)].shape[:1] != row.shape[:1]:
                ratio = math.sqrt(wholes[0].squares) / row.l2
                return 1 / world if abs(ratio / world - 1) < EXACT else 1.0
    return 1.0


def _place(row: Row, relative: float | None, limit: float, ranks: Sequence[int], explanation: str) -> Place:
    finite = relative if relative is not None and math.isfinite(relative) else None
    return place_of(Place, row, relative=finite, threshold=limit, ranks=tuple(ranks), explanation=explanation)


def place_text(place: Place) -> str:
    """`step 1, blocks.1.down, forward: output: relative 0.5, 2.1e-06 by rounding, on ranks 0, 1 (...)`."""
    relative = "not finite" if place.relative is None else f"{place.relative:.2g}"
    off = f": relative {relative}, {place.threshold:.1e} by rounding"
    off = "" if "never computed" in (place.explanation or "") else off
    explanation = f" ({place.explanation})" if place.explanation else ""
    return f"{place}{off}, on {ranks_text(place.ranks)}{explanation}"
