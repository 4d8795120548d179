"""Joules of planted power logs in closed form; what a log cannot tell is refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import BadDataError
from lab.power.energy import (
    coverage_problems,
    energy_of,
    may_average,
    published_energy,
    sensor_problems,
    stale_j,
)
from lab.power.readings import Readings, read_power_log, seconds_of, select_gpu, window_of
from tests.command import lab

BOX = "cases/box"
_CASES = """
clean_units clean_nounits seed_form two_gpus na_scattered na_over_run hole_over_run log_ends_early milliwatts
stuck_sensor integer_watts plateau_then_step no_idle clock_set_back
"""


@pytest.mark.data
@pytest.mark.parametrize("name", _CASES.split())
def test_the_energy_of_a_log_is_the_planted_one_or_refused(shared_data, name):
    case = json.loads((shared_data / BOX / "truth.json").read_text())["energy"][name]
    series = read_power_log(shared_data / BOX / case["file"])
    for gpu, truth in zip(sorted(series), case["gpus"], strict=True):
        energy = energy_of(series[gpu], seconds_of(case["from"]), seconds_of(case["to"]))
        if case["expect"] == "refuse":
            assert energy.problems and energy.energy_j is None
            continue
        assert energy.problems == [] and energy.low_j <= truth["net_j"] <= energy.high_j
        assert energy.energy_j == pytest.approx(truth["net_j"], rel=case["tolerance"])
        assert energy.gross_j == pytest.approx(truth["gross_j"], rel=case["tolerance"])
        assert energy.idle_w == pytest.approx(truth["idle_w"], rel=0.02)


@pytest.mark.data
def test_the_command_prints_the_energy_and_fails_where_there_is_none(shared_data):
    def run(file, *words):
        return lab("kernels", "energy", shared_data / BOX / "energy" / file, *words)

    window = ("--from", "2026/03/04 09:15:30.250", "--to", "2026/03/04 09:15:44.250")
    done = run("clean_units.csv", *window, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["energy_j"] == pytest.approx(3440.8, rel=0.02)
    done = run("stuck_sensor.csv", *window)
    assert done.returncode == 1 and "does not move" in done.stderr
    assert run("clean_units.csv", *window, "--gpu", "3").returncode == 5


def log_of(power, seconds=20.0, period=0.1, **fields):
    times = [index * period for index in range(int(seconds / period))]
    watts = [power(t) for t in times]
    return Readings(gpu="0", t_s=times, power_w=watts, rows=[*range(len(times))], **fields)


def averaged(power, over_s=1.0, parts=1000):
    """A sensor that gives the mean of the last second, as NVML's does on Ampere and newer."""
    return lambda t: math.fsum(power(t - over_s * (part + 0.5) / parts) for part in range(parts)) / parts


@pytest.mark.parametrize("start_s, end_s", [(4.0, 14.0), (4.03, 9.57), (3.96, 16.02)])
def test_readings_that_average_over_a_second_give_the_energy_of_the_run(start_s, end_s):
    """Without it the first second's ramp is lost: an H200's log held 7,958 J of its counter's 8,246."""

    def load(t):
        return 690.0 + 30 * math.sin(t) if start_s <= t < end_s else 120.0

    length_s = end_s - start_s
    truth_j = 690 * length_s + 30 * (math.cos(start_s) - math.cos(end_s))
    energy = energy_of(log_of(averaged(load)), start_s, end_s)
    assert energy.averaged_s == 1.0 and energy.gross_low_j < truth_j < energy.gross_high_j
    assert energy.gross_j == pytest.approx(truth_j, rel=0.01)
    assert energy.energy_j == pytest.approx(truth_j - 120 * length_s, rel=0.01)
    inside = energy_of(log_of(averaged(load)), start_s + 0.6, end_s - 0.5)  # the ramps lie across its ends
    truth_j -= 690 * 1.1 + 30 * (math.cos(start_s) - math.cos(start_s + 0.6))
    truth_j -= 30 * (math.cos(end_s - 0.5) - math.cos(end_s))
    assert inside.averaged_s == 1.0 and inside.gross_j == pytest.approx(truth_j, rel=0.01)
    assert inside.gross_low_j < truth_j < inside.gross_high_j
    truth_j = 690 * length_s + 30 * (math.cos(start_s) - math.cos(end_s))
    at_once = energy_of(log_of(load), start_s, end_s)
    assert at_once.averaged_s == 0.0 and at_once.gross_j == pytest.approx(truth_j, rel=0.02)


