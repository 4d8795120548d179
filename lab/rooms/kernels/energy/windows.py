"""From samples of a meter to energy over a window. Plain numbers; the same for a real GPU and a test's fake.

The counter moves in steps (about every 100 ms on an H200), so a window runs from one step to another: what
happens between two steps is known exactly, up to the polling period. Without a counter, sampled power is
integrated.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from lab.core.words import plural
from lab.gpus.meters import Meter

FEWEST_UPDATES = 20  # with fewer a window has no energy: one step more or less would be over 5 %
LONGEST_SILENCE = 1 / FEWEST_UPDATES  # of a window: what fewer updates would leave between two of them


class Samples(msgspec.Struct):
    """Readings of a meter at times t_s (host's monotonic clock); NaN for a sensor that does not exist."""

    t_s: list[float] = []
    energy_j: list[float] = []
    power_w: list[float] = []


class Progress(msgspec.Struct):
    """How many launches were done at times t_s, growing."""

    t_s: list[float] = []
    done: list[float] = []

    def at(self, t_s: float) -> float:
        """Launches done at a time between two marks, interpolated; the ends hold beyond them."""
        index = bisect.bisect_left(self.t_s, t_s)
        if index == 0:
            return self.done[0]
        if index == len(self.t_s):
            return self.done[-1]
        left, right = self.t_s[index - 1], self.t_s[index]
        share = (t_s - left) / (right - left) if right > left else 1.0
        return self.done[index - 1] + share * (self.done[index] - self.done[index - 1])


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


def steps(t_s: Sequence[float], values: Sequence[float]) -> list[int]:
    """Indices of the samples whose value differs from the one before: when the sensor was updated."""
    return [
        i
        for i in range(1, min(len(t_s), len(values)))
        if values[i] != values[i - 1] and not math.isnan(values[i])
    ]


def update_period_s(samples: Samples) -> float | None:
    """Median time between two steps of the counter; None without a counter or with fewer than three steps."""
    places = steps(samples.t_s, samples.energy_j)
    gaps = [samples.t_s[b] - samples.t_s[a] for a, b in itertools.pairwise(places)]
    return statistics.median(gaps) if len(gaps) > 1 else None


def window(samples: Samples, start_s: float, end_s: float, progress: Progress | None = None) -> Window:
    """The energy inside [start_s, end_s], between the counter's first and last step, or by integral."""
    found = _counter_window(samples, start_s, end_s)
    edges = (found.t0_s, found.t1_s) if found else (start_s, end_s)
    integral, updates = integrate(samples, *edges)
    if found is None:
        found = Window(
            t0_s=start_s,
            t1_s=end_s,
            updates=updates,
            integral_j=integral,
            method="integral of sampled power" if integral is not None else "none",
            reason="" if integral is not None else _why_none(samples, start_s, end_s, updates),
        )
    else:
        found.integral_j = integral
    if progress is not None and progress.t_s:
        found.launches = progress.at(found.t1_s) - progress.at(found.t0_s)
    return found


def _why_none(samples: Samples, start_s: float, end_s: float, updates: int) -> str:
    if updates >= FEWEST_UPDATES:
        return f"no reading of power for {silent_s(samples, start_s, end_s):.1f} of {end_s - start_s:.1f} s"
    return f"{plural(updates, 'sensor update')}, {FEWEST_UPDATES} are needed"


def _counter_window(samples: Samples, start_s: float, end_s: float) -> Window | None:
    inside = [i for i in steps(samples.t_s, samples.energy_j) if start_s <= samples.t_s[i] <= end_s]
    if len(inside) < FEWEST_UPDATES:
        return None
    first, last = inside[0], inside[-1]
    if any(samples.energy_j[b] < samples.energy_j[a] for a, b in itertools.pairwise(inside)):
        return None  # set back inside the window: what it counted before is not known
    return Window(
        t0_s=samples.t_s[first],
        t1_s=samples.t_s[last],
        method="counter, edge-aligned",
        updates=len(inside),
        counter_j=samples.energy_j[last] - samples.energy_j[first],
    )


def integrate(samples: Samples, start_s: float, end_s: float) -> tuple[float | None, int]:
    """Trapezoid over the power sensor's updates with interpolated ends, and how many updates there were.

    Repeated values are the same reading and are dropped. There is no result below FEWEST_UPDATES, nor where
    the sensor gave no reading for longer than LONGEST_SILENCE of the window.
    """
    places = [i for i in steps(samples.t_s, samples.power_w) if samples.power_w[i] > 0]
    inside = [i for i in places if start_s <= samples.t_s[i] <= end_s]
    if len(inside) < FEWEST_UPDATES or silent_s(samples, start_s, end_s) > LONGEST_SILENCE * (
        end_s - start_s
    ):
        return None, len(inside)
    t = [start_s, *(samples.t_s[i] for i in inside), end_s]
    p = [samples.power_w[i] for i in inside]
    before = [i for i in places if samples.t_s[i] < start_s]
    left = _between(samples, before[-1], inside[0], start_s) if before else p[0]
    p = [left, *p, p[-1]]
    area = sum((t[i + 1] - t[i]) * (p[i] + p[i + 1]) / 2 for i in range(len(t) - 1))
    return area, len(inside)


def silent_s(samples: Samples, start_s: float, end_s: float) -> float:
    """The longest time inside a window without a reading of power."""
    known = [
        t
        for t, power in zip(samples.t_s, samples.power_w, strict=False)
        if start_s <= t <= end_s and power > 0
    ]
    return max(b - a for a, b in itertools.pairwise([start_s, *known, end_s]))


def _between(samples: Samples, a: int, b: int, t_s: float) -> float:
    share = (t_s - samples.t_s[a]) / (samples.t_s[b] - samples.t_s[a])
    return samples.power_w[a] + share * (samples.power_w[b] - samples.power_w[a])


def watts(window: Window | None) -> float | None:
    """Mean power over a window; None without a window or without energy."""
    if window is None or window.energy_j is None or window.seconds <= 0:
        return None
    return window.energy_j / window.seconds
