"""The plan of an energy run, and the arithmetic from windows to joules per call and to the closure."""

from __future__ import annotations

import math
import statistics

import msgspec
import pytest

from lab.errors import GpuError, UsageError
from lab.power.windows import Window
from lab.rooms.kernels.energy.choice import EnergyConfig, choose
from lab.rooms.kernels.energy.evaluate import evaluate
from lab.rooms.kernels.energy.summary import missing_sentences, status, terminal
from lab.rooms.kernels.replay.args import Launch, Orphan
from tests.rooms.kernels.energy.made import a_plan, a_raw, a_window


def test_net_energy_subtracts_idle_power_for_the_time_that_passed():
    row = next(row for row in evaluate(a_plan(), a_raw()).rows if row.sig_id == "big")
    assert row.gross_j == pytest.approx(0.0501)
    assert row.net_j == pytest.approx(0.0501 - 100.0 * 1e-4)
    assert row.busy == pytest.approx(1.0) and row.watts == pytest.approx(501.0)
    assert row.run_net_j == pytest.approx(2 * row.net_j)
    assert row.net_ci[0] < row.net_j < row.net_ci[1]


def test_the_interval_of_eleven_windows_is_students():
    raw = a_raw()
    raw.signatures[0].windows = [a_window(50.0 + 0.1 * number) for number in range(11)]
    row = next(row for row in evaluate(a_plan(), raw).rows if row.sig_id == "big")
    joules = [(50.0 + 0.1 * number) / 1000 for number in range(11)]
    half = 2.228 * statistics.stdev(joules) / math.sqrt(11)  # 95 % at 10 degrees of freedom, from a table
    assert (row.net_ci[1] - row.net_ci[0]) / 2 == pytest.approx(half, rel=1e-3)


def test_a_call_that_is_not_measured_takes_its_stand_ins_power_and_says_so():
    rows = {row.sig_id: row for row in evaluate(a_plan(), a_raw()).rows}
    assert rows["kin"].net_j == pytest.approx(rows["big"].net_j / 2)
    assert not rows["kin"].measured and "not measured" in rows["kin"].flags[0]


def test_closure_names_every_factor_and_adds_up():
    closed = evaluate(a_plan(), a_raw()).closure
    assert closed.idle_w == 100.0 and closed.wall_s == pytest.approx(0.005)
    assert closed.predicted_j == pytest.approx(closed.sum_net_j + 0.5)
    assert closed.measured_j == pytest.approx(0.6) and closed.measured_net_j == pytest.approx(0.1)
    assert closed.net_pct == pytest.approx(100 * (closed.sum_net_j / 0.1 - 1))
    assert closed.measured_share == pytest.approx(200 / 252)


@pytest.mark.parametrize(
    ("joules", "closes"),
    [
        (592.5, True),  # net +9 %
        (590.0, False),  # net +12 %, gross +2 %
        (610.0, True),  # net -8 %
        (660.0, False),
    ],
)
def test_the_sum_closes_within_ten_percent_of_the_meter_net_of_idle(joules, closes):
    run = msgspec.structs.replace(a_raw().model[0], window=a_window(joules))
    result = evaluate(a_plan(), a_raw(model=[run]))
    assert result.bars == {"net_closure": closes}
    assert status(result) == ("ok" if closes else "warn")
    assert "its error is not known" in terminal(result)  # one window


@pytest.mark.parametrize(("idle_j", "closes"), [((500.0, 501.0, 499.0), True), ((500.0, 530.0, 470.0), None)])
def test_a_net_closure_has_an_error_and_one_that_cannot_tell_says_so(idle_j, closes):
    """One W of idle power is 5 % of this run's net energy."""
    runs = [msgspec.structs.replace(a_raw().model[0], window=a_window(joules)) for joules in (599, 600, 601)]
    raw = a_raw(model=runs, idle_between=[a_window(joules) for joules in idle_j])
    result = evaluate(a_plan(), raw)
    idle_error_w = 4.303 * statistics.stdev(idle_j) / 5 / math.sqrt(3)  # Student's t of 2 degrees of freedom
    assert result.closure.net_error_pct > 100 * idle_error_w * 0.005 / 0.1
    assert result.closure.net_error_pct == pytest.approx(100 * idle_error_w * 0.005 / 0.1, rel=0.3, abs=4)
    assert result.bars == {"net_closure": closes}
    assert ("too inexact to tell" in terminal(result)) == (closes is None)


def test_counter_and_integral_stand_side_by_side():
    model = evaluate(a_plan(), a_raw()).model
    assert (model.counter_j, model.integral_j) == (pytest.approx(0.6), pytest.approx(0.59))
    assert model.j_per_token == pytest.approx(0.3) and model.j_per_forward == pytest.approx(0.3)


def test_power_above_the_boards_limit_is_refused():
    raw = a_raw(facts_before={"power_limit_w": 400.0})
    result = evaluate(a_plan(), raw)
    assert any("above the board's limit" in why for why in result.refused)
    assert any(line.startswith("REFUSED") for line in missing_sentences(result))
    assert "REFUSED" in terminal(result)


def test_without_idle_power_nothing_is_net_and_nothing_closes():
    result = evaluate(a_plan(), a_raw(idle_context=None))
    assert all(row.net_j is None for row in result.rows)
    assert result.closure is None and result.refused


