"""Alignment of the calls of two ranks that did not record the same ones (Needleman and Wunsch, 1970)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.recordings.pairing.clocks import DRIFT_WINDOW_NS, clock_line
from lab.recordings.pairing.rows import CallRows
from lab.recordings.tables import Table, filled
from lab.stats import robust
from lab.stats.columns import distinct

# Clocks of GPUs differ by this much, so a short call may seem to end before its last rank has started.
MEET_NS = 50_000

# Cells of one alignment (5,792 calls squared): memory must stay bounded.
MAX_CELLS = 1 << 25


# Ends of one call agree on one clock within this; pairs further apart than FARTHEST_NS are other calls.
END_SCALE_NS, FARTHEST_NS = 200_000, 500_000
# A clock is voted for only with so many pairs, and with clearly more than the clocks as recorded.
FEWEST_VOTES, CLEARLY_MORE = 3, 1.5
_BIN_NS = 100_000
_MOST_VOTERS = 256  # calls of one rank that vote, each with all equal calls of the others


def align_ranks(rows: CallRows, members: np.ndarray, lists: Sequence[np.ndarray]) -> np.ndarray:
    """Calls (m,) by aligning one rank after the other, the longest first, with the calls known so far."""
    lanes = [_lane_of(rows, members[index]) for index in lists]
    # The longest list first: shorter ones then mostly fit into it.
    order = sorted(range(len(lists)), key=lambda i: -len(lists[i]))
    merged, number = lanes[order[0]], np.arange(len(lists[order[0]]))
    call = np.full(len(members), -1, dtype=np.int64)
    call[lists[order[0]]] = number
    num_calls = len(number)
    for i in order[1:]:
        # Ends are compared across ranks, so the clock of a lane is settled before its calls are aligned.
        ahead_ns = _voted_clock(merged, lanes[i])
        lane = lanes[i].with_columns(begin=lanes[i].begin - ahead_ns, end=lanes[i].end - ahead_ns)
        a, b, left_out = _common_order(merged, lane)
        rows.not_aligned = max(rows.not_aligned, left_out)
        call_of_lane = np.full(len(lane), -1, dtype=np.int64)
        call_of_lane[b] = number[a]
        new = np.flatnonzero(call_of_lane < 0)
        call_of_lane[new] = np.arange(num_calls, num_calls + len(new))
        num_calls += len(new)
        call[lists[i]] = call_of_lane
        merged, number = _merged(merged, number, lane, call_of_lane, a, b)
    return call


# Of a lane: step, signature, and the time in which all ranks were in a call (last start, first end).
_LANE = {"step": np.int64, "signature": np.int64, "blocking": np.bool_, "begin": np.int64, "end": np.int64}


def _lane_of(rows: CallRows, index: np.ndarray) -> Table:
    begin, end = rows.start[index], rows.start[index] + rows.dur[index]
    columns = {name: getattr(rows, name)[index] for name in ("step", "signature", "blocking")}
    return Table({**columns, "begin": begin, "end": end})


def _voted_clock(merged: Table, lane: Table) -> np.ndarray:
    """How far the clock of `lane` is ahead at each of its calls (n,), in ns: one offset, or a line.

    Over long recordings each stretch of time votes on its own, because a clock may drift.
    """
    length = int(lane.end.max() - lane.end.min()) if len(lane) else 0
    if length < DRIFT_WINDOW_NS:
        return np.full(len(lane), _voted_offset(merged, lane))
    stretch = (lane.end - lane.end.min()) // (DRIFT_WINDOW_NS // 4)
    parts = [np.flatnonzero(stretch == number) for number in distinct(stretch).tolist()]
    votes = np.array([_voted_offset(merged, lane.take(part)) for part in parts])
    when = np.array([int(robust.median(lane.end[part])) for part in parts])
    offset, slope, middle = clock_line(when, votes)
    return np.rint(offset + slope * (lane.end - middle)).astype(np.int64)


def _voted_offset(merged: Table, lane: Table) -> int:
    """Where most ends of equal calls differ by the same; 0 where the clocks as recorded do nearly as well."""
    voters = np.flatnonzero(lane.blocking)
    if len(voters) > _MOST_VOTERS:
        voters = voters[np.linspace(0, len(voters) - 1, _MOST_VOTERS).astype(np.int64)]
    differences = []
    for voter in voters.tolist():
        same = (
            merged.blocking & (merged.signature == lane.signature[voter]) & (merged.step == lane.step[voter])
        )
        differences.append(lane.end[voter] - merged.end[same])
    votes = np.sort(np.concatenate([*differences, np.empty(0, dtype=np.int64)]))
    if not len(votes):
        return 0
    count = np.searchsorted(votes, votes + _BIN_NS, side="right") - np.arange(len(votes))
    as_recorded = int(((votes >= -_BIN_NS // 2) & (votes <= _BIN_NS // 2)).sum())
    num_votes = int(count.max())
    if num_votes < max(FEWEST_VOTES, len(voters) / 2) or num_votes <= CLEARLY_MORE * as_recorded:
        return 0
    densest = np.flatnonzero(count == num_votes)
    # Of equally dense offsets the one nearest to the clock as recorded.
    center = densest[np.argmin(np.abs(votes[densest]))]
    return int(robust.median(votes[center : center + num_votes]))


def _merged(
    base: Table, number: np.ndarray, lane: Table, call_of_lane: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[Table, np.ndarray]:
    """The known calls after one more rank: matched ones narrowed to the common time, new ones inserted."""
    # All ranks were in a call from the last begin to the first end: a further rank must meet that.
    begin, end = base.begin.copy(), base.end.copy()
    begin[a], end[a] = np.maximum(begin[a], lane.begin[b]), np.minimum(end[a], lane.end[b])
    new = np.ones(len(lane), dtype=bool)
    new[b] = False
    # A new call goes between the matched calls around it, by its start.
    gap = np.searchsorted(b, np.flatnonzero(new))
    lower, behind = np.concatenate([[-1], a])[gap], np.concatenate([a, [len(base)]])[gap]
    position = np.searchsorted(np.maximum.accumulate(begin), lane.begin[new]) - 1
    position = np.clip(position, lower, behind - 1)
    keys = np.concatenate([np.arange(len(base)) * 2, position * 2 + 1])
    order = np.argsort(keys, kind="stable")
    merged = filled(_LANE, base.with_columns(begin=begin, end=end), lane.where(new)).take(order)
    return merged, np.concatenate([number, call_of_lane[new]])[order]


def _common_order(a: Table, b: Table) -> tuple[np.ndarray, np.ndarray, int]:
    """The best common order of two lanes: indices into a (k,) and into b (k,), both rising.

    The third value: how many calls of b were in blocks too large to be aligned.
    Step by step where every call has its step, which keeps the blocks small.
    """
    if len(a) and len(b) and min(a.step.min(), b.step.min()) >= 0:
        blocks = [
            (np.flatnonzero(a.step == step), np.flatnonzero(b.step == step)) for step in distinct(a.step)
        ]
    else:
        blocks = [(np.arange(len(a)), np.arange(len(b)))]
    paths, left_out = [(np.empty(0, dtype=np.int64),) * 2], 0
    for of_a, of_b in blocks:
        if len(of_a) * len(of_b) > MAX_CELLS:
            left_out += len(of_b)
        else:
            i, j = _best_path(a.take(of_a), b.take(of_b))
            paths.append((of_a[i], of_b[j]))
    left, right = (np.concatenate(part) for part in zip(*paths, strict=True))
    order = np.argsort(left)
    left, right = left[order], right[order]
    rising = np.maximum.accumulate(right) == right  # steps recorded out of order are left out
    return left[rising], right[rising], left_out


def _best_path(a: Table, b: Table) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the pairs whose scores sum highest; a row of the table at a time."""
    best = np.zeros(len(b) + 1)
    diagonal = np.zeros((len(a), len(b)), dtype=bool)
    upward = np.zeros((len(a), len(b)), dtype=bool)
    for i in range(len(a)):
        score = _scores(a, i, b)
        paired = np.where(score > 0, best[:-1] + score, -1.0)
        step = np.maximum(paired, best[1:])
        # The step to the left is a running maximum, so a whole row of the table is one numpy call.
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
    path = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)
    return path[:, 0], path[:, 1]


def _scores(a: Table, i: int, b: Table) -> np.ndarray:
    """How well call i of `a` fits each call of `b` (m,): 0 for not at all, up to 1.2 for the same end."""
    same: np.ndarray = b.signature == a.signature[i]
    if not a.blocking[i]:
        return np.where(same, 1.0, 0.0)
    met = np.minimum(b.end, a.end[i]) - np.maximum(b.begin, a.begin[i]) >= -MEET_NS
    apart = np.abs(b.end - a.end[i])
    # 0.2 for equal signatures alone, so that a pair far apart still beats two calls without partner.
    return np.where(same & met & (apart <= FARTHEST_NS), 0.2 + np.exp(-apart / END_SCALE_NS), 0.0)
