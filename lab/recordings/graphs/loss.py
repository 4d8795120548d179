"""Rule R for replays that were matched with their capture: rows that they lack against it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from lab.core.words import plural
from lab.recordings.graphs.fit import Fit
from lab.recordings.graphs.join import Join
from lab.recordings.integrity.evidence import of_capture
from lab.recordings.integrity.replays import replay_lacks
from lab.recordings.lacks import Lack, Place

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
    for index, match in enumerate(joined.fits):
        if match is None or match.sequence.origin != "capture":
            continue
        rows = joined.replays.of(index)
        judged[rows] = True
        process = int(capture.ops.process[rows[0]])
        due[process] += len(match.sequence)
        if match.num_missing:
            lost[process, _place(joined, index, match)] += match.num_missing
            against[process] = joined.sources[match.sequence.source].path.name
    return (*_lossy(lost, due, against), *replay_lacks(of_capture(capture), judged=judged))


def _lossy(lost: dict[tuple[int, Place], int], due: dict[int, int], against: dict[int, str]) -> list[Lack]:
    lacks = []
    for (process, place), missing in lost.items():
        num_due = due[process]
        launches = plural(num_due, "captured launch")
        text = f"graph replays lack {missing:,} of {launches} as GPU rows (against {against[process]})"
        lacks.append(Lack("gpu", place, RULE, process, missing, num_due, missing / num_due, text))
    return lacks


def _place(joined: Join, index: int, match: Fit) -> Place:
    """The window's edge, if rows at its start or end are missing and nothing runs beyond; else a hole."""
    ops, rows = joined.sources[0].capture.ops, joined.replays.of(index)
    part, captured = joined.patterns[index].words, match.sequence.words
    of_process = ops.process == ops.process[rows[0]]
    if (
        np.array_equal(part, captured[: len(part)])
        and not (ops.start_ns[of_process] > ops.start_ns[rows].max()).any()
    ):
        return "tail"
    if (
        np.array_equal(part, captured[len(captured) - len(part) :])
        and not (ops.start_ns[of_process] < ops.start_ns[rows].min()).any()
    ):
        return "head"
    return "hole"
