"""How much a control arm is slowed: as much as its cell is, by the trials so far. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lab.rooms.trials.config import RATIO, Cell, Trial, TrialsConfig

MOST = 50.0
RECENT = 3  # control trials that the next one learns from


def pause_for(config: TrialsConfig, cell: Cell, rows: Sequence[Trial]) -> float | None:
    """How many times as long the processes of this control are to take; None: its cell is not slower (yet).

    From the trials so far: the cell's median step time over the baseline's, and more where earlier trials of
    the control stayed below it, as those of a program do that waits for its GPU anyway.
    """
    if cell.paused is not None:
        return cell.paused
    base, slow, mine = (
        [row for row in rows if row.cell == name and row.step_time]
        for name in (config.baseline, cell.slow_as, cell.name)
    )
    if not base or not slow:
        return None
    wanted = _median(slow) / _median(base)
    if wanted <= RATIO:
        return None
    recent = [row for row in sorted(mine, key=lambda row: row.trial) if row.paused][-RECENT:]
    if not recent:
        return min(MOST, wanted)
    # What each of them would have needed, had it reached less or more in proportion.
    needed = [(one.paused or 1.0) * wanted * _median(base) / (one.step_time or 1.0) for one in recent]
    return max(1.0, min(MOST, statistics.median(needed)))


def _median(rows: Sequence[Trial]) -> float:
    return statistics.median(row.step_time for row in rows if row.step_time)
