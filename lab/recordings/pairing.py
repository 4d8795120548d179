"""Collectives of many ranks, matched: who came late, how long the others waited, how fast the links were.

By process group and sequence number where the recording has them; else by order, if every rank recorded the
same calls; else by the best common order of calls that can have met in time (Needleman and Wunsch, 1970, with
overlap as the score), so that a lost collective costs one row and shifts no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.recordings.tables import Table

# Part of a collective's name without underscores -> what it is; the first that fits counts.
KINDS = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("barrier", "all_reduce"),
    ("broadcast", "broadcast"),
    ("sendrecv", "p2p"),
    ("send", "p2p"),
    ("recv", "p2p"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
)
# No rank leaves such a call before the last has entered it, so their times overlap and their ends agree.
BLOCKING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# Of these every rank reports the same sizes.
SAME_SIZES = ("all_reduce", "all_gather", "reduce_scatter")

# Ends on one host deviate by some tens of us; a clock is corrected only for clearly more than that.
MIN_OFFSET_NS = 200_000
OFFSET_OVER_SPREAD = 5
# Clocks of GPUs deviate by this much, so that a short call may seem to end before its last rank has come.
MEET_NS = 50_000
# Cells of one alignment (5,792 calls squared): memory must stay bounded.
MAX_CELLS = 1 << 25

_TEXTS = ("collective", "dtype", "pg_name", "pg_desc", "pg_ranks", "kernel")


@dataclass(frozen=True)
class Pairs:
    """The collectives of a set of ranks.

    collectives: one row per matched call, in order of its earliest start. Columns: collective_id, pg_name,
    pg_desc, pg_ranks, collective, kind, dtype, in_nelems, out_nelems, msg_bytes, group_size, index_in_group,
    num_ranks, complete, missing_ranks (text `1, 5`), ts_ns, latency_us (the shortest, so the transfer without
    the waiting), start_skew_us, end_skew_us, mean_wait_us, straggler_rank (started last), first_rank,
    algbw_gb_s, busbw_gb_s (GB = 1e9 bytes; NaN where unknown), stream, step, confidence (`seq`, `order`, `lcs`
    or, without metadata, `stream`). A call seen on one rank alone has NaN skews and straggler_rank -1.
    instances: the rows of every rank's table with rank, collective_id (-1: cannot be matched), wait_us (how
    long this rank waited for the last one) and ts_ns corrected by offsets_ns.
    offsets_ns: what was subtracted from each rank's clock; estimated_offsets_ns: what was measured, of which
    only clear deviations are corrected. problems: sentences.
    """

    ranks: tuple[int, ...]
    collectives: Table
    instances: Table
    offsets_ns: dict[int, int]
    estimated_offsets_ns: dict[int, int]
    problems: tuple[str, ...]

    def by_rank(self, column: str) -> np.ndarray:
        """A column of `instances` as floats (collectives, ranks); NaN where a rank has no row."""
        grid = np.full((len(self.collectives), len(self.ranks)), np.nan)
        known = self.instances.where(self.instances.collective_id >= 0)
        place = np.searchsorted(np.array(self.ranks), known.rank)
        grid[known.collective_id, place] = getattr(known, column)
        return grid


def pair_collectives(ranks: Mapping[int, Table]) -> Pairs:
    """Match the rows of `views.collective_instances`, one table per rank.

    A rank without rows or without a table is missing in every collective of its groups. Cost: a sort of all
    rows where calls have sequence numbers or every rank has all of them; else the square of the calls between
    two steps that a rank lost.
    """
    rows = _Rows(ranks)
    matches = _matches(rows)
    estimated, offsets = _offsets(rows, matches)
    return _pairs(rows, matches, rows.start - offsets[rows.place], estimated, offsets)


def kind_of(collective: str, kernel: str = "") -> str:
    """all_reduce, all_gather, ... from what the profiler calls it, else from the kernel's name; or ""."""
    for text in (collective, kernel.split("(")[0]):
        plain = text.lower().replace("_", "")
        for part, kind in KINDS:
            if part in plain:
                return kind
    return ""


def bus_factor(kind: str, group_size: int) -> float:
    """Bus bandwidth over algorithm bandwidth; NaN for an unknown kind or size.

    Source: NVIDIA/nccl-tests `doc/PERFORMANCE.md`.
    """
    if group_size < 1 or not kind:
        return float("nan")
    if kind == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (group_size - 1) / group_size
    return 1.0


