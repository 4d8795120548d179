"""Rule R: replays of graphs. One launch stands for hundreds of rows, so joins see nothing that a replay lost.

Rows of a replay are compared as a multiset of kernel names (by graph node, where the recorder tells it):
several streams may swap rows from one replay to the next. A replay is proven by the capture it comes from
alone: equal ones may all have lost the same launch, and a capture proves one kind of replays. A shorter one
that is alone has lost rows, also where little of it is left but its rows stand in the order of the longer
one; where they might be another graph's, it may have lost them. What has nothing to be compared with is
unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from lab.core.words import plural
from lab.recordings.calls import (
    COPY,
    FILL,
    LAUNCH,
    Replays,
    call_kinds,
    capture_of_call,
    capture_windows,
    replayed,
    replays_of,
)
from lab.recordings.capture import GRAPH, Capture, filled
from lab.recordings.lacks import Lack, Place
from lab.recordings.tables import Table
from lab.stats.columns import distinct

# A recording with more distinct replays than this is not compared pair by pair.
MOST_CLASSES = 2000
# A replay is taken for a shortened other one only if so much of it is left.
# ROCm was seen to lose 35 to 74 % of a replay's rows: ROCm/rocm-systems#4361.
LEAST_LEFT = 0.25
# Recordings of FLUX.1 lack the last kernel of each replay: 993 of 994 rows are there.
ALMOST_ALL = 0.9
# Small graphs share kernels by chance; from this size on equal names mean the same graph.
MANY = 16


# Stream captures of a recording: process of each, and how many calls made nodes, at least (without memsets)
# and at most. exact: HIP's captures have a call for every node; CUDA's have more.
WINDOWS = {"process": np.int64, "num_launches": np.int64, "num_calls": np.int64, "exact": np.bool_}


@dataclass
class _Class:
    """Replays with equal rows: their indices, and how often each name (or node) occurs in one. Of the first
    one: the names (or nodes) of each stream by time, and the edges of the process' GPU work it stands at."""

    replays: list[int]
    names: Counter[int]
    graph: int
    process: int
    streams: dict[int, np.ndarray]
    edges: frozenset[Place]

    @property
    def rows(self) -> int:
        return self.names.total()

    @property
    def is_known(self) -> bool:
        """Whether names that it shares mean the same graph: it has many rows, or was replayed again."""
        return self.rows >= MANY or len(self.replays) > 1


def windows_of(of: Capture) -> Table:
    """The stream captures (m,) of a recording, as WINDOWS; those without any call are left out."""
    inside = capture_of_call(of)
    count = len(capture_windows(of))
    nodes = np.isin(call_kinds(of), (LAUNCH, COPY)) & (inside >= 0)
    # 616 of 2,284 memset calls in public traces have no GPU row (zero bytes): fills only raise the maximum.
    fills = (call_kinds(of) == FILL) & (inside >= 0)
    num_launches = np.bincount(inside[nodes], minlength=count)
    num_calls = num_launches + np.bincount(inside[fills], minlength=count)
    hip = any(of.strings[i].startswith("hip") for i in distinct(of.api.name_id[nodes]).tolist())
    columns = (capture_windows(of)[:, 0], num_launches, num_calls, np.full(count, hip))
    return filled(WINDOWS, dict(zip(WINDOWS, columns, strict=True))).where(num_calls > 0)


def replay_lacks(of: Capture, captures: Sequence[Table] = (), judged: np.ndarray | None = None) -> list[Lack]:
    """The findings of rule R, one per process and place. captures: WINDOWS of other recordings that may have
    captured its graphs; judged: GPU rows (n,) that are left out."""
    lacks = _summed_up(of)
    replays = _replays(of, judged)
    if not len(replays):
        return lacks
    classes = _classes(of, replays)
    if classes is None:
        return [*lacks, _unknown(of, -1, replays.rows, "too many different replays to compare")]
    judgements = _judgements(classes, windows_of(of), captures)
    for process in sorted({judgement.of.process for judgement in judgements}):
        of_process = [one for one in judgements if one.of.process == process]
        lacks += _lacks_of_process(of, process, of_process, replays)
    return lacks


def cut_launches(of: Capture) -> tuple[np.ndarray, np.ndarray]:
    """The calls (k,) of the replays that lost rows by rule R, and of those that may have."""
    replays = _replays(of)
    indices: dict[str, list[int]] = {"lost": [], "perhaps": []}
    for judgement in _judgements(_classes(of, replays) or [], windows_of(of), ()):
        if judgement.state in indices:
            indices[judgement.state] += judgement.of.replays
    lost, perhaps = (distinct(replays.call[indices[state]]) for state in ("lost", "perhaps"))
    return lost[lost >= 0], perhaps[perhaps >= 0]


