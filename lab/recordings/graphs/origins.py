"""Where replayed operations come from: ranges of the program at capture, and rows that replays lack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.core.words import plural
from lab.recordings.calls import BEGIN_CAPTURE, call_kinds, pair_keys
from lab.recordings.capture import OP, START_END, Capture
from lab.recordings.graphs.frames import around, class_of
from lab.recordings.graphs.join import Join, join
from lab.recordings.graphs.rows import NONE, RULES
from lab.recordings.graphs.sources import Source
from lab.recordings.integrity.replays import bounds_ns, edges_at, place_of_loss, replay_lacks
from lab.recordings.lacks import Lack, Place
from lab.recordings.owners import first_index
from lab.recordings.tables import Table

RULE = "R"


def lacks_of(joined: Join) -> tuple[Lack, ...]:
    """One Lack per process and place of what is missing.

    A replay that fits a capture is judged by it, the others by each other, as in `lab.recordings.integrity`.
    """
    capture = joined.sources[0].capture
    lost: dict[tuple[int, Place], int] = defaultdict(int)
    due: dict[int, int] = defaultdict(int)
    against: dict[int, str] = {}
    judged = np.zeros(len(capture.ops), dtype=bool)
    bounds: dict[int, tuple[int, int]] = {}
    for index, match in enumerate(joined.fits):
        if match is None or match.sequence.origin != "capture":
            continue
        rows = joined.replays.of(index)
        judged[rows] = True
        process = int(capture.ops.process[rows[0]])
        due[process] += len(match.sequence)
        if match.num_missing:
            if process not in bounds:  # a look over all rows
                bounds[process] = bounds_ns(capture, process)
            edges = edges_at(capture, rows, bounds[process])
            place = place_of_loss(joined.patterns[index].words, match.sequence.words, edges)
            lost[process, place] += match.num_missing
            against[process] = joined.sources[match.sequence.source].path.name
    return (*_lossy(lost, due, against), *replay_lacks(capture, judged=judged))


def _lossy(lost: dict[tuple[int, Place], int], due: dict[int, int], against: dict[int, str]) -> list[Lack]:
    lacks = []
    for (process, place), missing in lost.items():
        num_due = due[process]
        launches = plural(num_due, "captured launch")
        text = f"graph replays lack {missing:,} of {launches} as GPU rows (against {against[process]})"
        lacks.append(Lack("gpu", place, RULE, process, missing, num_due, missing / num_due, text))
    return lacks


_FOLLOWED = 8  # copies of copies of a node that are followed


@dataclass(frozen=True)
class Origins:
    """Where the operations of a recording came from at capture; columns (n,) have a row per row of `ops`.

    inside: replayed by a graph; rule: index of graphs.RULES; path: index of `paths`, ranges that were open
    since the capture began (modules, where the capture has no ranges), 0 for none; op: index of `op_names`,
    0 for none.
    """

    inside: np.ndarray
    rule: np.ndarray
    path: np.ndarray
    paths: list[tuple[str, ...]]
    op: np.ndarray
    op_names: list[str]
    problems: list[str]
    lacks: tuple[Lack, ...]

    def take(self, rows: np.ndarray) -> Origins:
        """Select the origins of the operations `rows`."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ("inside", "rule", "path", "op")})

    @property
    def unattributed(self) -> np.ndarray:
        """Mask (n,): replayed operations of which neither a range nor an operator at capture is known."""
        mask: np.ndarray = self.inside & (self.rule == NONE)
        return mask


