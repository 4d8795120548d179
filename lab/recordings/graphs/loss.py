"""Rule R: replays that lack rows, by their capture or by other replays of the same graph."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import Capture
from lab.recordings.graphs.align import places
from lab.recordings.graphs.fit import Fit
from lab.recordings.lacks import Lack, Place

if TYPE_CHECKING:
    from lab.recordings.graphs.join import Join

RULE = "R"
# Graphs of a few rows with the same names may well be different graphs.
MIN_ROWS = 16


def replay_lacks(capture: Capture) -> tuple[Lack, ...]:
    """What the replays of a recording lack, by the captures in the same recording and by each other.

    A graph that was replayed once and whose capture is not here: unknown, for its share of GPU time.
    """
    from lab.recordings.graphs.join import join
    from lab.recordings.graphs.sources import Source

    return join(Source(capture.source, capture)).lacks()


def lacks_of(joined: Join) -> tuple[Lack, ...]:
    """One Lack per process and place of what is missing, one per process for what nobody can know."""
    capture = joined.sources[0].capture
    lost: dict[tuple[int, Place], int] = defaultdict(int)
    due: dict[int, int] = defaultdict(int)
    unsure: dict[int, list[int]] = defaultdict(list)
    against: dict[int, str] = {}
    alone: dict[int, list[int]] = defaultdict(list)
    for index, found in enumerate(joined.fits):
        process = int(capture.ops.process[joined.replays.of(index)[0]])
        if found is None or found.sequence.origin != "capture":
            alone[process].append(index)
            continue
        due[process] += len(found.sequence)
        if found.num_missing:
            lost[process, _place(joined, index, found)] += found.num_missing
            against[process] = joined.sources[found.sequence.source].path.name
    for process, indices in alone.items():
        for index, missing, whole in _among_each_other(joined, indices):
            if missing < 0:
                unsure[process].append(index)
                continue
            due[process] += whole
            if missing:
                lost[process, "hole"] += missing
    return (
        *_lossy(lost, due, against),
        *(_unknown(joined, process, indices) for process, indices in unsure.items()),
    )


def _lossy(lost: dict[tuple[int, Place], int], due: dict[int, int], against: dict[int, str]) -> list[Lack]:
    found = []
    for (process, place), missing in lost.items():
        whole = due[process]
        by = f"against {against[process]}" if process in against else "against the other replays"
        text = f"graph replays lack {missing:,} of {plural(whole, 'captured launch')} as GPU rows ({by})"
        found.append(Lack("gpu", place, RULE, process, missing, whole, missing / whole, text))
    return found


def _place(joined: Join, index: int, found: Fit) -> Place:
    """The window's edge, if rows at its start or end are missing and nothing runs beyond; else a hole."""
    ops, rows = joined.sources[0].capture.ops, joined.replays.of(index)
    part, whole = joined.patterns[index].words, found.sequence.words
    mine = ops.process == ops.process[rows[0]]
    if np.array_equal(part, whole[: len(part)]) and not (ops.start_ns[mine] > ops.start_ns[rows].max()).any():
        return "tail"
    if (
        np.array_equal(part, whole[len(whole) - len(part) :])
        and not (ops.start_ns[mine] < ops.start_ns[rows].min()).any()
    ):
        return "head"
    return "hole"


def _among_each_other(joined: Join, indices: list[int]) -> list[tuple[int, int, int]]:
    """(replay, rows it lacks, rows of its graph) by the other replays of the graph; lacks -1: unknown."""
    ops = joined.sources[0].capture.ops
    groups: dict[object, list[int]] = defaultdict(list)
    for index in indices:
        rows = joined.replays.of(index)
        node = ops.graph_node[rows]
        by_node = bool((node > 0).all())
        key = int(node[0]) >> 32 if by_node else frozenset(joined.patterns[index].words.tolist())
        groups[by_node, key].append(index)
    found = []
    for (by_node, _), members in groups.items():  # type: ignore[misc]
        found += _in_group(joined, members, bool(by_node))
    return found


def _in_group(joined: Join, members: list[int], by_node: bool) -> list[tuple[int, int, int]]:
    if len(members) == 1:
        return [(members[0], -1, 0)]
    patterns = joined.patterns
    sizes = [len(patterns[index]) for index in members]
    if by_node:
        nodes = {node for index in members for node in patterns[index].node.tolist()}
        return [(index, len(nodes) - size, len(nodes)) for index, size in zip(members, sizes, strict=True)]
    longest = members[int(np.argmax(sizes))]
    whole = patterns[longest].words
    same = {patterns[index].words.tobytes() for index in members}
    if len(same) == 1:
        return [(index, 0, len(whole)) for index in members]
    counted = []
    alike: dict[bytes, list[int]] = defaultdict(list)
    for index in members:
        alike[patterns[index].words.tobytes()].append(index)
    for twins in alike.values():
        part = patterns[twins[0]].words
        shorter = len(part) < len(whole)
        is_part = len(whole) >= MIN_ROWS and places(part, whole).num_matched == len(part)
        for index in twins:
            if shorter and is_part:
                counted.append((index, len(whole) - len(part), len(whole)))
            else:
                counted.append((index, 0 if len(twins) > 1 or len(part) == len(whole) else -1, len(part)))
    return counted


def _unknown(joined: Join, process: int, indices: list[int]) -> Lack:
    ops = joined.sources[0].capture.ops
    rows = np.concatenate([joined.replays.of(index) for index in indices])
    dur_ns = ops.end_ns - ops.start_ns
    mine = ops.process == process
    share = float(dur_ns[rows].sum() / max(int(dur_ns[mine].sum()), 1))
    text = (
        f"{plural(len(indices), 'graph')} replayed once without a capture to compare with "
        f"({share:.1%} of GPU time): whether rows are missing cannot be known"
    )
    return Lack("gpu", "hole", RULE, process, len(rows), int(mine.sum()), share, text, unknown=True)