def _summed_up(of: Capture) -> list[Lack]:
    """Replays recorded as one row each: what ran in them is unknown."""
    rows = np.flatnonzero(of.ops.kind == GRAPH)
    if not len(rows):
        return []
    return [_unknown(of, -1, rows, f"{plural(len(rows), 'graph replay')} recorded as one row each")]


def _unknown(of: Capture, process: int, rows: np.ndarray, reason: str) -> Lack:
    time_ns = of.ops.end_ns - of.ops.start_ns
    process_ns = time_ns if process < 0 else time_ns[of.ops.process == process]
    total_ns = int(process_ns.sum())
    share = int(time_ns[rows].sum()) / total_ns if total_ns else None
    part = f" ({share:.1%} of GPU time)" if share is not None else ""
    text = f"{reason}{part}: whether all of it is here is unknown"
    return Lack("gpu", "all", "R", process, len(rows), len(process_ns), share, text, unknown=True)


def _replays(of: Capture, judged: np.ndarray | None = None) -> Replays:
    inside = replayed(of) & (of.ops.corr > 0) & (of.ops.kind != GRAPH)
    return replays_of(of, inside if judged is None else inside & ~judged)


def _classes(of: Capture, replays: Replays) -> list[_Class] | None:
    """Replays by equal rows, whatever order streams ran in; None for too many kinds."""
    ids, ops = _identities(of, replays.rows), of.ops.take(replays.rows)
    members: dict[tuple[int, int, bytes], list[int]] = {}
    for index, (low, high) in enumerate(pairwise(replays.bounds.tolist())):
        content = np.sort(ids[low:high]).tobytes()
        members.setdefault((int(ops.process[low]), int(ops.graph[low]), content), []).append(index)
    if len(members) > MOST_CLASSES:
        return None
    bounds = {process: bounds_ns(of, process) for process, _, _ in members}
    classes = []
    for (process, graph, _), indices in members.items():
        rows = np.arange(*replays.bounds[indices[0] : indices[0] + 2])
        rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
        classes.append(
            _Class(
                indices,
                Counter(ids[rows].tolist()),
                graph,
                process,
                _by_stream(ops.stream[rows], ids[rows]),
                edges_at(of, replays.rows[rows], bounds[process]),
            )
        )
    return classes


def _by_stream(streams: np.ndarray, ids: np.ndarray) -> dict[int, np.ndarray]:
    """The ids of each stream in their order. A graph of one stream may be replayed on another: it is 0."""
    used = distinct(streams).tolist()
    return {0: ids} if len(used) == 1 else {name: ids[streams == name] for name in used}


def bounds_ns(of: Capture, process: int) -> tuple[int, int]:
    """Begin and end of a process' GPU work."""
    of_process = of.ops.process == process
    return int(of.ops.start_ns[of_process].min()), int(of.ops.end_ns[of_process].max())


def edges_at(of: Capture, rows: np.ndarray, bounds: tuple[int, int]) -> frozenset[Place]:
    """`head` for rows that begin the GPU work of their process, `tail` for rows that end it."""
    is_first = of.ops.start_ns[rows].min() <= bounds[0]
    is_last = of.ops.end_ns[rows].max() >= bounds[1]
    places: tuple[tuple[Place, bool], ...] = (("head", bool(is_first)), ("tail", bool(is_last)))
    return frozenset(place for place, is_there in places if is_there)


def _identities(of: Capture, rows: np.ndarray) -> np.ndarray:
    """Identify each row for comparison: by its node within its graph if all have one, else its name."""
    nodes = of.ops.graph_node[rows]
    of_node = bool((nodes > 0).all())
    ids: np.ndarray = np.unique(nodes if of_node else of.ops.name_id[rows], return_inverse=True)[1]
    return ids.reshape(-1)


@dataclass(frozen=True)
class _Judgement:
    """What is known of replays with equal rows.

    proven: they have the rows of a capture; ambiguous: they do, and may be what is left of a longer graph;
    lost: each lost `missing` rows, as longer replays `like` show; perhaps: it did if it is of a longer one's
    graph; open: nothing says.
    """

    of: _Class
    state: Literal["proven", "ambiguous", "lost", "perhaps", "open"]
    missing: int = 0
    like: _Class | None = None


