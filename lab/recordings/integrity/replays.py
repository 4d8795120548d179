"""Rule R: replays of graphs. One launch stands for hundreds of rows, so joins see nothing that a replay lost.

Rows of a replay are compared as a multiset of kernel names (by graph node, where the recorder tells it):
several streams may swap rows from one replay to the next. A replay is proven by the capture it comes from
alone: equal ones may all have lost the same launch. A shorter one that is alone has lost rows, also where
little of it is left but its rows
stand in the order of the longer one; where they might be another graph's, it may have lost them. What has
nothing to be compared with is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import GRAPH
from lab.recordings.integrity.calls import COPY, FILL, GRAPH_LAUNCH, LAUNCH
from lab.recordings.integrity.evidence import Evidence
from lab.recordings.lacks import Lack, Place
from lab.stats.columns import distinct

# A recording with more distinct replays than this is not compared pair by pair.
MOST_CLASSES = 2000
# A replay is taken for a shortened other one only if so much of it is left.
LEAST_LEFT = 0.25
ALMOST_ALL = 0.9
MANY = 16


@dataclass(frozen=True)
class Windows:
    """Of each stream capture (m,) of a recording: its process, and how many calls made nodes, at least
    (without memsets) and at most. exact: HIP's captures have a call for every node; CUDA's have more."""

    least: np.ndarray
    most: np.ndarray
    process: np.ndarray
    exact: bool = False

    def __len__(self) -> int:
        return len(self.least)


_NONE = np.empty(0, dtype=np.int64)
NO_WINDOWS = Windows(_NONE, _NONE, _NONE)


@dataclass
class _Class:
    """Replays with equal rows: their indices, and how often each name (or node) occurs in one. Of the first
    one: the names (or nodes) of each stream by time, and the edges of the process' GPU work it stands at."""

    replays: np.ndarray
    names: Counter[int]
    graph: int
    process: int
    streams: dict[int, np.ndarray]
    edges: frozenset[Place]

    @property
    def rows(self) -> int:
        return self.names.total()


def windows_of(of: Evidence) -> Windows:
    """The stream captures of a recording; those without any call are left out."""
    inside = of.window_of
    count = len(of.windows)
    nodes = np.isin(of.call_kinds, (LAUNCH, COPY)) & (inside >= 0)
    fills = (of.call_kinds == FILL) & (inside >= 0)
    least = np.bincount(inside[nodes], minlength=count)
    most = least + np.bincount(inside[fills], minlength=count)
    used = most > 0
    hip = any(of.strings[i].startswith("hip") for i in distinct(of.api.name_id[nodes]).tolist())
    return Windows(least[used], most[used], of.windows[used, 0], exact=hip)


def replay_lacks(of: Evidence, more: Sequence[Windows] = (), judged: np.ndarray | None = None) -> list[Lack]:
    """The findings of rule R, one per process and place. judged: GPU rows (n,) that are left out."""
    found = _summed_up(of)
    replay = _replay_of(of, judged)
    rows = np.flatnonzero(replay >= 0)
    if not len(rows):
        return found
    windows = windows_of(of)
    classes = _classes(of, replay, rows)
    if classes is None:
        return [*found, _unknown(of, -1, rows, "too many different replays to compare")]
    for process in sorted({one.process for one in classes}):
        mine = [one for one in classes if one.process == process]
        found += _judged(of, process, mine, replay, windows, more)
    return found


