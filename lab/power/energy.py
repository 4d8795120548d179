"""Joules over a window from readings of power, with the bounds that the truth lies in.

Between two readings the power lies between them: the integral is the trapezoid, and its bounds take the lower
and the higher of both. Idle power is that of the log outside the window, subtracted with its own error. Where
a log cannot answer there is a problem instead of a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from lab.core.words import plural
from lab.power.readings import AVERAGED_S, Readings

LONGEST_SILENCE = 1 / 20  # of a window without a reading: what may have happened in it would be over 5 %
LATE_READING = 1.5  # times the usual time between two readings: slow logs have wide bounds, not holes
FEWEST_READINGS = 10  # in a window: with fewer its ends alone are over 10 %
HIGHEST_BOARD_W = 2000.0  # no single board draws more: such readings are in other units
LOWEST_BOARD_W = 1.0  # every board draws more under load
FEWEST_CHANGES, SLOWEST_SENSOR_S = 10, 1.0  # no vendor documents a slower sensor
FEWEST_IDLE_READINGS = 5
# Readings beside the window above this are of other work: that much, and this many W, over the log's lowest.
BUSY_IDLE_FACTOR, BUSY_IDLE_W = 1.5, 15.0
BUSY_BESIDE = 0.9  # of the window's mean: readings beside it as high as that are of the same work
RAMP_STEP = 1.5  # times the power outside: a step that shows how the sensor follows
RAMP_ENDS = 0.1  # of a step at either end of a ramp, where noise hides it
FEWEST_ON_RAMP = 4  # readings: of fewer a length cannot be told
FASTEST_AVERAGE = 1.5  # times the log's range per AVERAGED_S: a mean of that long moves no faster
RAMP_S = (0.7, 1.4)  # s, around AVERAGED_S: the first and last reading on a ramp are up to a gap inside it
IDLE_MARGIN_S = 0.3  # beside a window: a host's clock and a sensor's lag smear the edge
PUBLISHED_SLACK = 0.02  # beyond the log's bounds: the edges of another clock, and rounding
CLOCK_STEP_S = 0.5  # smaller steps are a daemon's corrections; readings are put in order
GLITCH_FACTOR = 2.0  # a reading above this times the power limit is not one
STUCK_READINGS = 10  # equal readings over the whole log, idle and run: the sensor does not move


class Energy(msgspec.Struct, kw_only=True):
    """The energy of one GPU over a window, J; None where the log cannot tell it, and `problems` says why.

    energy_j is net: idle_w times the window is subtracted from gross_j. low_j and high_j bound energy_j,
    gross_low_j and gross_high_j the gross. samples: readings inside the window. averaged_s: over how long
    each reading averages, where the log's edges show it and it is corrected for; else 0.
    """

    gpu: str
    seconds: float
    energy_j: float | None = None
    low_j: float | None = None
    high_j: float | None = None
    gross_j: float | None = None
    gross_low_j: float | None = None
    gross_high_j: float | None = None
    mean_w: float | None = None
    idle_w: float | None = None
    samples: int = 0
    averaged_s: float = 0.0
    problems: list[str] = []


def energy_of(readings: Readings, start_s: float, end_s: float, idle_w: float | None = None) -> Energy:
    """Return the energy over [start_s, end_s) with bounds; idle_w in place of the log's own idle power."""
    result = Energy(gpu=readings.gpu, seconds=end_s - start_s)
    times, watts = valid_readings(readings.t_s, readings.power_w)
    result.problems = [*_clock_problems(readings), *sensor_problems(watts, readings.limit_w)]
    if end_s <= start_s:
        result.problems = [f"the window ends {start_s - end_s:g} s before it begins"]
    if result.problems:
        return result
    result.samples = int(((times >= start_s) & (times <= end_s)).sum())
    result.problems = coverage_problems(times, start_s, end_s)
    if result.problems:
        return result
    gross_j, low_j, high_j = integrate(times, watts, start_s, end_s)
    late_s = readings.averaged_s + readings.resolution_s
    result.averaged_s = averaged_by_edges(times, watts, start_s, end_s)
    if result.averaged_s:
        shift_j = averaged_energy_j(times, watts, start_s, end_s, result.averaged_s) - gross_j
        # Both readings of the ramps stay within the bounds: a load may rise and fall as slowly as an average.
        low_j, high_j, gross_j = low_j + min(shift_j, 0.0), high_j + max(shift_j, 0.0), gross_j + shift_j
    elif may_average(times, watts):
        late_s = max(late_s, AVERAGED_S)
    # A sensor of whole watts is off by up to a half.
    quantum_w = 1.0 if (watts == np.floor(watts)).all() else 0.0
    slack_j = stale_j(times, watts, start_s, end_s, late_s) + quantum_w / 2 * result.seconds
    result.gross_j, result.gross_low_j, result.gross_high_j = gross_j, low_j - slack_j, high_j + slack_j
    result.mean_w = gross_j / result.seconds
    idle = (idle_w, idle_w, idle_w) if idle_w is not None else _idle_power(times, watts, start_s, end_s)
    if idle is None:
        result.problems = ["idle power is unknown: the log has too few idle readings beside the window"]
    elif idle_w is None and idle[1] >= BUSY_BESIDE * result.mean_w:
        beside = f"{idle[1]:.1f} W beside it, {result.mean_w:.1f} W in it"
        result.problems = [f"idle power is unknown: the window's power is that beside it ({beside})"]
    else:
        result.idle_w = idle[1]
        result.energy_j = gross_j - idle[1] * result.seconds
        result.low_j = result.gross_low_j - idle[2] * result.seconds
        result.high_j = result.gross_high_j - idle[0] * result.seconds
    return result


