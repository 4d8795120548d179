"""From trials to rates, comparisons and the answer to "how many more?". Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lab.rooms.trials.config import ALPHA, JUDGED, NOT_RUN, RATIO, Trial
from lab.rooms.trials.draws import groups_of, shuffled, two_sided_p, worst_of_p
from lab.rooms.trials.rates import (
    anytime_interval,
    e_path,
    exact_interval,
    fisher_less_p,
    fisher_p,
    stratified_p,
)
from lab.rooms.trials.sprt import Answer, Until
from lab.stats.effects import holm, median_ratio_ci

LESS, MORE = "fails less", "fails more"  # the verdicts that decide a comparison
SLOWER = "fails less, but slower"  # and nothing tells slowness from a cure
BY_ERRORS = "fails less, but ends in error more often"  # its failures may have become errors
BY_PLACE = "confounded with the place"
BY_TIME = "confounded with time"  # one side ran before the other
NO_EVIDENCE, NO_TRIALS = "no evidence", "no trials"
# In ROCm/aorta#511 nothing read 7 of 21 mitigations.
NO_EFFECT = "no effect"  # nothing reads what the cell sets: a second baseline, and no comparison
ANSWERS = (LESS, MORE)  # a cell with another verdict is undecided
SAME_SEEDS = 3  # seeds after which equal numbers are not an accident
LATER = 0.9  # from this share of pairs in which one side began later, time is a reason of its own
MOST_PLACES = 8  # that are named, the worst first
MORE_ERRORS = 0.2  # one-sided p; lenient, because a few early errors show little
# As in ROCm/aorta.
UNRELIABLE = 0.1  # from this share of errors, a cell's rate is not trusted
# Of all that is said beside the comparisons; with them it stays below 5 % (python -m bench trials_rates).
CONFOUND_ALPHA = 0.02
FEW = 4  # trials with a number (a temperature, a clock) below which it is not tested


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
    repeats: bool = False  # every trial gave the same numbers under another seed


@dataclass(frozen=True)
class Comparison:
    """A cell against the baseline; p-values None where either has no trial."""

    cell: str
    baseline: str
    p: float | None
    p_corrected: float | None
    verdict: str
    p_by_place: float | None = None  # stratified by host and GPU, where there is more than one
    slowdown: float | None = None  # ratio of median step times, with its interval
    slowdown_low: float | None = None
    slowdown_high: float | None = None
    began_later: float | None = None  # share of pairs in which the cell's trial began after the baseline's


@dataclass(frozen=True)
class Place:
    """A host and GPU that fails more often than others in the same cells; p among all places."""

    name: str
    fail: int
    n: int
    elsewhere_fail: int
    elsewhere_n: int
    p: float


@dataclass(frozen=True)
class Confounds:
    """What failures go with beside the cells, by distinct draws; p-values corrected together (Holm).

    p: of "order", "dependence", "place", "temperature" and "clock", those that could be tested. clusters:
    failures follow failures; else they alternate.
    """

    draws: int = 0
    p: dict[str, float] = field(default_factory=dict)
    clusters: bool = False
    worse_places: tuple[Place, ...] = ()

    def shows(self, name: str) -> bool:
        return self.p.get(name, 1.0) <= CONFOUND_ALPHA


@dataclass(frozen=True)
class Decision:
    cells: list[Rate]
    comparisons: list[Comparison]
    decided: bool
    until: Answer | None = None  # of the sequential test
    confounds: Confounds = Confounds()


def decide(
    trials: Sequence[Trial], names: Sequence[str], baseline: str, *, stop: bool, until: Until | None
) -> Decision:
    """All that these trials say. stop: intervals and tests hold at every look."""
    by_cell = _by_cell(trials, names)
    cells = [_rate(name, by_cell[name], stop or until is not None) for name in names]
    comparisons = _comparisons(by_cell, baseline, stop)
    answer = until.answer([t.verdict == "fail" for t in _judged(by_cell[baseline])]) if until else None
    complete = all(rate.left == 0 and rate.n > 0 for rate in cells)
    decided = all(comparison.verdict in ANSWERS for comparison in comparisons) if comparisons else complete
    return Decision(
        cells=cells,
        comparisons=comparisons,
        decided=answer != "undecided" if answer else decided and (stop or complete),
        until=answer,
        confounds=_confounds(trials),
    )


def compared(trials: Sequence[Trial], names: Sequence[str], baseline: str) -> list[Comparison]:
    """The comparisons alone, as they hold at every look."""
    return _comparisons(_by_cell(trials, names), baseline, True)


def place_of(trial: Trial) -> str:
    return f"{trial.host} {trial.gpus}".strip()


def _by_cell(trials: Sequence[Trial], names: Sequence[str]) -> dict[str, list[Trial]]:
    return {name: sorted((t for t in trials if t.cell == name), key=lambda t: t.trial) for name in names}


def _rate(name: str, trials: Sequence[Trial], looked: bool) -> Rate:
    count = Counter(trial.verdict for trial in trials)
    n, fail = count["pass"] + count["fail"], count["fail"]
    # Fixed-n intervals, looked at after each trial, exclude the true rate in 17 to 25 % of runs.
    low, high = anytime_interval(fail, n) if looked else exact_interval(fail, n)
    rate = fail / n if n else None
    return Rate(name, n, fail, count["error"], rate, low, high, count[NOT_RUN], _repeats(_judged(trials)))


def _repeats(judged: Sequence[Trial]) -> bool:
    """Whether these trials, of several seeds, judged the same numbers: then they are one trial, repeated."""
    numbers, seeds = {t.judged for t in judged}, {t.seed for t in judged}
    return len(seeds) >= SAME_SEEDS and len(numbers) == 1 and "" not in numbers


def _comparisons(by_cell: Mapping[str, list[Trial]], baseline: str, stop: bool) -> list[Comparison]:
    judged = {name: _judged(trials) for name, trials in by_cell.items()}
    base = judged.pop(baseline)
    test = _stopping_p if stop else _fisher
    raw = {name: test(base, trials) for name, trials in judged.items() if trials and base}
    # Cells that cannot be tested yet count too: a correction must not grow while trials come in.
    corrected = dict(
        zip(raw, holm([*raw.values(), *[1.0] * (len(judged) - len(raw))]).tolist(), strict=False)
    )
    comparisons = []
    for name, cell in judged.items():
        comparison = Comparison(name, baseline, raw.get(name), corrected.get(name), NO_TRIALS)
        if name in raw:
            comparison = _with_reasons(comparison, base, cell, stop)
        if comparison.verdict in (LESS, SLOWER) and _has_more_errors(by_cell[baseline], by_cell[name]):
            comparison = replace(comparison, verdict=BY_ERRORS)
        comparisons.append(comparison)
    return comparisons


def _has_more_errors(base: Sequence[Trial], cell: Sequence[Trial]) -> bool:
    """Errors are in no rate: a cell whose failures end in another way than --fail names is not a cure."""
    (errors, n), (base_errors, base_n) = (
        (sum(t.verdict == "error" for t in side), sum(t.verdict != NOT_RUN for t in side))
        for side in (cell, base)
    )
    return errors >= UNRELIABLE * n and fisher_less_p(base_errors, base_n, errors, n) <= MORE_ERRORS


def _with_reasons(comparison: Comparison, base: list[Trial], cell: list[Trial], stop: bool) -> Comparison:
    """The verdict on a tested cell, with what else than the cell may be its reason: time, place, speed."""
    if all(trial.effect not in ("", "yes") for trial in cell):
        return replace(comparison, verdict=NO_EFFECT)
    slowdown, low, high = _slowdown(base, cell)
    by_place = _stratified(base, cell)
    # A cell that was decided early has no later blocks.
    blocks = {trial.trial for trial in cell}
    later = _began_later([t for t in base if t.trial in blocks] if stop else base, cell)
    share, base_share = (float(np.mean([t.verdict == "fail" for t in side])) for side in (cell, base))
    verdict = NO_EVIDENCE
    if comparison.p_corrected is not None and comparison.p_corrected <= ALPHA:
        verdict = LESS if stop or share < base_share else MORE
        if later is not None and max(later, 1 - later) >= LATER:
            verdict = BY_TIME
        elif by_place is not None and by_place > ALPHA:
            verdict = BY_PLACE
        elif verdict == LESS and slowdown is not None and low is not None and slowdown > RATIO and low > 1:
            verdict = SLOWER
    return replace(
        comparison,
        verdict=verdict,
        p_by_place=by_place,
        slowdown=slowdown,
        slowdown_low=low,
        slowdown_high=high,
        began_later=later,
    )


def _judged(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in trials if t.verdict in JUDGED]


def _counts(trials: Sequence[Trial]) -> tuple[int, int]:
    return sum(t.verdict == "fail" for t in trials), len(trials)


def _fisher(base: list[Trial], cell: list[Trial]) -> float:
    return fisher_p(*_counts(cell), *_counts(base))


def _stopping_p(base: list[Trial], cell: list[Trial]) -> float:
    """One-sided p that the cell fails less, from the blocks in which both were judged, in their order."""
    fails = {t.trial: t.verdict == "fail" for t in base}
    pairs = [(fails[t.trial], t.verdict == "fail") for t in cell if t.trial in fails]
    path = e_path(pairs)
    return min(1.0, path[-1]) if path else 1.0


def _stratified(base: list[Trial], cell: list[Trial]) -> float | None:
    places = sorted({place_of(t) for t in [*base, *cell]})
    if len(places) < 2:
        return None
    tables = []
    for place in places:
        of_cell, of_base = ([t for t in side if place_of(t) == place] for side in (cell, base))
        tables.append((*_counts(of_cell), *_counts(of_base)))
    return stratified_p(tables)


def _began_later(base: list[Trial], cell: list[Trial]) -> float | None:
    """0.5 where both ran at the same times, 1 where all of the cell's trials began after the baseline's.

    By the clock, which several queues or nodes do not order as planned; without one by the planned order.
    """
    for name in ("started_utc", "order"):
        starts = [[getattr(t, name) for t in side] for side in (base, cell)]
        if not any(value in (None, "") for side in starts for value in side):
            ranks = np.unique(np.array(starts[0] + starts[1]), return_inverse=True)[1]
            base_ranks, cell_ranks = ranks[: len(base)], ranks[len(base) :]
            if not len(base_ranks) or not len(cell_ranks):
                return None
            difference = cell_ranks[:, None] - base_ranks[None, :]
            return float(((difference > 0) + 0.5 * (difference == 0)).mean())
    return None


def _slowdown(base: list[Trial], cell: list[Trial]) -> tuple[float | None, float | None, float | None]:
    times = [np.array([t.step_time for t in side if t.step_time]) for side in (base, cell)]
    if min(len(times[0]), len(times[1])) < 2:
        return None, None, None
    low, high = median_ratio_ci(times[0], times[1])
    # Medians: a mean takes in the set-up of the first step (+3619 % in ROCm/aorta#179).
    return float(np.median(times[1]) / np.median(times[0])), low, high


def _confounds(trials: Sequence[Trial]) -> Confounds:
    """Order, dependence, place, temperature and clock, by shuffles of whole draws."""
    groups = groups_of(trials)
    columns = {"order": _numbers(trials, "order")}
    columns["temperature"] = _numbers(trials, "temperature_c")
    columns["clock"] = _numbers(trials, "sm_clock_mhz")
    places = sorted({place_of(t) for t in _judged(trials)})
    of_places = [np.array([place_of(t) == place for t in trials], dtype=float) for place in places]
    observed, drawn = shuffled(groups, np.stack([*columns.values(), *of_places], axis=1))
    raw = {name: two_sided_p(observed[index], drawn[:, index]) for index, name in enumerate(columns)}
    raw["dependence"] = two_sided_p(observed[-1], drawn[:, -1])
    first_place = len(columns)
    raw["place"], by_place = worst_of_p(observed[first_place:-1], drawn[:, first_place:-1])
    tested = {name: p for name, p in raw.items() if p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())).tolist(), strict=True))
    worse = () if corrected.get("place", 1.0) > CONFOUND_ALPHA else _worse_places(trials, places, by_place)
    clusters = bool(observed[-1] > np.median(drawn[:, -1]))
    return Confounds(sum(group.draws for group in groups), corrected, clusters, worse)


def _numbers(trials: Sequence[Trial], name: str) -> np.ndarray:
    """A number of each trial, NaN where it is absent; all NaN where too few have it."""
    values = np.array([np.nan if (value := getattr(t, name)) is None else value for t in trials], dtype=float)
    return values if (~np.isnan(values)).sum() >= FEW else np.full(len(values), np.nan)


def _worse_places(trials: Sequence[Trial], places: Sequence[str], p: np.ndarray) -> tuple[Place, ...]:
    """The places that fail more often than the others do in the same cells: no cell is its GPU's fault."""
    tally: dict[str, Counter[str]] = defaultdict(Counter)
    for trial in _judged(trials):
        tally[place_of(trial)].update(n=1, fail=trial.verdict == "fail")
    total = sum(tally.values(), Counter[str]())
    worse = [
        Place(
            name,
            tally[name]["fail"],
            tally[name]["n"],
            total["fail"] - tally[name]["fail"],
            total["n"] - tally[name]["n"],
            float(p_of_place),
        )
        for name, p_of_place in zip(places, p, strict=True)
        if p_of_place <= ALPHA
    ]
    return tuple(sorted(worse, key=lambda place: -place.fail / place.n)[:MOST_PLACES])