def cut_launches(of: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """The calls (k,) of the replays that lost rows by rule R, and of those that may have."""
    replay = _replay_of(of)
    rows = np.flatnonzero(replay >= 0)
    classes = (_classes(of, replay, rows) if len(rows) else None) or []
    windows = windows_of(of)
    lost: list[int] = []
    perhaps: list[int] = []
    for process in {one.process for one in classes}:
        mine = [one for one in classes if one.process == process]
        sizes = _sizes(process, windows, ())
        for one, (missing, _) in zip(mine, _compared(process, mine, windows, ()), strict=True):
            if missing:
                lost += one.replays.tolist()
            elif _perhaps_missing(one, mine, sizes):
                perhaps += one.replays.tolist()
    return _calls_of(of, replay, lost), _calls_of(of, replay, perhaps)


def _calls_of(of: Evidence, replay: np.ndarray, replays: list[int]) -> np.ndarray:
    calls = distinct(of.call_of[np.isin(replay, replays)])
    found: np.ndarray = calls[calls >= 0]
    return found


def _summed_up(of: Evidence) -> list[Lack]:
    """Replays recorded as one row each: nobody knows what ran in them."""
    rows = np.flatnonzero(of.ops.kind == GRAPH)
    if not len(rows):
        return []
    return [_unknown(of, -1, rows, f"{plural(len(rows), 'graph replay')} recorded as one row each")]


def _unknown(of: Evidence, process: int, rows: np.ndarray, why: str) -> Lack:
    time_ns = of.ops.end_ns - of.ops.start_ns
    mine = time_ns if process < 0 else time_ns[of.ops.process == process]
    whole = int(mine.sum())
    share = int(time_ns[rows].sum()) / whole if whole else None
    part = f" ({share:.1%} of GPU time)" if share is not None else ""
    text = f"{why}{part}: nobody knows whether all of it is here"
    return Lack("gpu", "all", "R", process, len(rows), len(mine), share, text, unknown=True)


def _replay_of(of: Evidence, judged: np.ndarray | None = None) -> np.ndarray:
    """The replay (n,) of each GPU row, as an index over process and correlation; -1: of none."""
    launches = np.flatnonzero(of.call_kinds == GRAPH_LAUNCH)
    ops, none = of.ops, np.full(len(of.ops), -1, dtype=np.int64)
    in_graph = (ops.graph_node > 0) & (ops.corr > 0)
    if len(launches):
        corr = of.api.corr[launches]
        in_graph |= np.isin(ops.corr, corr[corr > 0]) & (ops.corr > 0)
    if judged is not None:
        in_graph &= ~judged
    rows = np.flatnonzero(in_graph & (ops.kind != GRAPH))
    if not len(rows):
        return none
    keys = np.stack([ops.process[rows].astype(np.int64), ops.corr[rows]], axis=1)
    _, index = np.unique(keys, axis=0, return_inverse=True)
    none[rows] = index.reshape(-1)
    return none


def _classes(of: Evidence, replay: np.ndarray, rows: np.ndarray) -> list[_Class] | None:
    """Replays by equal rows; None for too many kinds."""
    ids = _identities(of, rows)
    which = replay[rows]
    weights = np.random.default_rng(17).integers(1, 2**63, int(ids.max()) + 1, dtype=np.uint64)
    order = np.argsort(which, kind="stable")
    starts = np.flatnonzero(np.diff(which[order], prepend=-1))
    process = of.ops.process[rows][order][starts].astype(np.uint64)
    graph = of.ops.graph[rows][order][starts]
    sums = np.add.reduceat(weights[ids[order]], starts) ^ (process * np.uint64(0x9E3779B97F4A7C15))
    sums ^= graph.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    _, first, kind = np.unique(sums, return_index=True, return_inverse=True)
    if len(first) > MOST_CLASSES:
        return None
    ends = np.append(starts[1:], len(order))
    bounds_ns = {one: _bounds_ns(of, one) for one in map(int, distinct(process))}
    found = []
    for index, at in enumerate(first.tolist()):
        mine = order[starts[at] : ends[at]]
        mine = mine[np.argsort(of.ops.start_ns[rows[mine]], kind="stable")]
        found.append(
            _Class(
                np.flatnonzero(kind == index),
                Counter(ids[mine].tolist()),
                int(graph[at]),
                int(process[at]),
                _by_stream(of.ops.stream[rows[mine]], ids[mine]),
                _edges_at(of, rows[mine], bounds_ns[int(process[at])]),
            )
        )
    return found


def _by_stream(streams: np.ndarray, ids: np.ndarray) -> dict[int, np.ndarray]:
    """The ids of each stream in their order. A graph of one stream may be replayed on another: it is 0."""
    used = distinct(streams).tolist()
    return {0: ids} if len(used) == 1 else {one: ids[streams == one] for one in used}


def _bounds_ns(of: Evidence, process: int) -> tuple[int, int]:
    """Begin and end of a process' GPU work."""
    mine = of.ops.process == process
    return int(of.ops.start_ns[mine].min()), int(of.ops.end_ns[mine].max())


def _edges_at(of: Evidence, rows: np.ndarray, bounds_ns: tuple[int, int]) -> frozenset[Place]:
    """`head` for rows that begin the GPU work of their process, `tail` for rows that end it."""
    first = of.ops.start_ns[rows].min() <= bounds_ns[0]
    last = of.ops.end_ns[rows].max() >= bounds_ns[1]
    places: tuple[tuple[Place, bool], ...] = (("head", bool(first)), ("tail", bool(last)))
    return frozenset(place for place, is_there in places if is_there)


def _identities(of: Evidence, rows: np.ndarray) -> np.ndarray:
    """What a row is compared by: its node within its graph if all have one, else its name."""
    nodes = of.ops.graph_node[rows]
    of_node = bool((nodes > 0).all())
    ids: np.ndarray = np.unique(nodes if of_node else of.ops.name_id[rows], return_inverse=True)[1]
    return ids.reshape(-1)


def _judged(
    of: Evidence,
    process: int,
    classes: list[_Class],
    replay: np.ndarray,
    windows: Windows,
    more: Sequence[Windows],
) -> list[Lack]:
    sizes = _sizes(process, windows, more)
    lost: dict[Place, int] = {}
    expected = 0
    unproven: list[_Class] = []
    perhaps: list[int] = []
    for one, (missing, like) in zip(classes, _compared(process, classes, windows, more), strict=True):
        expected += len(one.replays) * (one.rows + missing)
        if missing:
            for index in one.replays.tolist():
                place = _place(of, replay, index, process, like)
                lost[place] = lost.get(place, 0) + missing
        elif less := _perhaps_missing(one, classes, sizes):
            perhaps.append(less)
        elif not _captured_so(one, sizes):
            unproven.append(one)
    found = [_lossy(process, place, n, expected) for place, n in lost.items()]
    if perhaps:
        found.append(_perhaps_lossy(process, perhaps, expected))
    # Where another replay lost rows, the equal ones are what says so.
    if unproven := [one for one in unproven if len(one.replays) == 1 or not found]:
        replays = np.concatenate([one.replays for one in unproven])
        rows = np.flatnonzero(np.isin(replay, replays))
        count = plural(len(replays), "graph replay")
        found.append(_unknown(of, process, rows, f"{count} without the capture of their graph to compare"))
    return found


def _sizes(process: int, windows: Windows, more: Sequence[Windows]) -> list[tuple[np.ndarray, np.ndarray]]:
    own = windows.process == process
    return [(windows.least[own], windows.most[own]), *((one.least, one.most) for one in more)]


def _compared(
    process: int, classes: list[_Class], windows: Windows, more: Sequence[Windows]
) -> list[tuple[int, _Class | None]]:
    """Of each class of a process, how many rows each of its replays lost, and longer replays of its graph."""
    own = windows.process == process
    sizes = _sizes(process, windows, more)
    # One graph was captured here: replays of almost its size are of it.
    captured = windows.least[own][:1] if own.sum() == 1 else windows.least[:0]
    beside = distinct(np.concatenate([captured, *(one.least for one in more if one.exact)]))
    return [(0, None) if _captured_so(one, sizes) else _missing(one, classes, beside) for one in classes]


def _captured_so(one: _Class, sizes: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    return any(((least <= one.rows) & (one.rows <= most)).any() for least, most in sizes)


def _missing(one: _Class, classes: list[_Class], captured: np.ndarray) -> tuple[int, _Class | None]:
    """Rows that each of these replays lost, and longer replays of its graph; 0 where nothing says that it
    lost any. captured: the sizes (k,) of graphs that it may be a replay of."""
    almost = captured[(ALMOST_ALL * captured <= one.rows) & (one.rows < captured)]
    if len(almost) == 1:
        return int(almost[0]) - one.rows, None
    if len(one.replays) > 1:
        return 0, None
    larger = [other for other in classes if _same_graph(one, other)]
    if not larger:
        return 0, None
    best = min(larger, key=lambda other: other.rows)
    return best.rows - one.rows, best


def _perhaps_missing(one: _Class, classes: list[_Class], sizes: list[tuple[np.ndarray, np.ndarray]]) -> int:
    """Rows that a replay without an equal one lost if it is of the graph that it shares all its names with,
    which is replayed again or has many rows; 0 if there is none."""
    if len(one.replays) > 1 or _captured_so(one, sizes):
        return 0
    longer = [
        other.rows
        for other in classes
        if _holds(other, one) and (len(other.replays) > 1 or other.rows >= MANY)
    ]
    return min(longer) - one.rows if longer else 0


def _holds(other: _Class, one: _Class) -> bool:
    """Whether `other` has all rows of `one`, and more, and no number says that it is of another graph."""
    if other.rows <= one.rows or one.graph != other.graph:
        return False
    return all(n <= other.names[name] for name, n in one.names.items())


def _same_graph(one: _Class, other: _Class) -> bool:
    """Whether `other` is a longer replay of the graph of `one`."""
    if not _holds(other, one):
        return False
    if one.graph >= 0 or _is_rest(one, other):
        return True
    if one.rows < LEAST_LEFT * other.rows:
        return False
    if one.names.keys() == other.names.keys():
        return other.rows >= MANY or len(other.replays) > 1
    return other.rows >= MANY and one.rows >= ALMOST_ALL * other.rows


def _is_rest(one: _Class, other: _Class) -> bool:
    """Whether `one` is what the recorder left of `other`, by the order of its rows. At the edge that cut it
    any size will do; elsewhere `other` has many rows and was replayed again, and `one` is two rows or more of
    its beginning or end, or a part of it with rows missing anywhere."""
    begins, ends = _stands_at(one, other, "tail"), _stands_at(one, other, "head")
    if ("tail" in one.edges and begins) or ("head" in one.edges and ends):
        return other.rows >= MANY or len(other.replays) > 1
    if other.rows < MANY or len(other.replays) == 1:
        return False
    if begins or ends:
        return one.rows > 1
    return one.rows >= LEAST_LEFT * other.rows and _in_order(one, other)


def _in_order(one: _Class, other: _Class) -> bool:
    """Whether each stream of `one` is that of `other` with rows left out."""
    for stream, part in one.streams.items():
        whole = iter(other.streams[stream].tolist()) if stream in other.streams else iter(())
        if not all(name in whole for name in part.tolist()):
            return False
    return True


def _stands_at(one: _Class, other: _Class, lost: Place) -> bool:
    """Whether each stream of `one` is that of `other` without its tail, or without its head."""
    for stream, part in one.streams.items():
        whole = other.streams.get(stream)
        if whole is None or len(part) > len(whole):
            return False
        if not np.array_equal(
            part, whole[: len(part)] if lost == "tail" else whole[len(whole) - len(part) :]
        ):
            return False
    return True


def _place(of: Evidence, replay: np.ndarray, index: int, process: int, like: _Class | None) -> Place:
    """The first and the last GPU work of a process may be cut by the window; anything else is a hole, and so
    is what is missing in the middle of such a replay, by a longer one of its graph."""
    rows = np.flatnonzero(replay == index)
    edges = _edges_at(of, rows, _bounds_ns(of, process))
    part = _in_time(of, rows)
    whole = part if like is None else _in_time(of, np.flatnonzero(replay == like.replays[0]))
    if "tail" in edges and np.array_equal(part, whole[: len(part)]):
        return "tail"
    if "head" in edges and np.array_equal(part, whole[len(whole) - len(part) :]):
        return "head"
    return "hole"


def _in_time(of: Evidence, rows: np.ndarray) -> np.ndarray:
    """The names (or nodes) of rows by time."""
    rows = rows[np.argsort(of.ops.start_ns[rows], kind="stable")]
    nodes = of.ops.graph_node[rows]
    names: np.ndarray = nodes if (nodes > 0).all() else of.ops.name_id[rows]
    return names


def _lossy(process: int, place: Place, n: int, expected: int) -> Lack:
    where = {"tail": " of the last replay", "head": " of the first replay"}.get(place, "")
    share = n / expected
    whole = plural(expected, "row")
    text = f"{n:,} of {whole} ({share:.1%}) that graph replays should have are missing{where}"
    return Lack("gpu", place, "R", process, n, expected, share, text)


def _perhaps_lossy(process: int, rows: list[int], expected: int) -> Lack:
    """rows: what each of the replays lost if it is of a longer one's graph."""
    n = sum(rows)
    count = plural(len(rows), "graph replay")
    text = (
        f"{count} with part of the rows of a longer one, and no equal one: another graph, or {n:,} of "
        f"{plural(expected + n, 'row')} are missing"
    )
    return Lack("gpu", "hole", "R", process, n, expected + n, n / (expected + n), text, unknown=True)