def published_energy(
    series: Sequence[Readings], start_s: float, end_s: float, joules: float | None
) -> tuple[bool, str]:
    """Say whether published joules of all GPUs (idle included) are refused by their log, and why.

    They are where the log does not cover the window, and where they lie outside of its bounds.
    """
    energies = [energy_of(readings, start_s, end_s, idle_w=0.0) for readings in series]
    problems = [problem for energy in energies for problem in energy.problems]
    if problems:
        return True, problems[0]
    low_j, log_j, high_j = (
        math.fsum(getattr(energy, bound) for energy in energies)
        for bound in ("gross_low_j", "gross_j", "gross_high_j")
    )
    log = f"the log holds {log_j:.1f} J ({low_j:.1f} to {high_j:.1f})"
    if joules is None:
        return False, log
    slack_j = PUBLISHED_SLACK * log_j
    return not low_j - slack_j <= joules <= high_j + slack_j, f"published {joules:.1f} J; {log}"


def valid_readings(t_s: Sequence[float], power_w: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Drop readings that the sensor did not give (NaN, 0), and order the rest by time: times, watts (n,)."""
    pairs = sorted((t, power) for t, power in zip(t_s, power_w, strict=False) if power > 0)
    times, watts = np.array(pairs, dtype=float).reshape(-1, 2).T
    return times, watts


def coverage_problems(times: Sequence[float] | np.ndarray, start_s: float, end_s: float) -> list[str]:
    """Say why readings at `times` (sorted, valid ones) do not cover a window; empty if they do."""
    t_s = np.asarray(times)
    if not len(t_s):
        return ["no reading"]
    for event, apart_s in (
        ("the log ends {} before the window begins", start_s - t_s[-1]),
        ("the log begins {} after the window ends", t_s[0] - end_s),
    ):
        if apart_s > 0:
            return [event.format(f"{apart_s / 60:.0f} min" if apart_s > 120 else f"{apart_s:.1f} s")]
    inside_s = t_s[(t_s >= start_s) & (t_s <= end_s)]
    silence_s = np.diff(inside_s, prepend=start_s, append=end_s).max()
    if silence_s > max(LONGEST_SILENCE * (end_s - start_s), LATE_READING * _usual_gap_s(t_s)):
        return [f"no reading for {silence_s:.2f} of {end_s - start_s:.2f} s"]
    if len(inside_s) < FEWEST_READINGS:
        return [f"{plural(len(inside_s), 'reading')} in the window, {FEWEST_READINGS} are needed"]
    return []


def _usual_gap_s(times: np.ndarray) -> float:
    return float(np.median(np.diff(times))) if len(times) > 1 else 0.0


def integrate(
    times: np.ndarray, watts: np.ndarray, start_s: float, end_s: float
) -> tuple[float, float, float]:
    """Joules between two times, and what they would be with each gap's lower and higher reading.

    The trapezoid with interpolated ends; beyond the first and last reading power is held. times: sorted, at
    least one of them in the window.
    """
    inside = (times > start_s) & (times < end_s)
    ends_w = np.interp([start_s, end_s], times, watts)
    power = np.concatenate([ends_w[:1], watts[inside], ends_w[1:]])
    low, high = power.copy(), power.copy()
    for index, end in ((0, start_s), (-1, end_s)):
        # The power at an end is only known to lie between its neighbours.
        right = int(np.searchsorted(times, end))
        neighbours = watts[max(right - 1, 0) : right + 1]
        low[index], high[index] = neighbours.min(), neighbours.max()
    spans_s = np.diff(times[inside], prepend=start_s, append=end_s)
    return (
        float(spans_s @ (power[1:] + power[:-1])) / 2,
        float(spans_s @ np.minimum(low[1:], low[:-1])),
        float(spans_s @ np.maximum(high[1:], high[:-1])),
    )


def averaged_by_edges(t_s: np.ndarray, power_w: np.ndarray, start_s: float, end_s: float) -> float:
    """AVERAGED_S where the load's steps at the window's ends are ramps as long as that, else 0.

    On Ampere and newer `power.draw` is the mean of the last second, and only the log's edges tell: a load
    sets in within milliseconds, the mean of a second rises for a second (seen on an H200).
    """
    inside_w = float(np.median(power_w[(t_s >= start_s) & (t_s <= end_s)]))
    ramps_s = []
    for edge_s, outside in ((start_s, t_s < start_s), (end_s, t_s > end_s + AVERAGED_S)):
        if not outside.any() or inside_w < RAMP_STEP * (outside_w := float(np.median(power_w[outside]))):
            continue  # no step here
        share = (power_w - outside_w) / (inside_w - outside_w)
        near = np.abs(t_s - edge_s) <= 2 * AVERAGED_S
        on_ramp = t_s[near & (share > RAMP_ENDS) & (share < 1 - RAMP_ENDS)]
        is_dense = len(on_ramp) >= FEWEST_ON_RAMP
        ramps_s.append((on_ramp[-1] - on_ramp[0]) / (1 - 2 * RAMP_ENDS) if is_dense else 0.0)
    is_averaged = bool(ramps_s) and all(RAMP_S[0] < ramp_s < RAMP_S[1] for ramp_s in ramps_s)
    return AVERAGED_S if is_averaged else 0.0


def may_average(times: Sequence[float] | np.ndarray, watts: Sequence[float] | np.ndarray) -> bool:
    """Whether each reading may be the mean of AVERAGED_S: no jump of the log is too fast for that."""
    steps_s, steps_w, range_w = np.diff(times), np.abs(np.diff(watts)), np.ptp(watts)
    return bool((steps_w * AVERAGED_S <= FASTEST_AVERAGE * range_w * steps_s).all())


def averaged_energy_j(
    times: np.ndarray, watts: np.ndarray, start_s: float, end_s: float, averaged_s: float
) -> float:
    """Joules of a window by readings that are each the mean of the last T seconds.

    A reading times T is the energy of its T seconds, so readings T apart add up to a window without an error
    at its ends. What is left of the length is taken at the power beside it, once at either end.
    """
    count, rest_s = divmod(end_s - start_s, averaged_s)
    steps_s = averaged_s * np.arange(count)
    from_start_w = np.interp(start_s + averaged_s + steps_s, times, watts)
    from_end_w = np.interp(end_s - steps_s, times, watts)
    rests_w = np.interp([start_s + averaged_s, end_s], times, watts)
    whole_j = averaged_s * float(from_start_w.sum() + from_end_w.sum()) / 2
    return whole_j + rest_s * float(rests_w.sum()) / 2


def stale_j(
    times: Sequence[float] | np.ndarray,
    watts: Sequence[float] | np.ndarray,
    start_s: float,
    end_s: float,
    averaged_s: float = 0.0,
) -> float:
    """Return how many joules the sensor's own delay may move over the ends of a window.

    A sensor that moves every T seconds, or averages over T, is late by at most T; what it is late with is at
    most the range of its readings. T is the time between changes where they come fast; few changes are those
    of a steady load, and tell nothing of T.
    """
    t_s, power_w = np.asarray(times), np.asarray(watts)
    gaps_s = np.sort(np.diff(t_s[1:][np.diff(power_w) != 0]))
    # A tenth of the changes come faster than this: a steady load has long gaps, which are not the sensor's.
    sensor_s = float(gaps_s[len(gaps_s) // 10]) if len(gaps_s) else 0.0
    if len(gaps_s) < FEWEST_CHANGES:
        sensor_s = min(sensor_s, max(SLOWEST_SENSOR_S, _usual_gap_s(t_s)))
    late_s = max(averaged_s, sensor_s)
    return late_s * float(np.ptp(power_w[(t_s >= start_s - late_s) & (t_s <= end_s + late_s)]))


def _idle_power(
    times: np.ndarray, watts: np.ndarray, start_s: float, end_s: float
) -> tuple[float, float, float] | None:
    """Lowest, likeliest and highest idle power by the readings before and after the window."""
    beside = (watts[times < start_s - IDLE_MARGIN_S], watts[times > end_s + IDLE_MARGIN_S])
    levels = np.array([_level(side) for side in beside if len(side) >= FEWEST_IDLE_READINGS])
    if not len(levels):
        return None
    middle, error = levels.T
    likeliest = float(middle.mean())
    lowest = float(np.median(np.sort(watts)[: max(1, len(watts) // 20)]))
    if likeliest > BUSY_IDLE_FACTOR * lowest + BUSY_IDLE_W:
        return None
    # A warm board leaks more than a cold one: with both sides the truth lies between them.
    return float((middle - error).min()), likeliest, float((middle + error).max())


def _level(watts: np.ndarray) -> tuple[float, float]:
    """The median of readings and twice its standard error."""
    middle = np.median(watts)
    # Of normal errors: 1.4826 median deviations are one standard deviation, and a median's standard error is
    # sqrt(pi / 2) = 1.2533 times a mean's. A few readings of other work move neither.
    deviation = np.median(np.abs(watts - middle)) * 1.4826
    return float(middle), float(2 * 1.2533 * deviation / math.sqrt(len(watts)))


def _clock_problems(readings: Readings) -> list[str]:
    """Where the clock was set back, a time in the window may have been twice."""
    backward = np.flatnonzero(np.diff(readings.t_s) < -CLOCK_STEP_S)
    if not len(backward):
        return []
    index = int(backward[0])
    back_s, row = readings.t_s[index] - readings.t_s[index + 1], readings.rows[index + 1]
    return [f"the clock goes back by {back_s:.1f} s at line {row}: times after it are ambiguous"]


def sensor_problems(watts: Sequence[float] | np.ndarray, limit_w: float | None = None) -> list[str]:
    """Say why readings are not those of a working sensor in watts; empty if they may be.

    limit_w: the board's power limit, where it is known.
    """
    power_w = np.asarray(watts)
    if not len(power_w):
        return ["no reading of power"]
    highest_w = float(power_w.max())
    # The median, not the highest: a single glitch is not another unit, and is named below.
    if np.median(power_w) > HIGHEST_BOARD_W:
        return [f"{highest_w:,.0f} W is more than any board draws: the log may be in milliwatts"]
    if highest_w < LOWEST_BOARD_W:
        return [
            f"no reading is above {highest_w:g} W, less than any board draws: the log may be in kilowatts"
        ]
    most_w = min(HIGHEST_BOARD_W, GLITCH_FACTOR * limit_w) if limit_w else HIGHEST_BOARD_W
    if glitches := int((power_w > most_w).sum()):
        bound = f"twice the board's limit of {limit_w:.0f} W" if limit_w else "any board draws"
        return [f"{plural(glitches, 'reading')} of up to {highest_w:,.0f} W: more than {bound}"]
    if len(power_w) >= STUCK_READINGS and power_w.min() == highest_w:
        return [f"every reading is {highest_w:g} W, idle or not: the sensor does not move"]
    return []
