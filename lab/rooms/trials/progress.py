"""While trials run: how many more, and which cells need none. Loads numpy only where a run may stop early."""

from __future__ import annotations

from collections.abc import Sequence

from lab.core.words import plural
from lab.rooms.trials.config import DECIDED, JUDGED, NOT_RUN, Trial, TrialsConfig


def progress(config: TrialsConfig, rows: Sequence[Trial]) -> str:
    """One line: the counts, and how many more trials it takes."""
    if config.until:
        return _until(config, rows)
    counted = ", ".join("{} {}/{}".format(cell.name, *_counts(rows, cell.name)) for cell in config.cells)
    left = config.trials * len(config.cells) - len(rows)
    ended_cells = ended(config, rows)
    open_cells = [cell.name for cell in config.cells if config.stop and cell.name not in ended_cells]
    wanted = f" at most; still open: {', '.join(open_cells)}" if open_cells else ""
    return f"{counted} failed; {plural(left, 'trial')} left{wanted}" if left else f"{counted} failed"


def why_not(config: TrialsConfig, name: str, rows: Sequence[Trial]) -> str:
    """Why a further trial of this cell is not needed, by the rows so far; "": it is."""
    return DECIDED if name in ended(config, rows) else ""


def ended(config: TrialsConfig, rows: Sequence[Trial]) -> set[str]:
    """The cells of which no further trial is wanted: the baseline's are until all others are decided."""
    if not (config.stop or config.until):
        return set()
    rows = _without_gaps(rows)
    if config.until:
        return set() if _answer(config, rows) == "undecided" else {config.baseline}
    from lab.rooms.trials.decide import LESS, compared

    comparisons = compared(rows, [cell.name for cell in config.cells], config.baseline)
    decided = {comparison.cell for comparison in comparisons if comparison.verdict == LESS}
    return decided | ({config.baseline} if decided and len(decided) == len(comparisons) else set())


def _without_gaps(rows: Sequence[Trial]) -> list[Trial]:
    """Keep of each cell the trials before the first that has not ended.

    Trials that fail end sooner, or later, than those that pass: of several at a time, the ones that have
    ended are not a fair sample.
    """
    trials = {(row.cell, row.trial) for row in rows}
    cells = {row.cell for row in rows}
    first_gap = {cell: next(n for n in range(len(rows) + 1) if (cell, n) not in trials) for cell in cells}
    return [row for row in rows if row.trial < first_gap[row.cell]]


def _until(config: TrialsConfig, rows: Sequence[Trial]) -> str:
    test = config.until
    assert test
    fail, n = _counts(rows, config.baseline)
    answer = _answer(config, rows)
    if answer != "undecided":
        return f"{fail} of {n} failed: {answer}"
    left = config.trials - sum(row.verdict != NOT_RUN for row in rows)
    return (
        f"{fail} of {n} failed; in a row, {plural(test.passes_left(fail, n), 'more pass')} would say fixed, "
        f"{plural(test.fails_left(fail, n), 'more failure')} not fixed; {plural(left, 'trial')} left at most"
    )


def _answer(config: TrialsConfig, rows: Sequence[Trial]) -> str:
    assert config.until
    ordered = sorted(rows, key=lambda row: row.trial)
    return config.until.answer([row.verdict == "fail" for row in ordered if row.verdict in JUDGED])


def _counts(rows: Sequence[Trial], name: str) -> tuple[int, int]:
    verdicts = [row.verdict for row in rows if row.cell == name and row.verdict in JUDGED]
    return verdicts.count("fail"), len(verdicts)
