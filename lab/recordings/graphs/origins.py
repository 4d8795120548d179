"""Ranges of the program at capture, for replayed operations: `block_0` inside the capture, not around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import OP, START_END, Capture
from lab.recordings.graphs import calls
from lab.recordings.graphs.frames import class_of
from lab.recordings.graphs.join import Join, join
from lab.recordings.graphs.loss import lacks_of
from lab.recordings.graphs.rows import NONE, RULES
from lab.recordings.graphs.sources import Source
from lab.recordings.lacks import Lack
from lab.recordings.owners import first_index, innermost, thread_nesting
from lab.recordings.tables import Table

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
        """Those of the operations `rows` alone."""
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
    origin = _by_launch(joined)
    if len(capture.nodes):
        _by_node(capture, joined.inside, origin)
    problems = list(joined.problems)
    if lost := int((joined.inside & (origin.rule == NONE)).sum()):
        problems.append(
            f"{plural(lost, 'operation')} of graph replays without a range or an operator at capture: "
            "give the trace of the capture, or of an eager run, with --capture"
        )
    return Origins(
        inside=joined.inside,
        rule=origin.rule,
        path=origin.path,
        paths=list(origin.paths),
        op=joined.rows.op_name,
        op_names=joined.texts,
        problems=problems,
        lacks=lacks_of(joined),
    )


@dataclass
class _Found:
    rule: np.ndarray
    path: np.ndarray
    paths: dict[tuple[str, ...], int]

    def number(self, path: tuple[str, ...]) -> int:
        return self.paths.setdefault(path, len(self.paths))


def _by_launch(joined: Join) -> _Found:
    """By the call that launched each row at capture, whichever recording it stands in."""
    rows = joined.rows
    origin = _Found(rows.rule.copy(), np.zeros(len(rows.rule), dtype=np.int64), {(): 0})
    for index, source in enumerate(joined.sources):
        launched = np.flatnonzero((rows.source == index) & (rows.call >= 0))
        if not len(launched):
            continue
        api = source.capture.api.take(rows.call[launched])
        paths = _paths_at(source.capture, api.pid, api.tid, api.start_ns)
        origin.path[launched] = [origin.number(path) for path in paths]
        origin.rule[launched] = np.where(
            origin.path[launched] > 0, np.maximum(origin.rule[launched], 0), origin.rule[launched]
        )
    bare = np.flatnonzero((origin.path == 0) & (rows.module > 0))
    texts = [tuple(map(class_of, text.split("."))) for text in joined.texts]
    origin.path[bare] = [origin.number(texts[text]) for text in rows.module[bare].tolist()]
    return origin


def _by_node(capture: Capture, inside: np.ndarray, origin: _Found) -> None:
    """By the event that made each row's node, followed from the instantiated graph to the captured one."""
    nodes = capture.nodes
    creations = nodes.where(nodes.original < 0)
    copied = nodes.where(nodes.original >= 0)
    rows = np.flatnonzero(inside & (capture.ops.graph_node > 0))
    process, node = capture.ops.process[rows], capture.ops.graph_node[rows]
    for _ in range(_FOLLOWED):
        node_row = _same(process, node, copied)
        if not (node_row >= 0).any():
            break
        node = np.where(node_row >= 0, np.append(copied.original, -1)[node_row], node)
    node_row = _same(process, node, creations)
    rows, node_row = rows[node_row >= 0], node_row[node_row >= 0]
    paths = _paths_at(capture, creations.pid[node_row], creations.tid[node_row], creations.start_ns[node_row])
    origin.path[rows] = [origin.number(path) for path in paths]
    origin.rule[rows] = np.where(origin.path[rows] > 0, RULES.index("node"), origin.rule[rows])


def _same(process: np.ndarray, node: np.ndarray, among: Table) -> np.ndarray:
    """Row of `among` (n,) with the process and node; -1 for none."""
    pairs = np.concatenate([np.stack([process, node]), np.stack([among.process, among.node])], axis=1)
    keys = np.unique(pairs, axis=1, return_inverse=True)[1].ravel()
    return first_index(keys[: len(node)], keys[len(node) :])


def _paths_at(capture: Capture, pid: np.ndarray, tid: np.ndarray, at_ns: np.ndarray) -> list[tuple[str, ...]]:
    """Names of the program's ranges around each instant (n,) that began after the stream capture did."""
    ranges = capture.ranges.where((capture.ranges.kind != OP) & (capture.ranges.kind != START_END))
    inner = innermost(ranges, pid, tid, at_ns)
    parent = np.full(len(ranges), -1, dtype=np.int64)
    for thread in sorted(set(zip(pid.tolist(), tid.tolist(), strict=True))):
        rows, above = thread_nesting(ranges, *thread)
        parent[rows] = np.where(above >= 0, rows[above], -1) if len(rows) else above
    begins = np.sort(capture.api.start_ns[calls.calls_that(capture, calls.BEGINS_CAPTURE.match)])
    index = np.searchsorted(begins, at_ns, side="right") - 1
    since = np.where(index >= 0, begins[index], at_ns) if len(begins) else np.full(len(at_ns), -1)
    cache: dict[tuple[int, int], tuple[str, ...]] = {}
    paths = []
    for row, start in zip(inner.tolist(), since.tolist(), strict=True):
        if (row, start) not in cache:
            cache[row, start] = _names(capture, ranges, parent, row, start)
        paths.append(cache[row, start])
    return paths


def _names(capture: Capture, ranges: Table, parent: np.ndarray, row: int, since: int) -> tuple[str, ...]:
    names = []
    while row >= 0 and ranges.start_ns[row] >= since:
        names.append(capture.name(int(ranges.name_id[row])))
        row = int(parent[row])
    return tuple(reversed(names))
