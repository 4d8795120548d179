"""Energy from sensors that step, lag, are absent or lie."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.errors import GpuError
from lab.power.windows import (
    Progress,
    Sampler,
    update_period_s,
    window,
)
from tests.power.made import NAN, FakeMeter, sampled


def test_a_window_runs_from_one_step_of_the_counter_to_another():
    found = window(sampled(lambda t: 300.0), 1.05, 8.03)
    assert found.method == "counter, edge-aligned"
    assert found.energy_j / found.seconds == pytest.approx(300.0, rel=2e-3)
    assert 1.05 <= found.t0_s < 1.16 and 7.9 < found.t1_s <= 8.03


@settings(max_examples=30)
@given(
    start=st.floats(0.5, 3.0),
    length=st.floats(3.0, 6.0),
    watts=st.floats(50.0, 700.0),
    update=st.floats(0.02, 0.12),
)
def test_wherever_a_window_lies_aligned_energy_is_exact_to_the_polling_period(start, length, watts, update):
    found = window(sampled(lambda t: watts, update=update), start, start + length)
    assert found.counter_j / found.seconds == pytest.approx(watts, rel=2 * 0.004 / found.seconds + 1e-6)


def test_without_a_counter_sampled_power_is_integrated_and_says_so():
    found = window(sampled(lambda t: 200.0 + 20.0 * t, counter=False), 2.0, 8.0)
    assert found.counter_j is None and found.method == "integral of sampled power"
    assert found.energy_j == pytest.approx(200 * 6 + 10 * (64 - 4), rel=0.01)


def test_a_sensor_that_moves_rarely_gives_no_energy_of_a_load_that_changes_and_never_zero():
    found = window(sampled(lambda t: 100.0 + 50 * t, counter=False, update=1.0), 1.0, 9.0)
    assert found.energy_j is None and found.method == "none" and "moves too rarely" in found.reason
    steady = window(sampled(lambda t: 100.0, counter=False, update=1.0), 1.0, 9.0)
    assert steady.energy_j == pytest.approx(800, rel=1e-3)


def test_a_steady_load_on_a_sensor_of_whole_watts_is_a_measurement():
    samples = sampled(lambda t: 250.0 if t > 1 else 55.0, counter=False)
    samples.power_w = [float(round(power)) for power in samples.power_w]
    assert window(samples, 2.0, 9.0).energy_j == pytest.approx(250 * 7)
    samples.power_w = [250.0] * len(samples.t_s)
    assert "does not move" in window(samples, 2.0, 9.0).reason  # nor when the load came


def test_a_counter_that_jumps_is_not_believed():
    samples = sampled(lambda t: 200.0)
    middle = len(samples.t_s) // 2
    samples.energy_j = [j if at < middle else j + 22.5e6 for at, j in enumerate(samples.energy_j)]
    found = window(samples, 1.0, 9.0)
    assert found.method == "integral of sampled power" and found.energy_j == pytest.approx(1600, rel=1e-3)
    assert "cannot be" in found.reason
    samples.power_w = [NAN] * len(samples.t_s)
    assert window(samples, 1.0, 9.0).energy_j is None


def test_no_sensor_is_missing_and_not_zero_watts():
    assert window(sampled(lambda t: 100.0, counter=False, power=False), 1.0, 9.0).energy_j is None


def test_the_period_of_the_counter_is_found():
    assert update_period_s(sampled(lambda t: 100.0)) == pytest.approx(0.1, abs=0.005)
    assert update_period_s(sampled(lambda t: 100.0, counter=False)) is None


def test_launches_are_counted_as_the_gpu_finished_them():
    progress = Progress([0.0, 1.0, 3.0], [0.0, 100.0, 500.0])
    assert (progress.at(0.5), progress.at(2.0), progress.at(9.0), progress.at(-1.0)) == (
        50.0,
        300.0,
        500.0,
        0.0,
    )


def test_the_sampler_polls_from_its_own_thread_and_an_absent_sensor_is_nan():
    with Sampler(FakeMeter(), period_s=0.001) as samples:
        while len(samples.t_s) < 5:
            pass
    assert samples.energy_j[0] == 1.0 and math.isnan(samples.power_w[0])
    assert samples.t_s == sorted(samples.t_s)


def test_an_error_of_the_meter_reaches_the_one_who_measures():
    asked = threading.Event()

    class Broken(FakeMeter):
        def energy_j(self):
            asked.set()
            raise GpuError("the GPU fell off the bus")

    with pytest.raises(GpuError, match="fell off"), Sampler(Broken(), period_s=0.001):
        assert asked.wait(300)


def test_a_counter_that_was_set_back_inside_a_window_counts_nothing_of_it():
    samples = sampled(lambda t: 300.0)
    middle = len(samples.t_s) // 2
    before = samples.energy_j[middle]
    samples.energy_j = [j if at < middle else j - before for at, j in enumerate(samples.energy_j)]
    found = window(samples, 1.0, 9.0)
    assert found.counter_j is None and found.method == "integral of sampled power"
    assert found.energy_j == pytest.approx(2400.0, rel=1e-3)
    assert window(samples, 6.0, 9.0).counter_j == pytest.approx(870.0, abs=31)  # after it was set back


def test_a_sensor_that_was_silent_is_not_bridged_by_a_straight_line():
    def watts(t):
        return 600.0 if 3 < t < 6 else 300.0

    samples = sampled(watts, counter=False)
    whole = window(samples, 1.0, 9.0)
    assert whole.energy_j == pytest.approx(5 * 300 + 3 * 600, rel=0.02)
    samples.power_w = [
        NAN if 3 < t < 6 else power for t, power in zip(samples.t_s, samples.power_w, strict=True)
    ]
    found = window(samples, 1.0, 9.0)
    assert found.energy_j is None and found.method == "none"
    assert found.reason == "no reading for 3.01 of 8.00 s"


@pytest.mark.parametrize(("factor", "believed"), [(1.95, True), (2.05, False)])
def test_a_counter_may_count_up_to_twice_the_highest_reading(factor, believed):
    samples = sampled(lambda t: 200.0)
    samples.energy_j = [factor * joules for joules in samples.energy_j]
    assert (window(samples, 1.0, 9.0).method == "counter, edge-aligned") is believed


@pytest.mark.parametrize(
    ("update", "method"), [(0.38, "counter, edge-aligned"), (0.45, "integral of sampled power")]
)
def test_a_counter_needs_twenty_steps_in_the_window(update, method):
    assert window(sampled(lambda t: 200.0, update=update), 1.0, 9.0).method == method


@pytest.mark.parametrize(("slope_w", "known"), [(5.0, True), (20.0, False)])
def test_a_tenth_of_the_energy_may_be_late(slope_w, known):
    """A sensor that moves every second is late by up to a second times its range: 4 and 11 %."""
    found = window(sampled(lambda t: 100.0 + slope_w * t, counter=False, update=1.0), 1.0, 9.0)
    assert (found.energy_j is not None) is known, found.reason
