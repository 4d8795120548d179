"""How much longer kernels take because collectives run beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.recordings.names import CLASSES, kernel_class
from lab.recordings.ranks.common import Call
from lab.recordings.ranks.work import COMM, COMP, RankWork
from lab.stats.intervals import overlap, spans, union
from lab.stats.robust import column_medians

# A kernel's usual time needs so many instances without a collective beside it; a rank's own speed so many.
FEWEST_FREE, FEWEST_RATIOS = 3, 5
# Ranks whose speeds differ by less, or by less than three sigma of their kernels, are one population.
SAME_SPEED, SIGMAS = 0.1, 3 * 1.4826


@dataclass(frozen=True)
class Contention:
    """Per operation of one rank (n,) in ns: what collectives cost it, of which beside a waiting one.

    not_separable is the time beside collectives of kernels that never ran alone: it stays in compute.
    """

    cost_ns: np.ndarray
    beside_wait_ns: np.ndarray
    not_separable_ns: np.ndarray


def contention_of(works: Sequence[RankWork], calls: Sequence[Call]) -> list[Contention]:
    """One per rank. A kernel's usual time is the median of the same kernel (op, shapes, grid) alone.

    On the same rank from three instances on; otherwise over all ranks times the rank's own speed (the median
    ratio of its free kernels of that class), so that a slow rank's own slowness is not booked as contention.
    """
    shared, numbers = _common_keys(works)
    overlaps = [_overlaps(work, call) for work, call in zip(works, calls, strict=True)]
    beside, waiting = [one[:2] for one in overlaps], [one[2] for one in overlaps]
    computes = [work.kind == COMP for work in works]
    # A kernel of no time tells nothing of the usual one.
    timed = [mask & (work.end > work.start) for mask, work in zip(computes, works, strict=True)]
    free = [mask & (total == 0) for mask, (total, _) in zip(timed, beside, strict=True)]
    rank = np.repeat(np.arange(len(works)), [int(mask.sum()) for mask in free])
    key = np.concatenate([numbers[i][mask] for i, mask in enumerate(free)])
    dur = np.concatenate([(work.end - work.start)[mask] for work, mask in zip(works, free, strict=True)])
    of_rank = _medians(rank * len(shared) + key, dur, len(works) * len(shared))
    classes = np.array([CLASSES.index(kernel_class(one[3])) for one in shared], dtype=np.int64)
    usual, speed = _usual_and_speed(rank, key, dur, classes, len(works))
    contention = []
    for i, work in enumerate(works):
        key_of_row = numbers[i]
        mine_median, mine_count = (part[i * len(shared) + key_of_row] for part in of_rank)
        enough_all = usual[1][key_of_row] >= FEWEST_FREE
        base = np.where(
            mine_count >= FEWEST_FREE, mine_median, usual[0][key_of_row] * speed[i, classes[key_of_row]]
        )
        has_usual = (mine_count >= FEWEST_FREE) | enough_all
        _, beside_ns = beside[i]
        slower = np.clip(work.end - work.start - base, 0, beside_ns)
        cost = np.where(computes[i] & has_usual & (beside_ns > 0), slower, 0.0)
        share = np.divide(waiting[i], beside_ns, out=np.zeros(len(beside_ns)), where=beside_ns > 0)
        contention.append(
            Contention(
                np.rint(cost).astype(np.int64),
                np.rint(cost * np.minimum(share, 1)).astype(np.int64),
                np.where(computes[i] & ~has_usual, beside_ns, 0),
            )
        )
    return contention


def _common_keys(works: Sequence[RankWork]) -> tuple[list[tuple[str, ...]], list[np.ndarray]]:
    """All ranks' keys as one list, and each rank's operations by number in it."""
    number_of_key: dict[tuple[str, ...], int] = {}
    numbers = []
    for work in works:
        of_rank = np.array(
            [number_of_key.setdefault(key, len(number_of_key)) for key in work.keys], dtype=np.int64
        )
        numbers.append(of_rank[work.key] if len(work.keys) else np.empty(0, dtype=np.int64))
    return list(number_of_key), numbers


def _overlaps(work: RankWork, call: Call) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per operation: time beside collectives, of it owned, of that beside a waiting one.

    Where kernels overlap, the one that started first owns the time, so that no instant counts twice.
    """
    operations = spans(work.start, work.end - work.start)
    comm = union(operations[work.kind == COMM])
    owned = operations.copy()
    rows = np.flatnonzero(work.kind == COMP)
    rows = rows[np.lexsort((rows, work.start[rows]))]
    if len(rows):
        reach = np.maximum.accumulate(work.end[rows])
        owned[rows[1:], 0] = np.minimum(np.maximum(work.start[rows[1:]], reach[:-1]), work.end[rows[1:]])
    waits = union(np.stack([work.start[call.row], call.all_in], axis=1)) if len(call.row) else comm[:0]
    return overlap(operations, comm), overlap(owned, comm), overlap(owned, waits)