@pytest.mark.parametrize(
    "load_w, period_s, averaged_s",
    [(200.0, 0.1, 1.0), (160.0, 0.1, 0.0), (600.0, 0.2, 1.0), (600.0, 0.3, 0.0)],
)
def test_a_small_step_and_few_readings_on_a_ramp_tell_nothing_of_the_sensor(load_w, period_s, averaged_s):
    sensor = averaged(lambda t: load_w if 4 <= t < 14 else 120.0)
    assert energy_of(log_of(sensor, period=period_s), 4.0, 14.0).averaged_s == averaged_s


@given(st.floats(200, 700), st.floats(40, 190), st.floats(3, 7), st.floats(-0.9, 0.9), st.floats(-0.9, 0.9))
def test_the_bounds_hold_whatever_the_sensor_and_wherever_the_window_lies(
    load_w, idle_w, length_s, early, late
):
    """Where neither jump nor ramp tells what each reading averages over, both must lie within the bounds."""

    def mean_of_last(over_s):
        def power_w(t):
            shown_s = min(t, 4.5 + length_s) - max(t - over_s, 4.5)
            return idle_w + (load_w - idle_w) * max(0.0, shown_s) / over_s

        return power_w

    start_s, end_s = 4.5 - early, 4.5 + length_s + late
    inside_s = min(end_s, 4.5 + length_s) - max(start_s, 4.5)
    truth_j = idle_w * (end_s - start_s) + (load_w - idle_w) * inside_s
    for over_s in (1e-6, 1.0):
        energy = energy_of(log_of(mean_of_last(over_s)), start_s, end_s, idle_w=idle_w)
        assert not energy.problems
        assert energy.gross_low_j - 1e-6 <= truth_j <= energy.gross_high_j + 1e-6


@pytest.mark.parametrize("ramp_s, averaged_s", [(0.5, 0.0), (1.0, 1.0), (2.0, 0.0)])
def test_a_load_that_rises_and_falls_slowly_stays_within_the_bounds(ramp_s, averaged_s):
    def load(t):
        return 120.0 + 500 * max(0.0, min(1.0, (t - 4) / ramp_s, (14 - t) / ramp_s))

    energy = energy_of(log_of(load), 4.0, 14.0)
    assert energy.gross_low_j < 1200 + 500 * (10 - ramp_s) < energy.gross_high_j
    late = energy_of(log_of(averaged(load)), 4.0, 14.0)
    assert late.gross_low_j < 1200 + 500 * (10 - ramp_s) < late.gross_high_j
    late_fall = log_of(lambda t: 120.0 + 500 * max(0.0, min(1.0, (t - 4) / ramp_s, (14 - t) / ramp_s + 1)))
    load_after = energy_of(late_fall, 4.0, 14.0)
    assert load_after.averaged_s == averaged_s


@given(st.floats(40, 400), st.floats(5, 30), st.floats(3.0, 8.0), st.floats(3.0, 9.0))
def test_the_bounds_hold_the_truth_of_any_step_load(load_w, idle_w, start_s, length_s):
    log = log_of(lambda t: load_w if start_s + 0.5 <= t < start_s + length_s - 0.5 else idle_w)
    energy = energy_of(log, start_s, start_s + length_s)
    truth = (load_w - idle_w) * (length_s - 1.0)
    assert energy.low_j - 1e-6 <= truth <= energy.high_j + 1e-6
    assert energy.gross_j - energy.energy_j == pytest.approx(idle_w * length_s)


