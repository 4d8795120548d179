"""Tests of order, place and dependence over distinct draws: trials with one seed are one draw, in any cell.

Cells share the seeds of a block unless they have seeds of their own. So failures are shuffled over blocks,
those of all cells that share seeds together: that is right however alike such cells fail. A cell with seeds
of its own is shuffled by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lab.rooms.trials.config import NOT_RUN, Trial

# With the observed order 2,000 arrangements: p in steps of 0.0005.
RESAMPLES = 1999
SEED = 2025
CHUNK_VALUES = 4_000_000  # shuffled at once
SLACK = 1e-9  # of sums of at most 1 per trial: what rounding makes of equal ones


class Group(NamedTuple):
    """Cells that share seeds, by block and cell (blocks, cells).

    residuals: 1 or 0 for a failure or a pass, minus the cell's rate; 0 where no trial was judged. rows: the
    trial's index, -1 without one. strata (blocks,): blocks of one number had trials in the same cells.
    """

    residuals: np.ndarray
    rows: np.ndarray
    strata: np.ndarray
    draws: int  # blocks with a judged trial


def groups_of(trials: Sequence[Trial]) -> list[Group]:
    """Groups of cells that share seeds. A trial whose seed another group has had is in none."""
    cells: dict[object, dict[str, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    first_trial: dict[str, Trial] = {}
    for index, trial in enumerate(trials):
        start = first_trial.setdefault(trial.cell, trial)
        base = "blocks" if start.seed is None else start.seed - start.trial
        cells[base][trial.cell][trial.trial] = index
    groups, used_seeds = [], set[int]()
    for of_group in cells.values():
        seeds = set[int]()
        for by_block in of_group.values():
            for block, index in list(by_block.items()):
                seed = trials[index].seed
                if seed in used_seeds:
                    del by_block[block]
                elif seed is not None:
                    seeds.add(seed)
        used_seeds |= seeds
        groups.append(_group(trials, list(of_group.values())))
    return groups


def _group(trials: Sequence[Trial], cells: Sequence[dict[int, int]]) -> Group:
    blocks = sorted({block for by_block in cells for block in by_block})
    rows = np.array([[by_block.get(block, -1) for by_block in cells] for block in blocks], dtype=np.int64)
    rows = rows.reshape(len(blocks), len(cells))
    verdicts = np.array([*(trial.verdict for trial in trials), NOT_RUN])[rows]
    judged = (verdicts == "pass") | (verdicts == "fail")
    fails = verdicts == "fail"
    rates = fails.sum(axis=0) / np.maximum(1, judged.sum(axis=0))
    # Cells that were decided early have no late blocks: only blocks of the same cells are exchangeable.
    strata = np.unique(verdicts != NOT_RUN, axis=0, return_inverse=True)[1].reshape(-1)
    return Group(np.where(judged, fails - rates, 0.0), rows, strata, int(judged.any(axis=1).sum()))


def shuffled(groups: Sequence[Group], columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Statistics as they are (k + 1,) and of RESAMPLES shuffles (RESAMPLES, k + 1).

    One per column of `columns` (trials, k): the sum of residual times value, values taken from their cell's
    mean, NaN left out; then the sum of products of each cell's neighbouring residuals.
    """
    random = np.random.default_rng(SEED)
    observed, drawn = np.zeros(columns.shape[1] + 1), np.zeros((RESAMPLES, columns.shape[1] + 1))
    for group in groups:
        if not group.residuals.any():
            continue
        values = _centred(columns, group)
        observed += _statistics(group.residuals[None], values)[0]
        start = 0
        for order in _orders(group, random):
            part = _statistics(group.residuals[order], values)
            drawn[start : start + len(part)] += part
            start += len(part)
    return observed, drawn


def _centred(columns: np.ndarray, group: Group) -> np.ndarray:
    """Values from their cell's mean (blocks x cells, k), at most 1."""
    values: np.ndarray = np.concatenate([columns, np.full((1, columns.shape[1]), np.nan)])[group.rows]
    # What a cell without a judged trial measured says nothing; its residuals are 0.
    measured = ~np.isnan(values)
    means = np.where(measured, values, 0).sum(axis=0) / np.maximum(1, measured.sum(axis=0))
    centred = np.where(measured, values - means, 0.0).reshape(-1, columns.shape[1])
    largest = np.abs(centred).max(axis=0)
    return centred / np.where(largest > 0, largest, 1.0)


def _statistics(residuals: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Compute statistics of residuals (n, blocks, cells) -> (n, k + 1)."""
    linear = residuals.reshape(len(residuals), -1) @ values
    serial = (residuals[:, 1:] * residuals[:, :-1]).sum(axis=(1, 2))
    return np.concatenate([linear, serial[:, None]], axis=1)


def _orders(group: Group, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Shuffled orders of blocks, within strata, many at a time (n, blocks)."""
    size = max(1, CHUNK_VALUES // group.residuals.size)
    for start in range(0, RESAMPLES, size):
        orders = np.tile(np.arange(len(group.strata)), (min(size, RESAMPLES - start), 1))
        for stratum in np.unique(group.strata):
            blocks = np.flatnonzero(group.strata == stratum)
            orders[:, blocks] = random.permuted(orders[:, blocks], axis=1)
        yield orders


def two_sided_p(observed: Any, drawn: np.ndarray) -> float | None:
    """p that a statistic is as far out as `observed` on either side; None where shuffling changes nothing."""
    if np.ptp(drawn) <= SLACK:
        return None
    above, below = (drawn >= observed - SLACK).sum(), (drawn <= observed + SLACK).sum()
    return float(min(1.0, 2 * (1 + min(above, below)) / (1 + len(drawn))))


def worst_of_p(observed: np.ndarray, drawn: np.ndarray) -> tuple[float | None, np.ndarray]:
    """For several statistics (k,) the p that their largest is as large by chance, and each one's p among all.

    By the shuffles' own largest (Westfall and Young, 1993): no further correction for their number.
    """
    spread = drawn.std(axis=0)
    can_move = spread > SLACK
    if can_move.sum() < 2:
        return None, np.ones(len(observed))
    middle, unit = drawn.mean(axis=0), np.where(can_move, spread, np.inf)
    scores, shuffles = (observed - middle) / unit, (drawn - middle) / unit
    # The observed order must count as one of the shuffles, however its values were summed.
    largest, furthest = shuffles.max(axis=1) + SLACK, np.abs(shuffles).max(axis=1) + SLACK
    p_of_each = (1 + (largest >= scores[:, None]).sum(axis=1)) / (1 + len(drawn))
    return float((1 + (furthest >= np.abs(scores).max()).sum()) / (1 + len(drawn))), p_of_each