@dataclass(frozen=True)
class _Match:
    """Which rows are one call: `call` (m,) numbers the calls of a group from 0, -1 for none."""

    call: np.ndarray
    confidence: str


_NO_MATCH = _Match(np.empty(0, dtype=np.int64), "")


class _Rows:
    """All rows of all ranks under each other, with small integers for what is compared often."""

    def __init__(self, ranks: Mapping[int, Table]) -> None:
        self.ranks = tuple(sorted(ranks))
        tables = [ranks[rank] for rank in self.ranks]
        filled = [table for table in tables if len(table)] or tables[:1]
        names = list(filled[0]) if filled else []
        self.columns = {name: np.concatenate([getattr(t, name) for t in filled]) for name in names}
        lengths = [len(table) for table in tables]
        self.place = np.repeat(np.arange(len(tables)), lengths)
        self.rank = np.repeat(np.array(self.ranks, dtype=np.int64), lengths)
        self.start = self.column("ts_ns")
        self.dur = self.column("dur_ns")
        self.seq = self.column("seq")
        self.step = self.column("step")
        self.kinds = [
            kind_of(*pair) for pair in zip(self._list("collective"), self._list("kernel"), strict=True)
        ]
        self.blocking = np.array([kind in BLOCKING for kind in self.kinds], dtype=bool)
        self.p2p = np.array([kind == "p2p" for kind in self.kinds], dtype=bool)
        self.signature = _codes(self._signatures())[0]
        self.group, self.groups = _codes(self._groups())
        self.num_groups = len(self.groups)
        self._by_group = np.split(*self._launch_order())
        self.not_aligned = 0

    def column(self, name: str) -> np.ndarray:
        return self.columns.get(name, np.empty(0, dtype=np.int64))

    def of_group(self, group: int) -> np.ndarray:
        """Rows (m,) of a group, rank by rank, each rank's in the order of their launch."""
        return self._by_group[group]

    def _list(self, name: str) -> list[Any]:
        found: list[Any] = self.column(name).tolist()
        return found

    def _launch_order(self) -> tuple[np.ndarray, np.ndarray]:
        # Streams run in the order of launch; where two streams serve one group only the launch tells it.
        launch = self.column("correlation")
        unknown = np.bincount(self.group, weights=launch < 0, minlength=self.num_groups) > 0
        when = np.where(unknown[self.group], self.start, launch) if len(launch) else launch
        order = np.lexsort((self.start, when, self.place, self.group))
        return order, np.searchsorted(self.group[order], np.arange(1, self.num_groups))

    def _signatures(self) -> Iterator[tuple[Any, ...]]:
        sizes = zip(self._list("in_nelems"), self._list("out_nelems"), strict=True)
        told = zip(self._list("collective"), self._list("dtype"), self._list("kernel"), strict=True)
        for kind, size, (collective, dtype, kernel) in zip(self.kinds, sizes, told, strict=True):
            name = collective or kernel
            yield (name, dtype, size) if kind in SAME_SIZES else (name, dtype)

    def _groups(self) -> Iterator[tuple[Any, ...]]:
        """(ranks, name, "") of a process group; without metadata ("", "", the how-manieth stream)."""
        streams: dict[tuple[int, int], int] = {}
        nth: dict[int, int] = {}
        told = zip(self._list("pg_ranks"), self._list("pg_name"), strict=True)
        where = zip(self.place.tolist(), self._list("stream"), strict=True)
        for (ranks, name), (place, stream) in zip(told, where, strict=True):
            if ranks or name:
                yield ranks, name, ""
                continue
            if (place, stream) not in streams:
                streams[place, stream] = nth[place] = nth.get(place, -1) + 1
            yield "", "", streams[place, stream]