def test_work_beside_the_window_is_not_idle_and_a_given_idle_power_is_taken():
    log = log_of(lambda t: 10.0 + t % 1 if t < 2 else 200.0 + t % 1)
    assert "idle power is unknown" in energy_of(log, 8, 12).problems[0]
    assert energy_of(log, 8, 12, idle_w=10.0).energy_j == pytest.approx(4 * 190.5, rel=0.01)
    # A window within the run of a log without idle time: its own power was taken for idle, -22 J of 1,825 J.
    busy = energy_of(log_of(lambda t: 240.0 + t % 1), 8, 12)
    assert busy.energy_j is None and "that beside it" in busy.problems[0]


@pytest.mark.parametrize(("readings", "known"), [(5, True), (4, False)])
def test_idle_power_takes_five_readings_beside_the_window(readings, known):
    log = log_of(lambda t: 300.0 + t % 1 if t >= 1 else 60.0, seconds=11.0)
    start_s = readings * 0.1 + 0.25  # readings less than 0.3 s beside the window are not idle ones
    assert (energy_of(log, start_s, 10.9).idle_w == 60.0) is known


@pytest.mark.parametrize(("beside_w", "known"), [(74.0, True), (76.0, False)])
def test_power_beside_the_window_far_above_the_lowest_is_not_idle(beside_w, known):
    """The lowest twentieth of the log is 40 W: up to 1.5 times that and 15 W count as idle."""

    def power(t):
        return 40.0 if t < 0.95 else 300.0 + t % 1 if 4.0 <= t <= 14.0 else beside_w

    assert (energy_of(log_of(power), 4.0, 14.0).idle_w == beside_w) is known


@pytest.mark.parametrize(("changes", "late_s"), [(11, 3.0), (10, 1.0)])
def test_a_sensor_is_as_late_as_it_moves_which_ten_gaps_tell(changes, late_s):
    """It moves every 3 s, between 100 and 200 W; of fewer gaps a load that is steady may be the reason."""
    times = [index * 0.1 for index in range(30 * changes + 20)]
    watts = [100.0 + 100.0 * (int(t / 3 + 1e-9) % 2) for t in times]
    assert stale_j(times, watts, 0.0, times[-1]) == pytest.approx(100.0 * late_s)


def test_an_averaging_sensor_widens_the_bounds_by_its_window():
    def load(t):
        return 300.0 if 5.05 < t < 11 else 20.0 + t % 1

    plain, averaged = (energy_of(log_of(load, averaged_s=s), 4, 12) for s in (0.0, 1.0))
    assert averaged.high_j - averaged.low_j > plain.high_j - plain.low_j + 2 * 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "timestamp, uuid, power.draw.average [W]\n2026/03/04 09:15:30.250, GPU-a, 31.00 W\n",
            {"GPU-a": 31.0},
        ),
        (
            "# gpu pwr gtemp\n#Date Time gpu pwr\n#YYYYMMDD HH:MM:SS Idx W\n20260304 09:15:30 0 61\n",
            {"0": 61.0},
        ),
        ("timestamp,gpu,power_mw\n1772615730.25,1,31000\n", {"1": 31.0}),
        (
            "timestamp,device,Average Graphics Package Power (W)\n2026-03-04 09:15:30,card0,92.0\n",
            {"0": 92.0},
        ),
        (
            '{"timestamp": "2026-03-04 09:15:30", "card0": {"Average Graphics Package Power (W)": "92.0"}, '
            '"card1": {"Average Graphics Package Power (W)": "45.0"}}',
            {"0": 92.0, "1": 45.0},
        ),
        (
            '[{"gpu": 0, "timestamp": 1772615730, "power": {"socket_power": {"value": 90, "unit": "W"}}}]',
            {"0": 90.0},
        ),
    ],
)
def test_tools_logs_are_read_with_their_units(tmp_path, text, expected):
    path = tmp_path / "power.log"
    path.write_text(text)
    series = read_power_log(path)
    assert {gpu: readings.power_w[0] for gpu, readings in series.items()} == expected
    assert {round(readings.t_s[0]) for readings in series.values()} == {1772615730}


