"""How much longer kernels take because collectives run beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.recordings.names import CLASSES, kernel_class
from lab.recordings.ranks.work import COMM, COMP, RankWork, common_keys
from lab.stats import robust
from lab.stats.intervals import overlap, spans, union
from lab.stats.robust import column_medians

# A kernel's usual time needs so many instances without a collective beside it; a rank's own speed so many.
FEWEST_FREE, FEWEST_RATIOS = 3, 5
# Ranks whose speeds differ by less, or by less than three sigma of their kernels, are one population.
SAME_SPEED, SIGMAS = 0.1, 3 * 1.4826


@dataclass(frozen=True)
class Contention:
    """Per operation of one rank (n,) in ns: what collectives cost it.

    not_separable is the time beside collectives of kernels that never ran alone: it stays in compute.
    """

    cost_ns: np.ndarray
    not_separable_ns: np.ndarray


def contention_of(works: Sequence[RankWork]) -> list[Contention]:
    """One per rank. A kernel's usual time is the median of the same kernel (op, shapes, grid) alone.

    On the same rank from three instances on; otherwise over all ranks times the rank's own speed (the median
    ratio of its free kernels of that class), so that a slow rank's own slowness is not booked as contention.
    """
    shared, number_of_key = common_keys(works)
    numbers = [number[work.key] for number, work in zip(number_of_key, works, strict=True)]
    num_ranks, num_keys = len(works), len(shared)
    overlaps = [_overlaps(work) for work in works]
    computes = [work.kind == COMP for work in works]
    # Alone ran what no collective was beside; a kernel of no time tells nothing of the usual one.
    free = [
        mask & (beside == 0) & (work.end > work.start)
        for mask, work, (beside, _) in zip(computes, works, overlaps, strict=True)
    ]
    rank = np.repeat(np.arange(num_ranks), [int(mask.sum()) for mask in free])
    key = np.concatenate([number[mask] for number, mask in zip(numbers, free, strict=True)])
    dur = np.concatenate([(work.end - work.start)[mask] for work, mask in zip(works, free, strict=True)])
    classes = np.array([CLASSES.index(kernel_class(name[3], name[0])) for name in shared], dtype=np.int64)
    medians_ns, counts = _medians(rank * num_keys + key, dur, num_ranks * num_keys)
    own_ns, own_count = medians_ns.reshape(num_ranks, num_keys), counts.reshape(num_ranks, num_keys)
    # A median over a slow rank and a fast one would be neither's, and one over the fast one alone would make
    # the slow one contended: times are first put on one speed.
    apart = _far_speeds(np.where(own_count > 0, own_ns, np.nan), classes)
    usual_ns, usual_count = _medians(key, dur / apart[rank, classes[key]], num_keys)
    speed = _by_class(rank, classes[key], dur / usual_ns[key], num_ranks)
    contention = []
    for i, (work, (_, owned)) in enumerate(zip(works, overlaps, strict=True)):
        of_row = numbers[i]
        has_own = own_count[i, of_row] >= FEWEST_FREE
        has_usual = has_own | (usual_count[of_row] >= FEWEST_FREE)
        base = np.where(has_own, own_ns[i, of_row], usual_ns[of_row] * speed[i, classes[of_row]])
        slower = np.clip(work.end - work.start - base, 0, owned)
        cost = np.where(computes[i] & has_usual & (owned > 0), slower, 0.0)
        not_separable = np.where(computes[i] & ~has_usual, owned, 0)
        contention.append(Contention(np.rint(cost).astype(np.int64), not_separable))
    return contention


def _overlaps(work: RankWork) -> tuple[np.ndarray, np.ndarray]:
    """Per operation: time beside collectives, and of it owned.

    Where kernels overlap, the one that started first owns the time, so that no instant counts twice.
    """
    operations = spans(work.start, work.end - work.start)
    comm = union(operations[work.kind == COMM])
    owned = operations.copy()
    rows = np.flatnonzero(work.kind == COMP)
    # Ties go by the row, so that the same recording always gives the same owner.
    rows = rows[np.lexsort((rows, work.start[rows]))]
    if len(rows):
        reach = np.maximum.accumulate(work.end[rows])
        owned[rows[1:], 0] = np.minimum(np.maximum(work.start[rows[1:]], reach[:-1]), work.end[rows[1:]])
    return overlap(operations, comm), overlap(owned, comm)


def _medians(group: np.ndarray, values: np.ndarray, num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Median and count of each group 0..num_groups-1; 0 where it is empty."""
    of_groups = robust.grouped(values, group, num_groups)
    return np.nan_to_num(of_groups["median"]), of_groups["count"]


def _far_speeds(times: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Speeds (ranks, classes) far from the others', else 1, from kernels that several ranks ran free.

    times (ranks, keys): NaN where a rank did not.
    """
    shared = np.flatnonzero((~np.isnan(times)).sum(axis=0) > 1)
    ratio = times[:, shared] / column_medians(times[:, shared])
    rank, column = np.nonzero(~np.isnan(ratio))
    of_class, ratios = classes[shared][column], ratio[rank, column]
    middle = _by_class(rank, of_class, ratios, len(times))
    spread = _by_class(rank, of_class, np.abs(ratios - middle[rank, of_class]), len(times))
    is_far = np.abs(middle - 1) > np.maximum(SAME_SPEED, SIGMAS * spread)
    speeds: np.ndarray = np.where(is_far, middle, 1.0)
    return speeds


def _by_class(rank: np.ndarray, of_class: np.ndarray, values: np.ndarray, num_ranks: int) -> np.ndarray:
    """Medians (ranks, classes) of values (n,), 1 where there are too few."""
    middle, count = _medians(rank * len(CLASSES) + of_class, values, num_ranks * len(CLASSES))
    return np.where(count >= FEWEST_RATIOS, middle, 1.0).reshape(num_ranks, len(CLASSES))
