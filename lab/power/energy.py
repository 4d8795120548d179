"""Joules over a window from readings of power, with the bounds that the truth lies in.

Between two readings the power lies between them: the integral is the trapezoid, and its bounds take the lower
and the higher of both. Idle power is that of the log outside the window, subtracted with its own error. Where
a log cannot answer there is a problem instead of a number.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
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
    result.samples = bisect.bisect_right(times, end_s) - bisect.bisect_left(times, start_s)
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
    slack_j = stale_j(times, watts, start_s, end_s, late_s) + _quantum_w(watts) / 2 * result.seconds
    result.gross_j = gross_j
    result.gross_low_j = low_j - slack_j
    result.gross_high_j = high_j + slack_j
    result.mean_w = gross_j / result.seconds
    idle = (idle_w, idle_w, idle_w) if idle_w is not None else _idle_power(times, watts, start_s, end_s)
    if idle is None:
        result.problems = ["idle power is unknown: the log has too few idle readings beside the window"]
        return result
    if idle_w is None and idle[1] >= BUSY_BESIDE * result.mean_w:
        beside = f"{idle[1]:.1f} W beside it, {result.mean_w:.1f} W in it"
        result.problems = [f"idle power is unknown: the window's power is that beside it ({beside})"]
        return result
    result.idle_w = idle[1]
    result.energy_j = result.gross_j - idle[1] * result.seconds
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


def valid_readings(t_s: Sequence[float], power_w: Sequence[float]) -> tuple[list[float], list[float]]:
    """Drop readings that the sensor did not give (NaN, 0), and order the rest by time."""
    pairs = sorted((t, power) for t, power in zip(t_s, power_w, strict=False) if power > 0)
    return [t for t, _ in pairs], [power for _, power in pairs]


def coverage_problems(times: Sequence[float], start_s: float, end_s: float) -> list[str]:
    """Say why readings at `times` (sorted, valid ones) do not cover a window; empty if they do."""
    inside = [t for t in times if start_s <= t <= end_s]
    if not times or start_s > times[-1]:
        return (
            [_apart("the log ends", start_s - times[-1], "before the window begins")]
            if times
            else ["no reading"]
        )
    if end_s < times[0]:
        return [_apart("the log begins", times[0] - end_s, "after the window ends")]
    silence_s = max(later - earlier for earlier, later in itertools.pairwise([start_s, *inside, end_s]))
    if silence_s > max(LONGEST_SILENCE * (end_s - start_s), LATE_READING * _usual_gap_s(times)):
        return [f"no reading for {silence_s:.2f} of {end_s - start_s:.2f} s"]
    if len(inside) < FEWEST_READINGS:
        return [f"{plural(len(inside), 'reading')} in the window, {FEWEST_READINGS} are needed"]
    return []


def _usual_gap_s(times: Sequence[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(times)) if len(times) > 1 else 0.0


def integrate(
    times: Sequence[float], watts: Sequence[float], start_s: float, end_s: float
) -> tuple[float, float, float]:
    """Joules between two times, and what they would be with each gap's lower and higher reading.

    The trapezoid with interpolated ends; beyond the first and last reading power is held. times: sorted, at
    least one of them in the window.
    """
    first_index, end_index = bisect.bisect_right(times, start_s), bisect.bisect_left(times, end_s)
    knots = [
        (start_s, float(np.interp(start_s, times, watts))),
        *zip(times[first_index:end_index], watts[first_index:end_index], strict=True),
        (end_s, float(np.interp(end_s, times, watts))),
    ]
    # The power at an end is only known to lie between its neighbours.
    bounds = [
        _neighbours(times, watts, start_s),
        *((p, p) for _, p in knots[1:-1]),
        _neighbours(times, watts, end_s),
    ]
    joules = low_j = high_j = 0.0
    for index, ((t, power), (next_t, next_power)) in enumerate(itertools.pairwise(knots)):
        span_s = next_t - t
        joules += span_s * (power + next_power) / 2
        low_j += span_s * min(bounds[index][0], bounds[index + 1][0])
        high_j += span_s * max(bounds[index][1], bounds[index + 1][1])
    return joules, low_j, high_j


def averaged_by_edges(times: Sequence[float], watts: Sequence[float], start_s: float, end_s: float) -> float:
    """AVERAGED_S where the load's steps at the window's ends are ramps as long as that, else 0.

    On Ampere and newer `power.draw` is the mean of the last second, and only the log's edges tell: a load
    sets in within milliseconds, the mean of a second rises for a second (seen on an H200).
    """
    t_s, power_w = np.asarray(times), np.asarray(watts)
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


def may_average(times: Sequence[float], watts: Sequence[float]) -> bool:
    """Whether each reading may be the mean of AVERAGED_S: no jump of the log is too fast for that."""
    steps_s, steps_w = np.diff(times), np.abs(np.diff(watts))
    range_w = max(watts) - min(watts)
    return bool((steps_w * AVERAGED_S <= FASTEST_AVERAGE * range_w * steps_s).all())


def averaged_energy_j(
    times: Sequence[float], watts: Sequence[float], start_s: float, end_s: float, averaged_s: float
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
    times: Sequence[float], watts: Sequence[float], start_s: float, end_s: float, averaged_s: float = 0.0
) -> float:
    """Return how many joules the sensor's own delay may move over the ends of a window.

    A sensor that moves every T seconds, or averages over T, is late by at most T; what it is late with is at
    most the range of its readings. T is the time between changes where they come fast; few changes are those
    of a steady load, and tell nothing of T.
    """
    changes = [times[index] for index in range(1, len(times)) if watts[index] != watts[index - 1]]
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(changes))
    # A tenth of the changes come faster than this: a steady load has long gaps, which are not the sensor's.
    sensor_s = gaps[len(gaps) // 10] if gaps else 0.0
    if len(gaps) < FEWEST_CHANGES:
        sensor_s = min(sensor_s, max(SLOWEST_SENSOR_S, _usual_gap_s(times)))
    late_s = max(averaged_s, sensor_s)
    shown = [w for t, w in zip(times, watts, strict=True) if start_s - late_s <= t <= end_s + late_s]
    return late_s * (max(shown) - min(shown))


def _neighbours(times: Sequence[float], watts: Sequence[float], t_s: float) -> tuple[float, float]:
    right = bisect.bisect_left(times, t_s)
    around = [watts[index] for index in (right - 1, right) if 0 <= index < len(times)]
    return min(around), max(around)


def _quantum_w(watts: Sequence[float]) -> float:
    """Return the step of a coarse sensor: 1 W where every reading is a whole number, else 0."""
    return 1.0 if all(power == math.floor(power) for power in watts) else 0.0


def _idle_power(
    times: Sequence[float], watts: Sequence[float], start_s: float, end_s: float
) -> tuple[float, float, float] | None:
    """Lowest, likeliest and highest idle power by the readings before and after the window."""
    earlier = [w for t, w in zip(times, watts, strict=True) if t < start_s - IDLE_MARGIN_S]
    later = [w for t, w in zip(times, watts, strict=True) if t > end_s + IDLE_MARGIN_S]
    levels = [_level(side) for side in (earlier, later) if len(side) >= FEWEST_IDLE_READINGS]
    if not levels:
        return None
    likeliest = statistics.fmean(level for level, _ in levels)
    lowest = statistics.median(sorted(watts)[: max(1, len(watts) // 20)])
    if likeliest > BUSY_IDLE_FACTOR * lowest + BUSY_IDLE_W:
        return None
    # A warm board leaks more than a cold one: with both sides the truth lies between them.
    return (
        min(level - error for level, error in levels),
        likeliest,
        max(level + error for level, error in levels),
    )


def _level(watts: Sequence[float]) -> tuple[float, float]:
    """The median of readings and twice its standard error."""
    middle = statistics.median(watts)
    # Of normal errors: 1.4826 median deviations are one standard deviation, and a median's standard error is
    # sqrt(pi / 2) = 1.2533 times a mean's. A few readings of other work move neither.
    deviation = statistics.median(abs(power - middle) for power in watts) * 1.4826
    return middle, 2 * 1.2533 * deviation / math.sqrt(len(watts))


def _clock_problems(readings: Readings) -> list[str]:
    """Where the clock was set back, a time in the window may have been twice."""
    for index, (earlier, later) in enumerate(itertools.pairwise(readings.t_s)):
        if later < earlier - CLOCK_STEP_S:
            row = readings.rows[index + 1]
            return [
                f"the clock goes back by {earlier - later:.1f} s at line {row}: times after it are ambiguous"
            ]
    return []


def sensor_problems(watts: Sequence[float], limit_w: float | None = None) -> list[str]:
    """Say why readings are not those of a working sensor in watts; empty if they may be.

    limit_w: the board's power limit, where it is known.
    """
    if not watts:
        return ["no reading of power"]
    highest_w = max(watts)
    # The median, not the highest: a single glitch is not another unit, and is named below.
    if statistics.median(watts) > HIGHEST_BOARD_W:
        return [f"{highest_w:,.0f} W is more than any board draws: the log may be in milliwatts"]
    if highest_w < LOWEST_BOARD_W:
        return [
            f"no reading is above {highest_w:g} W, less than any board draws: the log may be in kilowatts"
        ]
    most_w = min(HIGHEST_BOARD_W, GLITCH_FACTOR * limit_w) if limit_w else HIGHEST_BOARD_W
    if glitches := sum(power > most_w for power in watts):
        bound = f"twice the board's limit of {limit_w:.0f} W" if limit_w else "any board draws"
        return [f"{plural(glitches, 'reading')} of up to {highest_w:,.0f} W: more than {bound}"]
    if len(watts) >= STUCK_READINGS and min(watts) == highest_w:
        return [f"every reading is {highest_w:g} W, idle or not: the sensor does not move"]
    return []


def _apart(event: str, seconds: float, side: str) -> str:
    return f"{event} {seconds / 60:.0f} min {side}" if seconds > 120 else f"{event} {seconds:.1f} s {side}"