DAY, FIRST = "2026/03/04", 1772615730  # 09:15:30 of that day, UTC


def smi(*lines: str, header="timestamp, index, power.draw [W]"):
    return "\n".join([header, *lines]) + "\n"


def ticks(count=3, text="{day} 09:15:3{n}.000, 0, {w:.2f} W"):
    return [text.format(day=DAY, n=n, w=30.0 + n) for n in range(count)]


@pytest.mark.parametrize(
    ("text", "gpu", "watts"),
    [
        (smi(*ticks(), "GPU is lost. Reboot the system to recover this GPU"), "0", [30, 31, 32]),
        (smi(*ticks(), "2026/03"), "0", [30, 31, 32]),  # killed while it wrote
        (smi(*ticks()).encode("utf-16"), "0", [30, 31, 32]),  # PowerShell's redirection
        (smi(*ticks(), header="timestamp, index, power.draw [W]").replace(",", ";"), "0", [30, 31, 32]),
        # Where the comma is the decimal point.
        ("timestamp;gpu;power_w\n" + "\n".join(f"{FIRST + n};0;3{n},50" for n in (0, 1)), "0", [30.5, 31.5]),
        (
            smi(
                *ticks(text="{day} 09:15:3{n}.000, 0, GPU-a, [N/A], {w} W"),
                header="timestamp, index, uuid, power.draw.instant [W], power.draw [W]",
            ),
            "GPU-a",
            [30, 31, 32],
        ),
        ("#gpu, date, time, pwr\n#Idx, YYYYMMDD, HH:MM:SS, W\n0, 20260304, 09:15:30, 30\n", "0", [30]),
        ("timestamp,gpu,power [kW]\n1772615730,0,0.03\n", "0", [30]),
        ("timestamp,gpu,power_w\n1772615730000,0,30\n", "0", [30]),  # the epoch in ms
        (
            "\n".join(
                f'[{{"gpu": 0, "timestamp": {FIRST + n},\n "power_usage": {{"value": 3{n}, "unit": "W"}}}}]'
                for n in range(2)
            ),
            "0",
            [30, 31],
        ),
    ],
)
def test_odd_logs_are_read_for_what_they_hold(tmp_path, text, gpu, watts):
    path = tmp_path / "power.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (readings,) = select_gpu(read_power_log(path), gpu, path)
    assert readings.power_w == pytest.approx(watts)
    assert readings.t_s == pytest.approx([FIRST + n for n in range(len(watts))], abs=0.6)


def test_a_quote_that_a_heading_never_closes_swallows_no_row(tmp_path):
    path = tmp_path / "power.csv"
    path.write_text('timestamp, index, "power.draw [W]\n1772615730, 0, 31\n1772615731, 0, 33\n')
    assert read_power_log(path)["0"].power_w == [31, 33]


def test_a_column_in_an_unknown_unit_and_gpus_that_are_not_told_apart_are_refused(tmp_path):
    path = tmp_path / "power.csv"
    path.write_text("timestamp,gpu,power [dBm]\n1772615730,0,31\n")
    with pytest.raises(BadDataError, match="unknown unit of power: 'dBm'"):
        read_power_log(path)
    rows = [
        f"{DAY} 09:15:{n // 10:02d}.{n % 10}{ms:02d}, {w} W"
        for n in range(60)
        for ms, w in ((0, 250), (3, 31))
    ]
    path.write_text(smi(*rows, header="timestamp, power.draw [W]"))
    with pytest.raises(BadDataError, match="several rows per sample"):
        read_power_log(path)


@pytest.mark.parametrize(
    ("short_s", "count", "refused"), [(0.24, 4, True), (0.24, 3, False), (0.26, 4, False)]
)
def test_a_third_of_short_gaps_are_several_gpus_in_one_sample(tmp_path, short_s, count, refused):
    """Of 10 gaps `count` are short, the others a second long; times are seconds since the epoch."""
    times, path = [1772615730.5], tmp_path / "power.csv"
    for number in range(10):
        times.append(times[-1] + (short_s if number < count else 1.0))
    path.write_text("timestamp,power_w\n" + "".join(f"{t:.2f},{100 + i}\n" for i, t in enumerate(times)))
    if refused:
        with pytest.raises(BadDataError, match="several rows per sample"):
            read_power_log(path)
    else:
        assert len(read_power_log(path)[""].t_s) == 11