def _judgements(all_classes: list[_Class], windows: Table, captures: Sequence[Table]) -> list[_Judgement]:
    judgements, of_others = [], filled(WINDOWS, *captures)
    for process in dict.fromkeys(replay_class.process for replay_class in all_classes):
        classes = [replay_class for replay_class in all_classes if replay_class.process == process]
        of_process = windows.where(windows.process == process)
        launches = of_process.num_launches
        idle = [size for size in launches.tolist() if not any(one.rows == size for one in classes)]
        # One graph was captured here: replays of almost its size are of it.
        alone = launches if len(launches) == 1 else launches[:0]
        beside = distinct(np.concatenate([alone, of_others.num_launches[of_others.exact]]))
        proven = _proven(classes, filled(WINDOWS, of_process, of_others))
        judgements += [
            _judgement(replay_class, is_proven, classes, idle, beside)
            for replay_class, is_proven in zip(classes, proven, strict=True)
        ]
    return judgements


def _judgement(
    replay_class: _Class, is_proven: bool, classes: list[_Class], idle: list[int], beside: np.ndarray
) -> _Judgement:
    if is_proven:
        may_be_left = _may_be_left(replay_class, classes, idle)
        return _Judgement(replay_class, "ambiguous" if may_be_left else "proven")
    missing, like = _missing(replay_class, classes, beside)
    if missing:
        return _Judgement(replay_class, "lost", missing, like)
    less = _perhaps_missing(replay_class, classes)
    return _Judgement(replay_class, "perhaps" if less else "open", less)


def _lacks_of_process(
    of: Capture, process: int, judgements: list[_Judgement], replays: Replays
) -> list[Lack]:
    lost: dict[Place, int] = {}
    expected = 0
    classes: dict[str, list[_Class]] = {"ambiguous": [], "open": []}
    perhaps: list[int] = []
    for judgement in judgements:
        replay_class, missing = judgement.of, judgement.missing
        is_lost = judgement.state == "lost"
        expected += len(replay_class.replays) * (replay_class.rows + (missing if is_lost else 0))
        for index in replay_class.replays if is_lost else ():
            place = _place(of, replays, index, process, judgement.like)
            lost[place] = lost.get(place, 0) + missing
        if judgement.state == "perhaps":
            perhaps.append(missing)
        if judgement.state in classes:
            classes[judgement.state].append(replay_class)
    lacks = [_lossy(process, place, n, expected) for place, n in lost.items()]
    if perhaps:
        lacks.append(_perhaps_lossy(process, perhaps, expected))
    # Where another replay lost rows, the equal ones are what says so.
    if unproven := [one for one in classes["open"] if len(one.replays) == 1 or not lacks]:
        lacks.append(_open(of, process, replays, unproven, "without the capture of their graph to compare"))
    if classes["ambiguous"]:
        reason = "with the rows of a captured graph, or with what is left of a longer one"
        lacks.append(_open(of, process, replays, classes["ambiguous"], reason))
    return lacks


def _open(of: Capture, process: int, replays: Replays, classes: list[_Class], reason: str) -> Lack:
    """The finding for replays of which nothing says whether they lost rows."""
    indices = [index for replay_class in classes for index in replay_class.replays]
    rows = np.concatenate([replays.of(index) for index in indices])
    return _unknown(of, process, rows, f"{plural(len(indices), 'graph replay')} {reason}")


def _may_be_left(replay_class: _Class, classes: list[_Class], idle: list[int]) -> bool:
    """Whether replays with the rows of a capture may be what is left of a longer graph: one whose replays
    have all these rows in this order and more, or one that was captured and never replayed. idle: sizes of
    the latter."""
    # A graph id tells two graphs apart without a guess.
    if replay_class.graph >= 0:
        return False
    longer = [one.rows for one in classes if _holds(one, replay_class) and _in_order(replay_class, one)]
    longer += [size for size in idle if size > replay_class.rows]
    return any(replay_class.rows >= LEAST_LEFT * size for size in longer)


def _proven(classes: list[_Class], windows: Table) -> list[bool]:
    """Tell which replays have the rows of a capture. Where more kinds of replays fit than there are captures,
    one of them is what another graph's replay has left, and none is proven."""
    low, high = windows.num_launches, windows.num_calls
    fits = [
        frozenset(np.flatnonzero((low <= replay_class.rows) & (replay_class.rows <= high)).tolist())
        for replay_class in classes
    ]
    return [bool(fit) and sum(bool(rival) and rival <= fit for rival in fits) <= len(fit) for fit in fits]


def _missing(replay_class: _Class, classes: list[_Class], captured: np.ndarray) -> tuple[int, _Class | None]:
    """Rows that each of these replays lost, and longer replays of its graph; 0 where nothing says that it
    lost any. captured: the sizes (k,) of graphs that it may be a replay of."""
    almost = captured[(ALMOST_ALL * captured <= replay_class.rows) & (replay_class.rows < captured)]
    # Where two captured sizes are this near, it is open which of them lost rows.
    if len(almost) == 1:
        return int(almost[0]) - replay_class.rows, None
    # Equal replays may all have lost the same launch (FLUX.1: the last kernel of each).
    if len(replay_class.replays) > 1:
        return 0, None
    larger = (longer for longer in classes if _same_graph(replay_class, longer))
    # The smallest of the longer ones claims the least loss.
    nearest = min(larger, key=lambda longer: longer.rows, default=None)
    return (nearest.rows - replay_class.rows, nearest) if nearest else (0, None)