def _codes(keys: Iterable[Any]) -> tuple[np.ndarray, list[Any]]:
    """Equal keys -> equal numbers (n,), counted from 0 in order of appearance, and the keys."""
    numbers: dict[Any, int] = {}
    codes = [numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(codes, dtype=np.int64), list(numbers)


def _matches(rows: _Rows) -> list[_Match]:
    """One for each group. The clocks are believed, unless most calls of a rank would then have met no other."""
    by_seq = [_match_seq(rows, group) for group in range(rows.num_groups)]
    _, offsets = _offsets(rows, [match or _NO_MATCH for match in by_seq])
    start = rows.start - offsets[rows.place]
    believed = [match or _match_in_time(rows, g, start) for g, match in enumerate(by_seq)]
    if _shares_met(rows, believed).min(initial=1.0) > 0.5:
        return believed
    in_order = [match or _match_order(rows, g, rows.start, in_time=False) for g, match in enumerate(by_seq)]
    _, offsets = _offsets(rows, in_order)
    start = rows.start - offsets[rows.place]
    corrected = [match or _match_in_time(rows, g, start) for g, match in enumerate(by_seq)]
    return max(believed, corrected, key=lambda matches: float(_shares_met(rows, matches).sum()))


def _match_seq(rows: _Rows, group: int) -> _Match | None:
    members = rows.of_group(group)
    return _Match(_by_seq(rows, members), "seq") if (rows.seq[members] >= 0).all() else None


def _match_in_time(rows: _Rows, group: int, start: np.ndarray) -> _Match:
    """Calls by order where that is possible in time, else by alignment."""
    match = _match_order(rows, group, start, in_time=False)
    aligned = match.confidence != "lcs" and _all_met(rows, rows.of_group(group), match.call, start)
    return match if aligned else _match_order(rows, group, start, in_time=True)


def _match_order(rows: _Rows, group: int, start: np.ndarray, *, in_time: bool) -> _Match:
    """Calls of one group by their order; in_time asks the rows of one call to have met."""
    members = rows.of_group(group)
    has_metadata = rows.groups[group][2] == ""
    lists = _per_rank(rows, members)
    signatures = [rows.signature[members[index]] for index in lists]
    same = all(np.array_equal(signatures[0], other) for other in signatures[1:])
    if same and not in_time:
        call, confidence = _running_count(rows.place[members]), "order"
    else:
        call, confidence = _aligned(rows, members, lists, start, in_time=in_time), "lcs"
    return _Match(_no_p2p(rows, members, call), confidence if has_metadata else "stream")


def _shares_met(rows: _Rows, matches: Sequence[_Match]) -> np.ndarray:
    """For each rank that could pair blocking calls with another: the share of them that did."""
    wanted = np.zeros(len(rows.ranks), dtype=np.int64)
    met = np.zeros(len(rows.ranks), dtype=np.int64)
    for group, match in enumerate(matches):
        members = rows.of_group(group)
        asked = rows.blocking[members] & (match.call >= 0)
        place, call = rows.place[members[asked]], match.call[asked]
        if len(np.unique(place)) > 1:
            np.add.at(wanted, place, 1)
            np.add.at(met, place, np.bincount(call)[call] > 1)
    found: np.ndarray = met[wanted > 0] / wanted[wanted > 0]
    return found


def _by_seq(rows: _Rows, members: np.ndarray) -> np.ndarray:
    """Calls by sequence number; those that share one (a coalesced batch) by their order in it."""
    p2p = rows.p2p[members].astype(np.int64)
    key = rows.seq[members] * 2 + p2p
    nth = _running_count(_codes(zip(rows.place[members].tolist(), key.tolist(), strict=True))[0])
    _, call = np.unique(np.stack([key, nth]), axis=1, return_inverse=True)
    return _no_p2p(rows, members, call.ravel())


def _no_p2p(rows: _Rows, members: np.ndarray, call: np.ndarray) -> np.ndarray:
    """A send and its receive are a pair only where no third rank could be meant."""
    if len(np.unique(rows.place[members])) <= 2:
        return call
    return np.where(rows.p2p[members], -1, call)


def _running_count(codes: np.ndarray) -> np.ndarray:
    """How many equal codes (n,) stand before each."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    first = np.searchsorted(ordered, ordered)
    count = np.empty(len(codes), dtype=np.int64)
    count[order] = np.arange(len(codes)) - first
    return count


def _per_rank(rows: _Rows, members: np.ndarray) -> list[np.ndarray]:
    """For each rank that has rows: the indices of its rows in `members`."""
    edges = np.flatnonzero(np.diff(rows.place[members])) + 1
    return np.split(np.arange(len(members)), edges)


def _all_met(rows: _Rows, members: np.ndarray, call: np.ndarray, start: np.ndarray) -> bool:
    """Whether in every blocking call the last rank started before the first one ended.

    The clocks' tolerance may be needed for some calls, not for most: then they are other calls.
    """
    wanted = (call >= 0) & rows.blocking[members]
    if not wanted.any():
        return True
    index, which = members[wanted], call[wanted]
    last = np.full(which.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, which, start[index])
    late_ns = last[which] - (start + rows.dur)[index]
    return bool((late_ns <= MEET_NS).all() and (late_ns <= 0).mean() > 0.5)


@dataclass
class _Lane:
    """Calls in their order: what each is and when all its ranks were in it (last start, first end)."""

    step: np.ndarray
    signature: np.ndarray
    blocking: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.signature)

    def take(self, index: np.ndarray) -> _Lane:
        return _Lane(*(values[index] for values in vars(self).values()))

    def joined(self, other: _Lane) -> _Lane:
        return _Lane(
            *(np.concatenate(both) for both in zip(vars(self).values(), vars(other).values(), strict=True))
        )


def _aligned(
    rows: _Rows, members: np.ndarray, lists: Sequence[np.ndarray], start: np.ndarray, *, in_time: bool
) -> np.ndarray:
    """Calls (m,) by aligning one rank after the other, the longest first, with what is known so far."""
    lanes = [_lane(rows, members[index], start) for index in lists]
    order = sorted(range(len(lists)), key=lambda i: -len(lists[i]))
    known, number = lanes[order[0]], np.arange(len(lists[order[0]]))
    call = np.full(len(members), -1, dtype=np.int64)
    call[lists[order[0]]] = number
    num_calls = len(number)
    for i in order[1:]:
        a, b, left_out = _common(known, lanes[i], in_time=in_time)
        rows.not_aligned = max(rows.not_aligned, left_out)
        theirs = np.full(len(lanes[i]), -1, dtype=np.int64)
        theirs[b] = number[a]
        new = np.flatnonzero(theirs < 0)
        theirs[new] = np.arange(num_calls, num_calls + len(new))
        num_calls += len(new)
        call[lists[i]] = theirs
        known, number = _merged(known, number, lanes[i], theirs, a, b)
    return call


def _lane(rows: _Rows, index: np.ndarray, start: np.ndarray) -> _Lane:
    return _Lane(
        rows.step[index],
        rows.signature[index],
        rows.blocking[index],
        start[index],
        start[index] + rows.dur[index],
    )


def _merged(
    known: _Lane, number: np.ndarray, lane: _Lane, theirs: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[_Lane, np.ndarray]:
    """What is known after a rank: matched calls narrowed to the time both were in, its new calls put between."""
    known.begin[a] = np.maximum(known.begin[a], lane.begin[b])
    known.end[a] = np.minimum(known.end[a], lane.end[b])
    new = np.ones(len(lane), dtype=bool)
    new[b] = False
    # Between the matched calls around it a new one goes where its start belongs.
    gap = np.searchsorted(b, np.flatnonzero(new))
    before, behind = np.concatenate([[-1], a])[gap], np.concatenate([a, [len(known)]])[gap]
    after = np.searchsorted(np.maximum.accumulate(known.begin), lane.begin[new]) - 1
    after = np.clip(after, before, behind - 1)
    keys = np.concatenate([np.arange(len(known)) * 2, after * 2 + 1])
    order = np.argsort(keys, kind="stable")
    return known.joined(lane.take(np.flatnonzero(new))).take(order), np.concatenate([number, theirs[new]])[
        order
    ]


def _common(a: _Lane, b: _Lane, *, in_time: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """The best common order of two lanes: indices into a (k,) and into b (k,), both rising.

    The third: how many calls of b were too many to be looked at.
    Step by step where every call tells its step, which keeps the blocks small.
    """
    if len(a) and len(b) and min(a.step.min(), b.step.min()) >= 0:
        blocks = [
            (np.flatnonzero(a.step == step), np.flatnonzero(b.step == step)) for step in np.unique(a.step)
        ]
    else:
        blocks = [(np.arange(len(a)), np.arange(len(b)))]
    found, left_out = [(np.empty(0, dtype=np.int64),) * 2], 0
    for of_a, of_b in blocks:
        if len(of_a) * len(of_b) > MAX_CELLS:
            left_out += len(of_b)
        else:
            i, j = _best_path(a.take(of_a), b.take(of_b), in_time=in_time)
            found.append((of_a[i], of_b[j]))
    left, right = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(left)
    left, right = left[order], right[order]
    rising = np.maximum.accumulate(right) == right  # steps that a rank recorded out of order are left out
    return left[rising], right[rising], left_out


def _best_path(a: _Lane, b: _Lane, *, in_time: bool) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the pairs whose scores sum highest; a row of the table at a time."""
    best = np.zeros(len(b) + 1)
    diagonal = np.zeros((len(a), len(b)), dtype=bool)
    upward = np.zeros((len(a), len(b)), dtype=bool)
    for i in range(len(a)):
        score = _scores(a, i, b, in_time=in_time)
        paired = np.where(score > 0, best[:-1] + score, -1.0)
        step = np.maximum(paired, best[1:])
        row = np.concatenate([[0.0], np.maximum.accumulate(step)])
        diagonal[i] = row[1:] == paired
        upward[i] = row[1:] == best[1:]
        best = row
    i, j = len(a) - 1, len(b) - 1
    pairs: list[tuple[int, int]] = []
    while i >= 0 and j >= 0:
        if diagonal[i, j]:
            pairs.append((i, j))
            i, j = i - 1, j - 1
        elif upward[i, j]:
            i -= 1
        else:
            j -= 1
    found = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _scores(a: _Lane, i: int, b: _Lane, *, in_time: bool) -> np.ndarray:
    """How well call i of `a` fits each call of `b` (m,): 0 for not at all, up to 2 for the same time."""
    same: np.ndarray = b.signature == a.signature[i]
    if not in_time or not a.blocking[i]:
        return np.where(same, 1.0, 0.0)
    shared = np.minimum(b.end, a.end[i]) - np.maximum(b.begin, a.begin[i])
    shortest = np.maximum(np.minimum(b.end - b.begin, a.end[i] - a.begin[i]), 0)
    share = np.clip((shared + MEET_NS) / (shortest + MEET_NS), 0, 1)
    return np.where(same & (shared >= -MEET_NS), 1 + share, 0.0)


def _offsets(rows: _Rows, matches: Sequence[_Match]) -> tuple[dict[int, int], np.ndarray]:
    """Clock deviation of every rank in ns, and what of it is corrected (ranks,).

    A rank's deviation is the median, over blocking collectives, of its end minus the median end of all. It is
    corrected only if it is large and steady: ends that differ for another reason scatter.
    """
    correct = np.zeros(len(rows.ranks), dtype=np.int64)
    deviation = _end_deviations(rows, matches)
    estimated = {}
    for place, rank in enumerate(rows.ranks):
        mine = deviation[rows.place == place]
        mine = mine[~np.isnan(mine)]
        if len(mine) == 0:
            continue
        middle = float(np.median(mine))
        spread = float(np.median(np.abs(mine - middle)))
        estimated[rank] = round(middle)
        if abs(middle) > max(MIN_OFFSET_NS, OFFSET_OVER_SPREAD * spread) and len(mine) > 2:
            correct[place] = round(middle)
    return estimated, correct


def _end_deviations(rows: _Rows, matches: Sequence[_Match]) -> np.ndarray:
    """Each row's end minus the median end of its call (n,), NaN where it is not matched or may end alone."""
    deviation = np.full(len(rows.rank), np.nan)
    base = rows.start.min() if len(rows.start) else 0
    end = (rows.start - base + rows.dur).astype(float)
    for group, match in enumerate(matches):
        call, members = match.call, rows.of_group(group)
        if match is _NO_MATCH:
            continue
        wanted = (call >= 0) & rows.blocking[members]
        index, which = members[wanted], call[wanted]
        order = np.lexsort((end[index], which))
        index, which = index[order], which[order]
        first = np.searchsorted(which, which)
        size = np.searchsorted(which, which, side="right") - first
        middle = (end[index[first + (size - 1) // 2]] + end[index[first + size // 2]]) / 2
        deviation[index] = np.where(size > 1, end[index] - middle, np.nan)
    return deviation


def _pairs(
    rows: _Rows,
    matches: Sequence[_Match],
    start: np.ndarray,
    estimated: dict[int, int],
    offsets: np.ndarray,
) -> Pairs:
    call = np.full(len(rows.rank), -1, dtype=np.int64)
    confidence: list[str] = []
    for group, match in enumerate(matches):
        members = rows.of_group(group)
        used, dense = np.unique(match.call[match.call >= 0], return_inverse=True)
        call[members[match.call >= 0]] = dense.ravel() + len(confidence)
        confidence += [match.confidence] * len(used)
    call, confidence = _in_order_of_time(call, confidence, start)
    table = _Summary(rows, call, start)
    collectives = table.collectives(confidence)
    wait = (
        np.where(call >= 0, (table.last_start[call] - start) / 1e3, np.nan)
        if len(confidence)
        else np.full(len(call), np.nan)
    )
    instances = {"rank": rows.rank, "collective_id": call, **rows.columns, "ts_ns": start, "wait_us": wait}
    return Pairs(
        ranks=rows.ranks,
        collectives=collectives,
        instances=Table(instances),
        offsets_ns={rank: int(ns) for rank, ns in zip(rows.ranks, offsets, strict=True)},
        estimated_offsets_ns=estimated,
        problems=tuple(_problems(rows, call, collectives, offsets)),
    )


def _in_order_of_time(
    call: np.ndarray, confidence: list[str], start: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    first = np.full(len(confidence), np.iinfo(np.int64).max)
    np.minimum.at(first, call[call >= 0], start[call >= 0])
    order = np.argsort(first, kind="stable")
    number = np.empty(len(order) + 1, dtype=np.int64)
    number[order], number[-1] = np.arange(len(order)), -1
    return number[call], [confidence[i] for i in order]


class _Summary:
    """One row per call from the rows that belong to it."""

    def __init__(self, rows: _Rows, call: np.ndarray, start: np.ndarray) -> None:
        self._rows = rows
        order = np.lexsort((rows.rank, start, call))
        self._index = order[call[order] >= 0]
        which = call[self._index]
        self._num = int(which[-1]) + 1 if len(which) else 0
        self._first = np.searchsorted(which, np.arange(self._num))
        self._size = np.diff(np.append(self._first, len(which)))
        self._start = start
        self._ends = start + rows.dur
        self.last_start = start[self._last_rows()]

    def collectives(self, confidence: Sequence[str]) -> Table:
        rows, lead = self._rows, self._index[self._first]
        kinds = [rows.kinds[i] for i in lead.tolist()]
        columns: dict[str, Any] = {"collective_id": np.arange(self._num)}
        for name in ("pg_name", "pg_desc", "pg_ranks", "collective"):
            columns[name] = rows.column(name)[lead]
        columns["kind"] = _objects(kinds)
        columns["dtype"] = rows.column("dtype")[lead]
        for name in ("in_nelems", "out_nelems", "msg_bytes"):
            columns[name] = self._reduce(np.maximum, rows.column(name))
        columns |= self._membership(lead) | self._times()
        size = np.where(columns["group_size"] > 0, columns["group_size"], self._size)
        columns |= self._bandwidth(columns["msg_bytes"], columns["latency_us"], kinds, size)
        for name in ("stream", "step"):
            columns[name] = rows.column(name)[lead]
        return Table({**columns, "confidence": _objects(confidence)})

    def _membership(self, lead: np.ndarray) -> dict[str, np.ndarray]:
        rows = self._rows
        num_ranks = len(rows.ranks)
        there = np.zeros((self._num, num_ranks), dtype=bool)
        there[np.repeat(np.arange(self._num), self._size), rows.place[self._index]] = True
        expected = [_ranks_of(key[0], rows.ranks) for key in rows.groups]
        group = rows.group[lead]
        texts: dict[tuple[int, bytes], str] = {}
        missing = []
        for g, mask in zip(group.tolist(), there, strict=True):
            key = (g, mask.tobytes())
            if key not in texts:
                seen = {rank for rank, is_there in zip(rows.ranks, mask.tolist(), strict=True) if is_there}
                texts[key] = ", ".join(str(rank) for rank in expected[g] if rank not in seen)
            missing.append(texts[key])
        size = self._reduce(np.maximum, rows.column("group_size"))
        known = np.array([len(expected[g]) for g in group.tolist()], dtype=np.int64)
        complete = np.array([text == "" for text in missing], dtype=bool) & (
            self._size >= np.maximum(size, 1)
        )
        return {
            "group_size": np.where(size > 0, size, known),
            "index_in_group": _running_count(group),
            "num_ranks": self._size,
            "complete": complete,
            "missing_ranks": _objects(missing),
        }

    def _times(self) -> dict[str, np.ndarray]:
        alone = self._size < 2
        first, last = self._index[self._first], self._last_rows()
        end_first, end_last = self._reduce(np.minimum, self._ends), self._reduce(np.maximum, self._ends)
        waits = self.last_start.repeat(self._size) - self._start[self._index]
        mean_wait = np.add.reduceat(waits, self._first) / self._size if self._num else np.empty(0)
        return {
            "ts_ns": self._start[first],
            "latency_us": self._reduce(np.minimum, self._rows.dur) / 1e3,
            "start_skew_us": np.where(alone, np.nan, (self.last_start - self._start[first]) / 1e3),
            "end_skew_us": np.where(alone, np.nan, (end_last - end_first) / 1e3),
            "mean_wait_us": np.where(alone, np.nan, mean_wait / 1e3),
            "straggler_rank": np.where(alone, -1, self._rows.rank[last]),
            "first_rank": np.where(alone, -1, self._rows.rank[first]),
        }

    def _bandwidth(
        self, num_bytes: np.ndarray, latency_us: np.ndarray, kinds: Sequence[str], sizes: np.ndarray
    ) -> dict[str, np.ndarray]:
        known = (num_bytes >= 0) & (latency_us > 0)
        algbw = np.full(self._num, np.nan)
        algbw[known] = num_bytes[known] / latency_us[known] / 1e3
        factor = np.array(
            [bus_factor(*pair) for pair in zip(kinds, sizes.tolist(), strict=True)], dtype=float
        )
        return {"algbw_gb_s": algbw, "busbw_gb_s": algbw * factor}

    def _last_rows(self) -> np.ndarray:
        """The row that started last in each call; of equals that of the lowest rank."""
        starts = self._start[self._index]
        end = self._first + self._size - 1
        latest = np.searchsorted(
            np.repeat(np.arange(self._num), self._size) * 2 + (starts >= np.repeat(starts[end], self._size)),
            np.arange(self._num) * 2 + 1,
        )
        return self._index[latest]

    def _reduce(self, how: Any, values: np.ndarray) -> np.ndarray:
        if not self._num:
            return values[:0]
        reduced: np.ndarray = how.reduceat(values[self._index], self._first)
        return reduced


def _ranks_of(text: str, given: Sequence[int]) -> list[int]:
    """The ranks of a group from the profiler's text, such as `[0, 1, 7]`; all given ones if it has none."""
    if "..." in text or not re.search(r"\d", text):
        return list(given)
    return sorted({int(digits) for digits in re.findall(r"\d{1,7}", text)})


def _problems(rows: _Rows, call: np.ndarray, collectives: Table, offsets: np.ndarray) -> Iterator[str]:
    unmatched, num = int((call < 0).sum()), len(collectives)
    if unmatched:
        yield f"{unmatched} sends and receives in groups of more than two ranks are not paired"
    incomplete = int((~collectives.complete).sum()) if num else 0
    if incomplete:
        yield f"{incomplete} of {num} collectives are incomplete: not every rank of the group recorded them"
    if num and (unsure := int((collectives.confidence == "stream").sum())):
        yield f"{unsure} of {num} collectives have no metadata: they were paired by stream and order alone"
    if num and (by_lcs := int((collectives.confidence == "lcs").sum())):
        yield f"{by_lcs} of {num} collectives were aligned, since not every rank recorded the same calls"
    if rows.not_aligned:
        yield f"{rows.not_aligned} collectives of a rank stand alone: too many between two steps to align them"
    for rank, ns in zip(rows.ranks, offsets.tolist(), strict=True):
        if ns:
            yield f"the clock of rank {rank} was {ns / 1e3:.1f} us off: corrected"


def _objects(values: Sequence[Any]) -> np.ndarray:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