@pytest.mark.parametrize(("jump_w", "possible"), [(14.5, True), (15.5, False)])
def test_a_mean_of_a_second_moves_by_at_most_one_and_a_half_ranges_per_second(jump_w, possible):
    assert may_average([0.0, 0.1, 1.1], [100.0, 100.0 + jump_w, 200.0]) is possible


def test_a_window_is_read_on_the_logs_clock(tmp_path):
    path = tmp_path / "power.csv"
    path.write_text("timestamp,gpu,power_w\n2026-03-04T10:15:30+01:00,0,30\n")
    zoned = read_power_log(path)
    assert window_of("2026-03-04T10:15:30", "2026/03/04 10:15:31.000", zoned) == (FIRST, FIRST + 1)
    path.write_text(smi(*ticks()))
    with pytest.raises(BadDataError, match="has a time zone"):
        window_of("2026-03-04T10:15:30+01:00", "2026-03-04T10:15:31+01:00", read_power_log(path))
    path.write_text("#Time gpu pwr\n#HH:MM:SS Idx W\n 23:59:59 0 30\n 00:00:01 0 31\n")
    series = read_power_log(path)
    start_s, end_s = window_of("23:59:59", "00:00:01", series)
    assert series["0"].t_s == [start_s, end_s] == [-1, 1]


@pytest.mark.parametrize(
    ("rows", "window", "problem"),
    [
        # Summer time ends: 02:30 is in the log twice, an hour apart.
        (
            ["2026-10-25T02:30:00+02:00,0,30", "2026-10-25T02:30:00+01:00,0,31"],
            ("2026-10-25T02:30:00", "2026-10-25T02:31:00"),
            "2 time zones",
        ),
        (
            [f"{hour % 24:02d}:30:00,0,30" for hour in range(30)],
            ("02:30:00", "02:31:00"),
            "longer than a day",
        ),
    ],
)
def test_a_time_that_a_log_has_twice_is_refused(tmp_path, rows, window, problem):
    path = tmp_path / "power.csv"
    path.write_text("\n".join(["timestamp,gpu,power_w", *rows]) + "\n")
    series = read_power_log(path)
    with pytest.raises(BadDataError, match=problem):
        window_of(*window, series)
    if "T" in window[0]:
        start_s, end_s = window_of(f"{window[0]}+02:00", f"{window[1]}+02:00", series)
        assert (start_s, end_s) == (series["0"].t_s[0], series["0"].t_s[0] + 60)


def test_a_steady_load_in_whole_watts_has_bounds_that_say_something():
    """Two changes, 14 s apart, are the load's: they were taken for a sensor that moves every 14 s."""
    energy = energy_of(log_of(lambda t: 250.0 if 10 <= t < 24 else 30.0, seconds=40, period=1.0), 8, 26)
    assert energy.low_j <= 3080 <= energy.high_j
    assert energy.high_j - energy.low_j < 0.35 * 3080


def test_kilowatts_under_a_name_of_watts_are_no_energy():
    log = log_of(lambda t: 0.25 + t % 1 / 100 if 5 < t < 15 else 0.03)
    assert "may be in kilowatts" in energy_of(log, 4, 16).problems[0]


def test_a_slow_log_has_wide_bounds_and_a_hole_refuses():
    def load(t):
        return 250.0 if 10 <= t < 24 else 30.0

    slow = energy_of(log_of(load, seconds=40, period=1.0), 10, 24)
    assert slow.problems == [] and slow.low_j <= 3080 <= slow.high_j and slow.high_j - slow.low_j > 400
    log = log_of(load, seconds=40)
    for index in range(150, 165):
        log.power_w[index] = math.nan
    assert "no reading for 1.60" in energy_of(log, 10, 24).problems[0]


