"""From trials to rates, comparisons and the answer to "how many more?". Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from lab.rooms.trials.config import ALPHA, NOT_RUN, RATIO, Trial, Until
from lab.rooms.trials.rates import (
    anytime_interval,
    chi2_p,
    e_path,
    exact_interval,
    fisher_less_p,
    fisher_p,
    runs_p,
    stratified_p,
)
from lab.rooms.trials.sprt import Answer, Sprt, first_answer
from lab.stats.effects import holm, median_ratio_ci, permutation_p

LESS, MORE = "fails less", "fails more"  # the verdicts that decide a comparison
SLOWER = "fails less, but slower"  # and nothing tells slowness from a cure
ONLY_SLOW = "fails less, as a slow baseline does"  # the control fails less, too
BY_ERRORS = "fails less, but ends in error more often"  # its failures may have become errors
BY_PLACE = "confounded with the place"
BY_TIME = "confounded with time"  # one side ran before the other
NO_EVIDENCE, NO_TRIALS = "no evidence", "no trials"
NO_EFFECT = "no effect"  # nothing reads what the cell sets: a second baseline, and no comparison
ANSWERS = (LESS, MORE, ONLY_SLOW)  # a cell with another verdict is undecided
SAME_SEEDS = 3  # seeds after which equal numbers are no accident
LATER = 0.9  # from this share of pairs in which one side began later, time is a reason of its own
CLOCK_STEP_S = 2.0  # a clock that is kept by NTP drifts less between two trials
MOST_PLACES = 8  # that are tested one by one, the worst first
MATCHED = 0.95  # a control must reach this share of its cell's step time
MOST_TIMES = 0.8  # share of a control's trials that must have been slowed
MORE_ERRORS = 0.2  # one-sided p; lenient, because a few early errors show little
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
    repeats: bool = False  # every trial gave the same numbers under another seed


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
    began_later: float | None = None  # share of pairs in which the cell's trial began after the baseline's
    control: str | None = None  # the baseline slowed down as much, where there is such a cell
    control_slowdown: float | None = None  # its median step time over the baseline's
    p_control: float | None = None  # the cell against its control, corrected
    p_slowness: float | None = None  # the control against the baseline, corrected


@dataclass(frozen=True)
class Place:
    """A host and GPU that fails more often than others in the same cells; p corrected for all places."""

    name: str
    fail: int
    n: int
    others_fail: int
    others_n: int
    p: float


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
    worse_places: tuple[Place, ...] = ()
    p_runs: float | None = None  # whether a trial fails has to do with those before it in its cell
    clusters: bool = False  # failures follow failures; else they alternate


def decide(
    trials: Sequence[Trial],
    names: Sequence[str],
    baseline: str,
    *,
    stop: bool,
    until: Until | None,
    controls: Mapping[str, str] | None = None,
) -> Decision:
    """All that these trials say. stop: intervals and tests hold at every look; controls: cell -> control."""
    by_cell = {name: sorted((t for t in trials if t.cell == name), key=lambda t: t.trial) for name in names}
    looked = stop or until is not None
    cells = [_rate(name, by_cell[name], looked) for name in names]
    of_cell = controls or {}
    compared = _comparisons(by_cell, baseline, stop, of_cell)
    answer = _sequential(by_cell[baseline], until) if until else None
    # A control that its cell has not needed has no trials.
    complete = all(one.left == 0 and one.n > 0 for one in cells if one.name not in of_cell.values())
    decided = all(one.verdict in ANSWERS for one in compared) if compared else complete
    judged = _judged(trials)
    p_place = _place_p(judged)
    fails = [[t.verdict == "fail" for t in _judged(trials)] for trials in by_cell.values()]
    p_runs, clusters = runs_p(fails)
    return Decision(
        cells=cells,
        comparisons=compared,
        decided=answer != "undecided" if answer else decided and (stop or complete),
        until=answer,
        p_order=_within_cells_p(judged, "order"),
        p_place=p_place,
        p_heat=_within_cells_p(judged, "temperature_c"),
        p_clock=_within_cells_p(judged, "sm_clock_mhz"),
        worse_places=_worse_places(judged) if p_place is not None and p_place <= ALPHA else (),
        p_runs=p_runs if any(0 < sum(one) < len(one) for one in fails) else None,
        clusters=clusters,
    )


def compared(
    trials: Sequence[Trial], names: Sequence[str], baseline: str, controls: Mapping[str, str]
) -> list[Comparison]:
    """The comparisons alone, as they hold at every look."""
    by_cell = {name: sorted((t for t in trials if t.cell == name), key=lambda t: t.trial) for name in names}
    return _comparisons(by_cell, baseline, True, controls)


def place(trial: Trial) -> str:
    return f"{trial.host} {trial.gpus}".strip()


def _rate(name: str, trials: Sequence[Trial], looked: bool) -> Rate:
    count = {verdict: sum(t.verdict == verdict for t in trials) for verdict in ("pass", "fail", "error")}
    n, fail = count["pass"] + count["fail"], count["fail"]
    low, high = anytime_interval(fail, n) if looked else exact_interval(fail, n)
    left = sum(t.verdict == NOT_RUN for t in trials)
    rate = fail / n if n else None
    return Rate(name, n, fail, count["error"], rate, low, high, left, _repeats(_judged(trials)))


def _repeats(judged: Sequence[Trial]) -> bool:
    """Whether these trials, of several seeds, judged the same numbers: then they are one trial, repeated."""
    numbers, seeds = {t.judged for t in judged}, {t.seed for t in judged}
    return len(seeds) >= SAME_SEEDS and len(numbers) == 1 and "" not in numbers


def _comparisons(
    by_cell: dict[str, list[Trial]], baseline: str, stop: bool, controls: Mapping[str, str]
) -> list[Comparison]:
    judged = {name: _judged(trials) for name, trials in by_cell.items()}
    base = judged[baseline]
    others = {name: judged[name] for name in by_cell if name != baseline and name not in controls.values()}
    test = _stopping_p if stop else _fisher
    raw = {name: test(base, trials) for name, trials in others.items() if trials and base}
    corrected = _holm(raw, len(others))
    first = [
        _comparison(name, baseline, base, others[name], raw.get(name), corrected.get(name), stop)
        for name in others
    ]
    first = [_unless_errors(one, by_cell[baseline], by_cell[one.cell]) for one in first]
    if not controls:
        return first
    # A cure needs both, fewer failures than the baseline and than a baseline that is as slow.
    against, slowness = {}, {}
    for name, trials in others.items():
        control = judged[controls[name]]
        if name in raw and control:
            against[name] = max(raw[name], test(control, trials) if stop else _fisher_less(control, trials))
            slowness[name] = test(base, control) if stop else _fisher_less(base, control)
    p_control, p_slowness = _holm(against, len(others)), _holm(slowness, len(others))
    return [
        _with_control(
            one, base, others[one.cell], controls[one.cell], judged[controls[one.cell]], p_control, p_slowness
        )
        for one in first
    ]


def _unless_errors(one: Comparison, base: Sequence[Trial], cell: Sequence[Trial]) -> Comparison:
    """Errors are in no rate: a cell whose failures end in another way than --fail names is no cure."""
    if one.verdict not in (LESS, SLOWER):
        return one
    (errors, n), (base_errors, base_n) = (
        (sum(t.verdict == "error" for t in side), sum(t.verdict != NOT_RUN for t in side))
        for side in (cell, base)
    )
    more = errors >= UNRELIABLE * n and fisher_less_p(base_errors, base_n, errors, n) <= MORE_ERRORS
    return replace(one, verdict=BY_ERRORS) if more else one


def _holm(p_values: Mapping[str, float], cells: int) -> dict[str, float]:
    """Cells that cannot be tested yet count too: a correction must not grow while trials come in."""
    padded = holm([*p_values.values(), *[1.0] * (cells - len(p_values))])
    return dict(zip(p_values, padded.tolist(), strict=False))


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
    later = _began_later(_shared(base, cell) if stop else base, cell)
    share = [float(np.mean([t.verdict == "fail" for t in side])) for side in (cell, base)]
    verdict = NO_EVIDENCE
    if corrected <= ALPHA:
        verdict = LESS if stop or share[0] < share[1] else MORE
        if later is not None and max(later, 1 - later) >= LATER:
            verdict = BY_TIME
        elif by_place is not None and by_place > ALPHA:
            verdict = BY_PLACE
        elif verdict == LESS and slowdown is not None and low is not None and slowdown > RATIO and low > 1:
            verdict = SLOWER
    return Comparison(name, baseline, p, corrected, verdict, by_place, slowdown, low, high, later)


def _with_control(
    one: Comparison,
    base: list[Trial],
    cell: list[Trial],
    name: str,
    control: list[Trial],
    p_control: Mapping[str, float],
    p_slowness: Mapping[str, float],
) -> Comparison:
    """A cell that fails less and is slower is a cure if it fails less than its control, which is as slow.

    A control that fails less than the baseline shows what slowness does, where it was slowed no more than its
    cell: one that was slowed less shows it all the more.
    """
    against, slowness = p_control.get(one.cell), p_slowness.get(one.cell)
    found = replace(
        one,
        control=name,
        control_slowdown=_slowdown(base, control)[0],
        p_control=against,
        p_slowness=slowness,
    )
    if one.verdict != SLOWER or against is None or slowness is None:
        return found
    base_time, times, control_times = (
        np.array([t.step_time for t in side if t.step_time]) for side in (base, cell, control)
    )
    if min(len(base_time), len(times), len(control_times)) < 2:
        return found
    fast, slow = float(np.median(base_time)), float(np.median(times))
    if against <= ALPHA:
        return replace(found, verdict=LESS) if _reach(control_times, MATCHED * slow, MATCHED) else found
    was_slowed = _reach(control_times, (fast + slow) / 2, 1.0) and np.median(control_times) <= RATIO * slow
    return replace(found, verdict=ONLY_SLOW) if slowness <= ALPHA and was_slowed else found


def _reach(times: np.ndarray[Any, Any], enough: float, most: float) -> bool:
    """Whether the median of these times is `enough`, and MOST_TIMES of them that share of it."""
    return bool(np.median(times) >= enough and np.mean(times >= most * enough) >= MOST_TIMES)


def _judged(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in trials if t.verdict in ("pass", "fail")]


def _counts(trials: Sequence[Trial]) -> tuple[int, int]:
    return sum(t.verdict == "fail" for t in trials), len(trials)


def _fisher(base: list[Trial], cell: list[Trial]) -> float:
    return fisher_p(*_counts(cell), *_counts(base))


def _fisher_less(base: list[Trial], cell: list[Trial]) -> float:
    return fisher_less_p(*_counts(cell), *_counts(base))


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


def _shared(base: list[Trial], cell: list[Trial]) -> list[Trial]:
    """The baseline's trials of the cell's blocks: a cell that was decided early has no later ones."""
    blocks = {t.trial for t in cell}
    return [t for t in base if t.trial in blocks]


def _began_later(base: list[Trial], cell: list[Trial]) -> float | None:
    """0.5 where both ran at the same times, 1 where all of the cell's trials began after the baseline's.

    By the clock, which several queues or nodes do not order as planned; without one by the planned order. On
    one host that is the clock since its boot, which nobody sets.
    """
    boots = {t.boot for t in (*base, *cell)}
    own = ("began_s",) if len(boots) == 1 and "" not in boots else ()
    for name in (*own, "started_utc", "order"):
        starts = [[getattr(t, name) for t in side] for side in (base, cell)]
        if not any(value in (None, "") for side in starts for value in side):
            places = np.unique(np.array(starts[0] + starts[1]), return_inverse=True)[1]
            first, second = places[: len(base)], places[len(base) :]
            if not len(first) or not len(second):
                return None
            pairs = (second[:, None] > first[None, :]) + 0.5 * (second[:, None] == first[None, :])
            return float(pairs.mean())
    return None


def clock_steps(trials: Sequence[Trial]) -> list[tuple[str, float]]:
    """Where a host's wall clock was set between two trials: the later one's step, and by how many seconds."""
    found = []
    known = [(t.boot, t.began_s, wall_s, t.step) for t in trials if t.began_s and (wall_s := _wall_s(t))]
    for (boot, began_s, wall_s, _), (next_boot, later_s, later_wall_s, step) in itertools.pairwise(
        sorted(known)
    ):
        set_s = (later_wall_s - wall_s) - (later_s - began_s)
        if boot == next_boot and abs(set_s) > CLOCK_STEP_S:
            found.append((step, set_s))
    return found


def _wall_s(trial: Trial) -> float | None:
    try:
        return datetime.fromisoformat(trial.started_utc).timestamp()
    except ValueError:
        return None


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


def _worse_places(judged: Sequence[Trial]) -> tuple[Place, ...]:
    """The places that fail more often than all others together, within cells: no cell is its GPU's fault."""
    tally: dict[str, Counter[str]] = defaultdict(Counter)
    for trial in judged:
        tally[place(trial)].update(n=1, fail=trial.verdict == "fail")
    total = Counter[str]()
    for one in tally.values():
        total.update(one)
    rate = total["fail"] / total["n"]
    above = [name for name, one in tally.items() if one["fail"] / one["n"] > rate]
    above = sorted(above, key=lambda name: -tally[name]["fail"] / tally[name]["n"])[:MOST_PLACES]
    raw = {name: stratified_p(_by_cell(judged, name)) for name in above}
    return tuple(
        Place(
            name,
            tally[name]["fail"],
            tally[name]["n"],
            total["fail"] - tally[name]["fail"],
            total["n"] - tally[name]["n"],
            p,
        )
        for name, p in _holm(raw, len(tally)).items()
        if p <= ALPHA
    )


def _by_cell(judged: Sequence[Trial], name: str) -> list[tuple[int, int, int, int]]:
    """Per cell: failures and trials in this place, and in all others."""
    tables = []
    for cell in sorted({t.cell for t in judged}):
        mine = [t for t in judged if t.cell == cell]
        here, there = ([t for t in mine if (place(t) == name) is inside] for inside in (True, False))
        tables.append((*_counts(here), *_counts(there)))
    return tables