def _perhaps_missing(replay_class: _Class, classes: list[_Class]) -> int:
    """Rows that a replay without an equal one lost if it is of the graph that it shares all its names with,
    which is replayed again or has many rows; 0 if there is none."""
    if len(replay_class.replays) > 1:
        return 0
    longer = [one.rows for one in classes if _holds(one, replay_class) and one.is_known]
    return min(longer, default=replay_class.rows) - replay_class.rows


def _holds(longer: _Class, shorter: _Class) -> bool:
    """Whether `longer` has all rows of `shorter` and more, and no number says that it is of another graph."""
    return longer.rows > shorter.rows and shorter.graph == longer.graph and shorter.names <= longer.names


def _same_graph(shorter: _Class, longer: _Class) -> bool:
    """Whether `longer` is a longer replay of the graph of `shorter`."""
    if not _holds(longer, shorter):
        return False
    if shorter.graph >= 0 or _is_rest(shorter, longer):
        return True
    if shorter.rows < LEAST_LEFT * longer.rows:
        return False
    if shorter.names.keys() == longer.names.keys():
        return longer.is_known
    return longer.rows >= MANY and shorter.rows >= ALMOST_ALL * longer.rows


def _is_rest(shorter: _Class, longer: _Class) -> bool:
    """Whether `shorter` is what the recorder left of `longer`, by the order of its rows. At the edge that cut
    it any size will do; elsewhere `longer` has many rows and was replayed again, and `shorter` is two rows or
    more of its beginning or end, or a part of it with rows missing anywhere."""
    begins, ends = _stands_at(shorter, longer, "tail"), _stands_at(shorter, longer, "head")
    if ("tail" in shorter.edges and begins) or ("head" in shorter.edges and ends):
        return longer.is_known
    if longer.rows < MANY or len(longer.replays) == 1:
        return False
    if begins or ends:
        return shorter.rows > 1
    return shorter.rows >= LEAST_LEFT * longer.rows and _in_order(shorter, longer)


def _in_order(shorter: _Class, longer: _Class) -> bool:
    """Whether each stream of `shorter` is that of `longer` with rows left out."""
    for stream, part in shorter.streams.items():
        names = iter(longer.streams.get(stream, part[:0]).tolist())
        if not all(name in names for name in part.tolist()):
            return False
    return True


def _stands_at(shorter: _Class, longer: _Class, lost: Place) -> bool:
    """Whether each stream of `shorter` is that of `longer` without its tail, or without its head."""
    return all(
        stream in longer.streams and _is_cut(part, longer.streams[stream], lost)
        for stream, part in shorter.streams.items()
    )


def _is_cut(part: np.ndarray, complete: np.ndarray, lost: Place) -> bool:
    """Whether `part` (k,) is `complete` (m,) without its tail, or without its head."""
    left = complete[: len(part)] if lost == "tail" else complete[max(len(complete) - len(part), 0) :]
    return np.array_equal(part, left)


def _place(of: Capture, replays: Replays, index: int, process: int, like: _Class | None) -> Place:
    """Where a replay lost rows; like: a longer one of its graph."""
    rows = replays.of(index)
    part = _in_time(of, rows)
    complete = part if like is None else _in_time(of, replays.of(like.replays[0]))
    return place_of_loss(part, complete, edges_at(of, rows, bounds_ns(of, process)))


def place_of_loss(part: np.ndarray, complete: np.ndarray, edges: frozenset[Place]) -> Place:
    """The first and the last GPU work of a process may be cut by the window; anything else is a hole, and so
    is what is missing in the middle of such a replay."""
    sides: tuple[Place, ...] = ("tail", "head")
    return next((side for side in sides if side in edges and _is_cut(part, complete, side)), "hole")


def _in_time(of: Capture, rows: np.ndarray) -> np.ndarray:
    """The names (or nodes) of rows by time."""
    rows = rows[np.argsort(of.ops.start_ns[rows], kind="stable")]
    nodes = of.ops.graph_node[rows]
    names: np.ndarray = nodes if (nodes > 0).all() else of.ops.name_id[rows]
    return names


def _lossy(process: int, place: Place, n: int, expected: int) -> Lack:
    edge = {"tail": " of the last replay", "head": " of the first replay"}.get(place, "")
    share = n / expected
    due = plural(expected, "row")
    text = f"{n:,} of {due} ({share:.1%}) that graph replays should have are missing{edge}"
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