def _medians(group: np.ndarray, values: np.ndarray, num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Median and count of each group 0..num_groups-1; 0 where it is empty."""
    order = np.lexsort((values, group))
    ordered = values[order].astype(float)
    count = np.bincount(group, minlength=num_groups)
    group_start = np.cumsum(count) - count
    middle = np.zeros(num_groups)
    filled = count > 0
    low, high = (group_start + (count - 1) // 2)[filled], (group_start + count // 2)[filled]
    middle[filled] = (ordered[low] + ordered[high]) / 2
    return middle, count


def _usual_and_speed(
    rank: np.ndarray, key: np.ndarray, dur: np.ndarray, classes: np.ndarray, num_ranks: int
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Each kernel's usual time and count over ranks (keys,), and each rank's speed (ranks, classes).

    Where ranks differ in speed, times are first put on one speed: a median over a slow rank and a fast one
    would be neither's, and one over the fast one alone would make the slow one contended.
    """
    apart = _far_speeds(rank, key, dur, classes, num_ranks)
    usual = _medians(key, dur / apart[rank, classes[key]], len(classes))
    return usual, _speeds(rank, key, dur, usual, classes, num_ranks)


def _far_speeds(
    rank: np.ndarray, key: np.ndarray, dur: np.ndarray, classes: np.ndarray, num_ranks: int
) -> np.ndarray:
    """Speeds (ranks, classes) far from the others', else 1, from kernels that several ranks ran free."""
    medians, count = _medians(rank * len(classes) + key, dur, num_ranks * len(classes))
    times = np.where(count > 0, medians, np.nan).reshape(num_ranks, len(classes))
    shared = np.flatnonzero((~np.isnan(times)).sum(axis=0) > 1)
    ratio = times[:, shared] / column_medians(times[:, shared])
    group = np.arange(num_ranks)[:, None] * len(CLASSES) + classes[shared]
    measured = ~np.isnan(ratio)
    middle, num = _medians(group[measured], ratio[measured], num_ranks * len(CLASSES))
    spread, _ = _medians(
        group[measured], np.abs(ratio[measured] - middle[group[measured]]), num_ranks * len(CLASSES)
    )
    far = (num >= FEWEST_RATIOS) & (np.abs(middle - 1) > np.maximum(SAME_SPEED, SIGMAS * spread))
    speeds: np.ndarray = np.where(far, middle, 1.0).reshape(num_ranks, len(CLASSES))
    return speeds


def _speeds(
    rank: np.ndarray,
    key: np.ndarray,
    dur: np.ndarray,
    usual: tuple[np.ndarray, np.ndarray],
    classes: np.ndarray,
    num_ranks: int,
) -> np.ndarray:
    """Time of each rank's free kernels over the usual one (ranks, classes), 1 where too few are known."""
    num_classes = len(CLASSES)
    wanted = usual[0][key] > 0
    ratio = dur[wanted] / usual[0][key[wanted]]
    group = rank[wanted] * num_classes + classes[key[wanted]]
    middle, count = _medians(group, ratio, num_ranks * num_classes)
    return np.where(count >= FEWEST_RATIOS, middle, 1.0).reshape(num_ranks, num_classes)