def test_a_glitch_of_the_sensor_is_named_by_the_boards_limit():
    log = log_of(
        lambda t: 1900.0 if t == 12.0 else 250.0 if 10 <= t < 24 else 30.0, seconds=40, limit_w=350.0
    )
    assert (
        "1 reading of up to 1,900 W: more than twice the board's limit" in energy_of(log, 10, 24).problems[0]
    )


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "timestamp,power_w\nnever,3\n", "[", "timestamp,power_w\n"]
)
def test_what_is_not_a_power_log_is_refused_with_its_place(tmp_path, text):
    path = tmp_path / "power.csv"
    path.write_text(text)
    with pytest.raises(BadDataError) as caught:
        read_power_log(path)
    assert "power.csv" in str(caught.value.location)


def apart(gap_s: float, *, period: float, length: float) -> list[float]:
    """Times of readings over a window from 0, with one gap in the middle."""
    before = [index * period for index in range(int(length / 2 / period) + 1)]
    after = [before[-1] + gap_s + index * period for index in range(int(length / period))]
    return [*before, *(t for t in after if t <= length)]


@pytest.mark.parametrize(
    ("period", "length", "gap_s", "is_covered"),
    [
        (0.1, 20.0, 0.99, True),  # a twentieth of the window
        (0.1, 20.0, 1.05, False),
        (2.0, 60.0, 2.99, True),  # one and a half of a slow log's own gaps
        (2.0, 60.0, 3.05, False),
    ],
)
def test_a_silence_is_a_hole_from_a_twentieth_of_the_window_on(period, length, gap_s, is_covered):
    assert (coverage_problems(apart(gap_s, period=period, length=length), 0.0, length) == []) == is_covered


def test_ten_readings_are_enough_and_nine_are_not():
    assert coverage_problems([float(t) for t in range(10)], 0.0, 9.0) == []
    assert coverage_problems([float(t) for t in range(9)], 0.0, 8.0) == [
        "9 readings in the window, 10 are needed"
    ]


@pytest.mark.parametrize(
    ("watts", "limit_w", "problem"),
    [
        ([1999.0, 2000.0, 2000.0], None, ""),
        ([1999.0, 2001.0, 2001.0], None, "milliwatts"),
        ([0.5, 1.0], None, ""),
        ([0.5, 0.99], None, "kilowatts"),
        ([90.0] * 9, None, ""),
        ([90.0] * 10, None, "does not move"),
        ([90.0, 600.0], 300.0, ""),
        ([90.0, 601.0], 300.0, "twice the board's limit"),
        ([90.0, 90.0, 2001.0], None, "more than any board draws"),
    ],
)
def test_readings_that_no_working_sensor_gives(watts, limit_w, problem):
    problems = sensor_problems(watts, limit_w)
    assert (problem in problems[0] and problem != "") if problems else problem == ""


@pytest.mark.parametrize(
    ("share", "refused"), [(0.019, False), (0.021, True), (-0.019, False), (-0.021, True)]
)
def test_published_joules_may_leave_the_bounds_by_two_percent_of_the_log(share, refused):
    log = log_of(lambda t: 200.0 + (t % 0.2 > 0.1))
    energy = energy_of(log, 5.0, 15.0, idle_w=0.0)
    bound_j = energy.gross_high_j if share > 0 else energy.gross_low_j
    assert published_energy([log], 5.0, 15.0, bound_j + share * energy.gross_j)[0] is refused


@pytest.mark.parametrize(("back_s", "is_told"), [(0.45, False), (0.55, True)])
def test_a_clock_that_is_set_back_by_more_than_a_daemons_correction_is_ambiguous(back_s, is_told):
    log = log_of(lambda t: 200.0 + (t % 0.2 > 0.1))
    step_s = back_s + 0.1  # a reading follows after 0.1 s
    log.t_s = [t - step_s * (t >= 10.0) for t in log.t_s]
    assert any("clock goes back" in problem for problem in energy_of(log, 5.0, 15.0).problems) == is_told
