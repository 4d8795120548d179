"""From trials to rates, comparisons and the answer to "how many more?". Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.rooms.trials.config import ALPHA, NOT_RUN, RATIO, Trial, Until
from lab.stats.effects import median_ratio_ci, permutation_p
from lab.stats.rates import (
    anytime_interval,
    chi2_p,
    e_path,
    exact_interval,
    fisher_p,
    holm,
    stratified_p,
)
from lab.stats.sprt import Answer, Sprt, first_answer

LESS, MORE = "fails less", "fails more"  # the verdicts that decide a comparison
SLOWER = "fails less, but slower"
BY_PLACE = "confounded with the place"
NO_EVIDENCE, NO_TRIALS = "no evidence", "no trials"
NO_EFFECT = "no effect"  # nothing reads what the cell sets: a second baseline, and no comparison
UNRELIABLE = 0.1  # from this share of errors, a cell's rate is not trusted


@dataclass(frozen=True)
class Rate:
    """One cell; `n` trials passed or failed, `error` are in no rate, `left` were planned and not run."""

    name: str
    n: int
    fail: int
    error: int
    rate: float | None
    low: float
    high: float
    left: int = 0


@dataclass(frozen=True)
class Comparison:
    """A cell against the baseline; p-values None where a side has no trial. `needed`: trials per cell."""

    cell: str
    baseline: str
    p: float | None
    p_corrected: float | None
    verdict: str
    p_by_place: float | None = None  # stratified by host and GPU, where there is more than one
    slowdown: float | None = None  # ratio of median step times, with its interval
    slowdown_low: float | None = None
    slowdown_high: float | None = None


@dataclass(frozen=True)
class Decision:
    cells: list[Rate]
    comparisons: list[Comparison]
    decided: bool
    until: Answer | None = None  # of the sequential test
    p_order: float | None = None  # failures move with time, within cells
    p_place: float | None = None  # hosts and GPUs fail at different rates
    p_heat: float | None = None  # failing trials ran at another temperature, within cells
    p_clock: float | None = None  # failing trials ran at another clock, within cells


def decide(
    trials: Sequence[Trial], names: Sequence[str], baseline: str, *, stop: bool, until: Until | None
) -> Decision:
    """All that these trials say. `stop`: intervals and tests hold at every look."""
    by_cell = {name: sorted((t for t in trials if t.cell == name), key=lambda t: t.trial) for name in names}
    looked = stop or until is not None
    cells = [_rate(name, by_cell[name], looked) for name in names]
    compared = _comparisons(by_cell, baseline, stop)
    answer = _sequential(by_cell[baseline], until) if until else None
    complete = all(one.left == 0 and one.n > 0 for one in cells)
    decided = all(one.verdict in (LESS, MORE) for one in compared) if compared else complete
    judged = [t for t in trials if t.verdict in ("pass", "fail")]
    return Decision(
        cells=cells,
        comparisons=compared,
        decided=answer != "undecided" if answer else decided and (stop or complete),
        until=answer,
        p_order=_within_cells_p(judged, "order"),
        p_place=_place_p(judged),
        p_heat=_within_cells_p(judged, "temperature_c"),
        p_clock=_within_cells_p(judged, "sm_clock_mhz"),
    )


def place(trial: Trial) -> str:
    return f"{trial.host} {trial.gpus}".strip()


def _rate(name: str, trials: Sequence[Trial], looked: bool) -> Rate:
    count = {verdict: sum(t.verdict == verdict for t in trials) for verdict in ("pass", "fail", "error")}
    n, fail = count["pass"] + count["fail"], count["fail"]
    low, high = anytime_interval(fail, n) if looked else exact_interval(fail, n)
    left = sum(t.verdict == NOT_RUN for t in trials)
    return Rate(name, n, fail, count["error"], fail / n if n else None, low, high, left)


def _comparisons(by_cell: dict[str, list[Trial]], baseline: str, stop: bool) -> list[Comparison]:
    base = _judged(by_cell[baseline])
    others = {name: _judged(trials) for name, trials in by_cell.items() if name != baseline}
    testable = [name for name, trials in others.items() if trials and base]
    p_values = [_stopping_p(base, others[n]) if stop else _fisher(base, others[n]) for n in testable]
    # Cells that cannot be tested yet count too: a correction must not grow while trials come in.
    padded = holm([*p_values, *[1.0] * (len(others) - len(testable))])
    corrected = dict(zip(testable, padded, strict=False))
    raw = dict(zip(testable, p_values, strict=True))
    return [
        _comparison(name, baseline, base, others[name], raw.get(name), corrected.get(name), stop)
        for name in others
    ]


def _comparison(
    name: str,
    baseline: str,
    base: list[Trial],
    cell: list[Trial],
    p: float | None,
    corrected: float | None,
    stop: bool,
) -> Comparison:
    if p is None or corrected is None:
        return Comparison(name, baseline, None, None, NO_TRIALS)
    if all(trial.effect not in ("", "yes") for trial in cell):
        return Comparison(name, baseline, p, corrected, NO_EFFECT)
    slowdown, low, high = _slowdown(base, cell)
    by_place = _stratified(base, cell)
    share = [float(np.mean([t.verdict == "fail" for t in side])) for side in (cell, base)]
    verdict = NO_EVIDENCE
    if corrected <= ALPHA:
        verdict = LESS if stop or share[0] < share[1] else MORE
        if by_place is not None and by_place > ALPHA:
            verdict = BY_PLACE
        elif verdict == LESS and slowdown is not None and low is not None and slowdown > RATIO and low > 1:
            verdict = SLOWER
    return Comparison(name, baseline, p, corrected, verdict, by_place, slowdown, low, high)


def _judged(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in trials if t.verdict in ("pass", "fail")]


def _counts(trials: Sequence[Trial]) -> tuple[int, int]:
    return sum(t.verdict == "fail" for t in trials), len(trials)


def _fisher(base: list[Trial], cell: list[Trial]) -> float:
    return fisher_p(*_counts(cell), *_counts(base))


def _stopping_p(base: list[Trial], cell: list[Trial]) -> float:
    """From the blocks in which both were judged, in their order: one-sided, that the cell fails less."""
    fails = {t.trial: t.verdict == "fail" for t in base}
    pairs = [(fails[t.trial], t.verdict == "fail") for t in cell if t.trial in fails]
    path = e_path(pairs)
    return min(1.0, path[-1]) if path else 1.0


def _stratified(base: list[Trial], cell: list[Trial]) -> float | None:
    places = sorted({place(t) for t in [*base, *cell]})
    if len(places) < 2:
        return None
    tables = []
    for one in places:
        here = [[t for t in side if place(t) == one] for side in (cell, base)]
        tables.append((*_counts(here[0]), *_counts(here[1])))
    return stratified_p(tables)


def _slowdown(base: list[Trial], cell: list[Trial]) -> tuple[float | None, float | None, float | None]:
    times = [np.array([t.step_time for t in side if t.step_time]) for side in (base, cell)]
    if min(len(times[0]), len(times[1])) < 2:
        return None, None, None
    low, high = median_ratio_ci(times[0], times[1])
    return float(np.median(times[1]) / np.median(times[0])), low, high


def _sequential(trials: Sequence[Trial], until: Until) -> Answer:
    return first_answer(Sprt(until.fixed, until.was), [t.verdict == "fail" for t in _judged(trials)])


def _within_cells_p(judged: Sequence[Trial], name: str) -> float | None:
    """Whether failing trials have another order, temperature or clock than passing ones, within their cells.

    None: too few trials have the number, or it never changes.
    """
    known = [t for t in judged if getattr(t, name) is not None]
    if len(known) < 4 or len({getattr(t, name) for t in known}) < 2:
        return None
    codes = {cell: at for at, cell in enumerate(sorted({t.cell for t in known}))}
    p = permutation_p(
        np.array([getattr(t, name) for t in known], dtype=float),
        np.array([t.verdict == "fail" for t in known]),
        np.array([codes[t.cell] for t in known]),
    )
    return None if np.isnan(p) else p


def _place_p(judged: Sequence[Trial]) -> float | None:
    tally: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for trial in judged:
        tally[place(trial)][0] += trial.verdict == "fail"
        tally[place(trial)][1] += 1
    if len(tally) < 2:
        return None
    return chi2_p([fail for fail, _ in tally.values()], [n for _, n in tally.values()])