def origins_of(capture: Capture, beside: Sequence[Source] = (), source: Source | None = None) -> Origins:
    """Ranges and operators at capture of every replayed operation. Reads no file.

    beside: captures, or eager runs of the same model; source: the recording itself with its Python calls, if
    these were read.
    """
    joined = join(source or Source(capture.source, capture), beside)
    rule, path = joined.rows.rule.copy(), np.zeros(len(joined.inside), dtype=np.int64)
    numbers: dict[tuple[str, ...], int] = {(): 0}

    def set_paths(rows: np.ndarray, paths: list[tuple[str, ...]]) -> None:
        path[rows] = [numbers.setdefault(names, len(numbers)) for names in paths]

    for rows, paths in _by_launch(joined):
        set_paths(rows, paths)
    # The program's own ranges say more than modules, which stand in where it named nothing.
    bare = np.flatnonzero((path == 0) & (joined.rows.module > 0))
    modules = [tuple(map(class_of, text.split("."))) for text in joined.texts]
    set_paths(bare, [modules[text] for text in joined.rows.module[bare].tolist()])
    if len(capture.nodes):
        rows, paths = _by_node(capture, joined.inside)
        set_paths(rows, paths)
        rule[rows] = np.where(path[rows] > 0, RULES.index("node"), rule[rows])
    problems = list(joined.problems)
    if lost := int((joined.inside & (rule == NONE)).sum()):
        problems.append(
            f"{plural(lost, 'operation')} of graph replays without a range or an operator at capture: "
            "give the trace of the capture, or of an eager run, with --capture"
        )
    return Origins(
        inside=joined.inside,
        rule=rule,
        path=path,
        paths=list(numbers),
        op=joined.rows.op_name,
        op_names=joined.texts,
        problems=problems,
        lacks=lacks_of(joined),
    )


def _by_launch(joined: Join) -> Iterator[tuple[np.ndarray, list[tuple[str, ...]]]]:
    """Rows and their paths, by the call that launched each at capture, whichever recording it stands in."""
    for index, source in enumerate(joined.sources):
        rows = np.flatnonzero((joined.rows.source == index) & (joined.rows.call >= 0))
        if len(rows):
            api = source.capture.api.take(joined.rows.call[rows])
            yield rows, _paths_at(source.capture, api.pid, api.tid, api.start_ns)


def _by_node(capture: Capture, inside: np.ndarray) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Follow the event that made each row's node from the instantiated graph to the captured one."""
    nodes = capture.nodes
    creations, copies = nodes.where(nodes.original < 0), nodes.where(nodes.original >= 0)
    rows = np.flatnonzero(inside & (capture.ops.graph_node > 0))
    process, node = capture.ops.process[rows], capture.ops.graph_node[rows]

    def row_of(among: Table) -> np.ndarray:
        return first_index(*pair_keys((process, node), (among.process, among.node)))

    for _ in range(_FOLLOWED):
        copy = row_of(copies)
        if not (copy >= 0).any():
            break
        node = np.where(copy >= 0, np.append(copies.original, -1)[copy], node)
    creation = row_of(creations)
    events = creations.take(creation[creation >= 0])
    return rows[creation >= 0], _paths_at(capture, events.pid, events.tid, events.start_ns)


def _paths_at(capture: Capture, pid: np.ndarray, tid: np.ndarray, at_ns: np.ndarray) -> list[tuple[str, ...]]:
    """Names of the program's ranges around each instant (n,) that began after the stream capture did."""
    ranges = capture.ranges.where((capture.ranges.kind != OP) & (capture.ranges.kind != START_END))
    begins = np.sort(capture.api.start_ns[call_kinds(capture) == BEGIN_CAPTURE])
    index = np.searchsorted(begins, at_ns, side="right") - 1
    since = np.where(index >= 0, begins[index], at_ns) if len(begins) else np.full(len(at_ns), -1)
    cache: dict[tuple[tuple[int, ...], int], tuple[str, ...]] = {}
    paths = []
    for chain, start in zip(around(ranges, pid, tid, at_ns), since.tolist(), strict=True):
        if (chain, start) not in cache:
            inside = [row for row in chain if ranges.start_ns[row] >= start]
            cache[chain, start] = tuple(capture.name(int(ranges.name_id[row])) for row in inside)
        paths.append(cache[chain, start])
    return paths