def test_a_call_without_a_window_is_a_row_with_its_reason():
    raw = a_raw()
    raw.signatures[0].windows, raw.signatures[0].reason = [], "not enough memory"
    result = evaluate(a_plan(), raw)
    assert all(row.net_j is None for row in result.rows)
    assert any("not enough memory" in line for line in missing_sentences(result))


@pytest.mark.parametrize(
    ("integral_j", "flagged"), [(2300.0, False), (2700.0, False), (2200.0, True), (2800.0, True)]
)
def test_sensors_agree_within_a_tenth_of_the_counter(integral_j, flagged):
    raw = a_raw()
    raw.signatures[0].windows = [a_window(2500.0, launches=50_000, integral=integral_j)]
    flags = [flag for row in evaluate(a_plan(), raw).rows for flag in row.flags]
    assert any("disagree" in flag for flag in flags) == flagged


@pytest.mark.parametrize(("launches", "flagged"), [(48_000, False), (47_000, True)])
def test_a_call_that_leaves_a_twentieth_of_the_time_idle_is_launch_bound(launches, flagged):
    raw = a_raw()
    raw.signatures[0].windows = [a_window(2500.0, launches=launches)]  # 100 us each, in 5 s
    flags = [flag for row in evaluate(a_plan(), raw).rows for flag in row.flags]
    assert any("launch-bound" in flag for flag in flags) == flagged


@pytest.mark.parametrize(("limit_w", "refused"), [(480.0, False), (470.0, True)])
def test_power_may_lie_a_twentieth_above_the_boards_limit(limit_w, refused):
    result = evaluate(a_plan(), a_raw(facts_before={"power_limit_w": limit_w}))  # at most 502 W
    assert any("above the board's limit" in why for why in result.refused) == refused


def test_calls_without_energy_are_one_line_per_reason_with_their_share_of_the_time():
    result = evaluate(a_plan(), a_raw())
    row = result.rows[0]
    blank = [
        msgspec.structs.replace(
            row,
            sig_id=f"s{i}",
            op=f"aten::op{i}",
            net_j=None,
            count=1,
            trace_us=1.0 + i,
            flags=["its stand-in has no energy"],
        )
        for i in range(50)
    ]
    result.rows = [msgspec.structs.replace(row, count=1, trace_us=1275.0, net_j=1.0), *blank]
    result.refused = []
    assert missing_sentences(result) == [
        "no energy for 50 distinct calls, 50.0 % of the calls' recorded time: its stand-in has no energy: "
        "aten::op49 (s49), aten::op48 (s48), aten::op47 (s47) and 47 more"
    ]


def test_a_model_without_energy_is_missing_and_one_that_was_not_asked_for_is_not():
    lost = msgspec.structs.replace(a_raw().model[0], window=Window(t0_s=0, t1_s=5, reason="3 sensor updates"))
    result = evaluate(a_plan(), a_raw(model=[lost]))
    assert result.closure is None and status(result) == "warn"
    assert missing_sentences(result) == [
        "the model's own run has no energy, so the calls are held against nothing: 3 sensor updates"
    ]
    half = evaluate(a_plan(), a_raw(model=[*a_raw().model, lost]))
    assert missing_sentences(half) == [
        "1 of 2 windows of the model's own run without energy: 3 sensor updates"
    ]
    assert missing_sentences(evaluate(a_plan(), a_raw())) == []
    assert missing_sentences(evaluate(a_plan(), a_raw(model=[], config=EnergyConfig(model_run=False)))) == []


def test_launches_of_no_call_are_missing_with_their_share_of_the_time():
    orphans = (Orphan(Launch("nccl"), 63.0, "collective"), Orphan(Launch("nccl"), 21.0, "collective"))
    result = evaluate(msgspec.structs.replace(a_plan(), orphans=orphans), a_raw())
    assert result.uncovered_us == 84.0
    assert missing_sentences(result) == [
        "no energy for 2 launches that no call can repeat, 25.0 % of the recorded time: collective"
    ]


def test_a_call_with_less_than_idle_power_is_named_though_its_energy_is_in_the_sums():
    raw = a_raw()
    raw.signatures[0].windows = [a_window(400.0, launches=50_000)]  # 80 W beside 100 W of idle power
    result = evaluate(a_plan(), raw)
    assert result.rows[-1].run_net_j < 0 and status(result) == "warn"
    assert missing_sentences(result) == [
        "1 distinct call with impossible energy, which the sums hold: net energy below zero: aten::mm (big)"
    ]


def test_calls_are_chosen_by_time_and_similar_calls_stand_in():
    chosen, stands_for = choose(a_plan(), EnergyConfig(coverage=0.7))
    assert chosen == [0] and stands_for == {2: 0, 1: 0}
    everything, nobody = choose(a_plan(), EnergyConfig(coverage=1.0))
    assert everything == [0, 2, 1] and nobody == {}
    assert choose(a_plan(), EnergyConfig(coverage=1.0, most_calls=1))[0] == [0]


def test_a_run_without_gpu_is_refused_before_anything_starts():
    from lab.core.plan import Site
    from lab.rooms.kernels.plan import energy_run

    with pytest.raises((GpuError, UsageError), match="measured on a GPU"):
        energy_run(a_plan(), EnergyConfig(), Site(vendor="none"))
