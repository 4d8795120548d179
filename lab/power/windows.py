"""Energy over a window from samples of a meter. Plain numbers; the same for a real GPU and a test's fake.

The counter moves in steps (about every 100 ms on an H200), so a window runs from one step to another: what
happens between two steps is known exactly, up to the polling period. Without a counter, sampled power is
integrated.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from lab.power.energy import (
    HIGHEST_BOARD_W,
    coverage_problems,
    integrate,
    sensor_problems,
    stale_j,
    valid_readings,
)
from lab.power.meters import Meter

FEWEST_UPDATES = 20  # of a counter: with fewer, one step more or less would be over 5 %
LARGEST_LATE_SHARE = 0.1  # of a window's energy, that a slow power sensor may have moved over its ends
GLITCH_FACTOR = 2.0  # a counter above this times the highest reading of power has jumped


class Samples(msgspec.Struct):
    """Readings of a meter at times t_s (host's monotonic clock); NaN for a sensor that does not exist."""

    t_s: list[float] = []
    energy_j: list[float] = []
    power_w: list[float] = []


class Progress(msgspec.Struct):
    """How many launches were done at times t_s, growing."""

    t_s: list[float] = []
    num_done: list[float] = []

    def at(self, t_s: float) -> float:
        """Launches done at a time between two marks, interpolated; the ends hold beyond them."""
        return float(np.interp(t_s, self.t_s, self.num_done))


class Window(msgspec.Struct, kw_only=True):
    """Energy between t0_s and t1_s, by counter and by integral if both exist; method names the one used."""

    t0_s: float
    t1_s: float
    counter_j: float | None = None
    integral_j: float | None = None
    method: str = "none"
    updates: int = 0  # of the sensor used
    launches: float = 0.0
    reason: str = ""

    @property
    def seconds(self) -> float:
        return self.t1_s - self.t0_s

    @property
    def energy_j(self) -> float | None:
        return self.counter_j if self.counter_j is not None else self.integral_j

    @property
    def ratio(self) -> float | None:
        """Integral over counter: 1 if both sensors agree."""
        return self.integral_j / self.counter_j if self.counter_j and self.integral_j is not None else None


class Sampler:
    """Polls a meter every period_s in its own thread, inside a `with` block."""

    def __init__(
        self, meter: Meter, period_s: float = 0.002, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._meter, self._period, self._clock = meter, period_s, clock
        self.samples = Samples()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="energy-sampler", daemon=True)
        self._error: BaseException | None = None

    def __enter__(self) -> Samples:
        self._thread.start()
        return self.samples

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _poll(self) -> None:
        try:
            while not self._stop.wait(self._period):
                energy, power = self._meter.energy_j(), self._meter.power_w()
                self.samples.energy_j.append(math.nan if energy is None else energy)
                self.samples.power_w.append(math.nan if power is None else power)
                self.samples.t_s.append(self._clock())  # last: a reader sees whole samples only
        except BaseException as error:  # noqa: BLE001  raised again in the thread that measures
            self._error = error


def steps(t_s: Sequence[float], values: Sequence[float]) -> np.ndarray:
    """Indices of the samples whose value differs from the one before: when the sensor was updated."""
    levels = np.array(values[: len(t_s)])
    return 1 + np.flatnonzero((levels[1:] != levels[:-1]) & ~np.isnan(levels[1:]))


def update_period_s(samples: Samples) -> float | None:
    """Median time between two steps of the counter; None without a counter or with fewer than three steps."""
    gaps_s = np.diff(np.array(samples.t_s)[steps(samples.t_s, samples.energy_j)])
    return float(np.median(gaps_s)) if len(gaps_s) > 1 else None


def window(samples: Samples, start_s: float, end_s: float, progress: Progress | None = None) -> Window:
    """The energy inside [start_s, end_s), between the counter's first and last step, or by integral."""
    counted = _counter_window(samples, start_s, end_s)
    doubt = _counter_doubt(samples, counted) if counted else ""
    result = counted if counted and not doubt else Window(t0_s=start_s, t1_s=end_s)
    integral_j, num_readings, why_none = _integral(samples, result.t0_s, result.t1_s)
    result.integral_j = integral_j
    if result.counter_j is None:
        result.method = "integral of sampled power" if integral_j is not None else "none"
        result.updates = num_readings
        result.reason = "; ".join(filter(None, (doubt, why_none)))
    if progress is not None and progress.t_s:
        result.launches = progress.at(result.t1_s) - progress.at(result.t0_s)
    return result


def _counter_window(samples: Samples, start_s: float, end_s: float) -> Window | None:
    places = steps(samples.t_s, samples.energy_j)
    times = np.array(samples.t_s)[places]
    inside = (times >= start_s) & (times <= end_s)
    times, joules = times[inside].tolist(), np.array(samples.energy_j)[places][inside]
    if len(times) < FEWEST_UPDATES or (np.diff(joules) < 0).any():
        return None  # set back inside the window: what it counted before is not known
    return Window(
        t0_s=times[0],
        t1_s=times[-1],
        method="counter, edge-aligned",
        updates=len(times),
        counter_j=float(joules[-1] - joules[0]),
    )


def _counter_doubt(samples: Samples, counted: Window) -> str:
    """Say why a counter's joules cannot be: far more than its power sensor saw, or than any board draws."""
    counter_w = watts(counted) or 0.0
    readings = [power for power in samples.power_w if power > 0]
    bound_w = GLITCH_FACTOR * max(readings) if readings else HIGHEST_BOARD_W
    if counter_w <= bound_w:
        return ""
    highest = f"no reading of power is above {max(readings):.0f} W" if readings else "no board draws that"
    return f"the counter's {counter_w:,.0f} W cannot be: {highest}"


def _integral(samples: Samples, start_s: float, end_s: float) -> tuple[float | None, int, str]:
    """Joules by sampled power, how many readings lie inside, and why joules are not known."""
    times, readings = valid_readings(samples.t_s, samples.power_w)
    num_inside = int(((times >= start_s) & (times <= end_s)).sum())
    if problems := [*sensor_problems(readings), *coverage_problems(times, start_s, end_s)]:
        return None, num_inside, problems[0]
    joules, _, _ = integrate(times, readings, start_s, end_s)
    late_j = stale_j(times, readings, start_s, end_s)
    if late_j <= LARGEST_LATE_SHARE * joules:
        return joules, num_inside, ""
    late = f"up to {late_j:.0f} of {joules:.0f} J are late"
    return None, num_inside, f"the power sensor moves too rarely: {late}"


def watts(window: Window | None) -> float | None:
    """Mean power over a window; None without a window or without energy."""
    if window is None or window.energy_j is None or window.seconds <= 0:
        return None
    return window.energy_j / window.seconds
