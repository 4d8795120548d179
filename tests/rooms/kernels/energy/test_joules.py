"""Energy from sensors that step, lag, are absent or lie; and the arithmetic from windows to closure."""

from __future__ import annotations

import ctypes
import math
import threading
import types

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.errors import GpuError, UsageError
from lab.gpus.meters import AmdMeter, NvmlMeter, meter_of
from lab.rooms.kernels.energy.choice import EnergyConfig, RawEnergy, RunEnergy, SignatureEnergy, choose
from lab.rooms.kernels.energy.joules import analyse_energy, judge, lacking, terminal
from lab.rooms.kernels.energy.windows import (
    Progress,
    Sampler,
    Samples,
    Window,
    integrate,
    mean_ci,
    update_period_s,
    window,
)
from lab.rooms.kernels.replay.args import Call, Forward, Launch, Origin, ReplayPlan, Signature

NAN = math.nan


def sampled(watts, *, seconds=10.0, update=0.1, poll=0.004, counter=True, power=True):
    """What a card that draws watts(t) would say: a counter and a power sensor that both move every `update` seconds."""
    samples, energy, t, shown_e, shown_p, next_update = Samples(), 0.0, 0.0, 0.0, watts(0.0), update
    while t < seconds:
        energy += watts(t) * poll
        if t >= next_update:
            shown_e, shown_p, next_update = energy, watts(t) + 1e-3 * math.sin(37 * t), next_update + update
        samples.t_s.append(t)
        samples.energy_j.append(shown_e if counter else NAN)
        samples.power_w.append(shown_p if power else NAN)
        t += poll
    return samples


def test_a_window_runs_from_one_step_of_the_counter_to_another():
    found = window(sampled(lambda t: 300.0), 1.05, 8.03)
    assert found.method == "counter, edge-aligned"
    assert found.energy_j / found.seconds == pytest.approx(300.0, rel=2e-3)
    assert 1.05 <= found.t0_s < 1.16 and 7.9 < found.t1_s <= 8.03


@settings(max_examples=30, deadline=None)
@given(
    start=st.floats(0.5, 3.0),
    length=st.floats(3.0, 6.0),
    watts=st.floats(50.0, 700.0),
    update=st.floats(0.02, 0.12),
)
def test_wherever_a_window_lies_aligned_energy_is_exact_to_the_polling_period(start, length, watts, update):
    found = window(sampled(lambda t: watts, update=update), start, start + length)
    assert found.counter_j / found.seconds == pytest.approx(watts, rel=2 * 0.004 / found.seconds + 1e-6)


def test_an_unaligned_difference_would_be_off_where_the_aligned_one_is_not():
    samples = sampled(lambda t: 500.0)
    naive = samples.energy_j[650] - samples.energy_j[110]
    assert abs(naive / (samples.t_s[650] - samples.t_s[110]) / 500.0 - 1) > 0.015
    aligned = window(samples, samples.t_s[110], samples.t_s[650])
    assert abs(aligned.counter_j / aligned.seconds / 500.0 - 1) < 0.005


def test_without_a_counter_sampled_power_is_integrated_and_says_so():
    found = window(sampled(lambda t: 200.0 + 20.0 * t, counter=False), 2.0, 8.0)
    assert found.counter_j is None and found.method == "integral of sampled power"
    assert found.energy_j == pytest.approx(200 * 6 + 10 * (64 - 4), rel=0.01)


def test_both_ways_agree_on_a_steady_load():
    assert window(sampled(lambda t: 400.0), 1.0, 9.0).ratio == pytest.approx(1.0, abs=0.01)


def test_a_sensor_with_too_few_updates_gives_no_energy_and_never_zero():
    found = window(sampled(lambda t: 100.0, counter=False, update=1.0), 1.0, 9.0)
    assert found.energy_j is None and found.method == "none"
    assert "20 are needed" in found.reason


def test_no_sensor_is_missing_and_not_zero_watts():
    assert window(sampled(lambda t: 100.0, counter=False, power=False), 1.0, 9.0).energy_j is None


def test_zero_readings_of_the_power_sensor_are_dropped():
    samples = sampled(lambda t: 150.0, counter=False)
    for place in range(300, 1500, 100):
        samples.power_w[place] = 0.0
    assert integrate(samples, 1.0, 9.0)[0] == pytest.approx(150 * 8, rel=0.01)


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


def test_an_interval_needs_two_values():
    assert math.isnan(mean_ci([1.0])[1])
    mean, low, high = mean_ci([1.0, 2.0, 3.0])
    assert mean == 2.0 and high - mean == pytest.approx(4.303 / math.sqrt(3)) and low < mean


class FakeMeter:
    name = "fake"

    def energy_j(self):
        return 1.0

    def power_w(self):
        return None


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
        assert asked.wait(10)


# NVML and amdsmi, by fakes that answer as the libraries do


class FakeNvml:
    """Answers as libnvidia-ml: writes through the pointers it is given."""

    def __init__(
        self, *, counter_mj=123456, power_mw=250_000, instant_mw=None, others=0, mig=0, known="GPU-1"
    ):
        self.counter_mj, self.power_mw, self.instant_mw, self.others, self.mig, self.known = (
            counter_mj,
            power_mw,
            instant_mw,
            others,
            mig,
            known,
        )

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        return 0 if uuid.decode() == self.known else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu, out):
        if self.counter_mj is None:
            return 3
        out._obj.value = self.counter_mj
        return 0

    def nvmlDeviceGetPowerUsage(self, gpu, out):
        if self.power_mw is None:
            return 3
        out._obj.value = self.power_mw
        return 0

    def nvmlDeviceGetFieldValues(self, gpu, count, out):
        out._obj.result = 0 if self.instant_mw else 3
        out._obj.value.ui_val = self.instant_mw or 0
        return 0

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu, out):
        out._obj.value = 700_000
        return 0

    def nvmlDeviceGetMigMode(self, gpu, now, pending):
        now._obj.value = self.mig
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu, count, buffer):
        for place in range(1 + self.others):
            buffer._obj[place].pid = 100 + place
        count._obj.value = 1 + self.others
        return 0


def test_nvml_tells_joules_and_watts():
    meter = NvmlMeter("GPU-1", FakeNvml())
    assert (meter.energy_j(), meter.power_w()) == (123.456, 250.0)
    assert meter.facts()["power_limit_w"] == 700.0
    assert meter.facts()["sm_clock_mhz"] is None
    assert meter.refusal() is None


def test_the_instantaneous_power_is_taken_before_the_averaged_one():
    assert NvmlMeter("GPU-1", FakeNvml(instant_mw=310_000)).power_w() == 310.0


def test_pascal_has_no_counter_and_an_absent_sensor_is_none():
    meter = NvmlMeter("GPU-1", FakeNvml(counter_mj=None, power_mw=None))
    assert meter.energy_j() is None and meter.power_w() is None


def test_a_zero_watt_reading_is_no_reading():
    assert NvmlMeter("GPU-1", FakeNvml(power_mw=0)).power_w() is None


def test_mig_and_shared_gpus_are_refused():
    assert "MIG" in NvmlMeter("GPU-1", FakeNvml(mig=1)).refusal()
    assert "2 other processes" in NvmlMeter("GPU-1", FakeNvml(others=2)).refusal()


def test_a_gpu_that_nvml_does_not_know_is_an_error_with_its_name():
    with pytest.raises(GpuError, match="nvmlDeviceGetHandleByUUID"):
        NvmlMeter("GPU-2", FakeNvml())


def test_ctypes_layouts_are_those_of_the_library():
    from lab.gpus.meters import _FieldValue, _Process

    assert ctypes.sizeof(_FieldValue) == 40 and ctypes.sizeof(_Process) == 24


def fake_amdsmi(accumulator=10**9, power=180):
    def energy(gpu):
        if accumulator is None:
            raise smi.AmdSmiException("not supported")
        return {"energy_accumulator": accumulator, "counter_resolution": 15.3, "timestamp": 5}

    smi = types.SimpleNamespace(
        AmdSmiException=RuntimeError,
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["gpu0"],
        amdsmi_get_energy_count=energy,
        amdsmi_get_power_info=lambda gpu: {
            "current_socket_power": power,
            "average_socket_power": "N/A",
            "power_limit": 750_000_000,
        },
    )
    return smi


def test_amd_counts_accumulator_times_resolution_in_microjoules():
    meter = AmdMeter(0, fake_amdsmi())
    assert meter.energy_j() == pytest.approx(15300.0)
    assert (meter.power_w(), meter.facts()["power_limit_w"]) == (180.0, 750.0)


def test_amd_in_a_virtual_machine_has_no_counter_and_no_zero_watts():
    meter = AmdMeter(0, fake_amdsmi(accumulator=None, power="N/A"))
    assert meter.energy_j() is None and meter.power_w() is None
    assert AmdMeter(0, fake_amdsmi(accumulator=0)).energy_j() is None
    with pytest.raises(GpuError):
        AmdMeter(3, fake_amdsmi())


def test_without_a_gpu_there_is_no_meter():
    with pytest.raises(GpuError, match="without a GPU"):
        meter_of("none", "")


# from windows to closure


def a_plan():
    big, small, other = (
        Signature(sig_id=name, op=op, launches=(Launch(kernel),))
        for name, op, kernel in (
            ("big", "aten::mm", "gemm_a"),
            ("small", "aten::mul", "mul_k"),
            ("kin", "aten::mm", "gemm_a"),
        )
    )
    calls = (Call(0, 0, (100.0,)), Call(0, 0, (100.0,)), Call(1, 0, (2.0,)), Call(2, 0, (50.0,)))
    return ReplayPlan(
        origin=Origin(device_name="H200"),
        forwards=(Forward("prefill", "prefill"),),
        signatures=(big, small, other),
        calls=calls,
        config={"new_tokens": 2},
    )


def a_window(joules, seconds=5.0, launches=1000.0, integral=None):
    return Window(
        t0_s=0.0,
        t1_s=seconds,
        counter_j=joules,
        integral_j=integral,
        method="counter, edge-aligned",
        updates=50,
        launches=launches,
    )


def a_raw(**more):
    raw = RawEnergy(
        meter="nvml",
        config=EnergyConfig(),
        device_name="H200",
        facts_before={"power_limit_w": 700.0},
        idle_cold=a_window(400.0),
        idle_context=a_window(500.0),
    )
    raw.signatures = [
        SignatureEnergy(
            sig_id="big",
            place=0,
            captured=True,
            windows=[a_window(2500.0, launches=50_000), a_window(2510.0, launches=50_000)],
        )
    ]
    raw.stands_for = {1: 0, 2: 0}
    raw.model = [
        RunEnergy(
            what="model",
            forwards_per_run=2,
            window=a_window(600.0, seconds=5.0, launches=1000.0, integral=590.0),
        )
    ]
    for name, value in more.items():
        setattr(raw, name, value)
    return raw


def test_net_energy_takes_off_idle_power_for_the_time_that_passed():
    row = next(row for row in judge(a_plan(), a_raw()).rows if row.sig_id == "big")
    assert row.gross_j == pytest.approx(0.0501)
    assert row.net_j == pytest.approx(0.0501 - 100.0 * 1e-4)
    assert row.busy == pytest.approx(1.0) and row.watts == pytest.approx(501.0)
    assert row.run_net_j == pytest.approx(2 * row.net_j)
    assert row.net_ci[0] < row.net_j < row.net_ci[1]


def test_a_call_that_is_not_measured_takes_its_stand_ins_power_and_says_so():
    rows = {row.sig_id: row for row in judge(a_plan(), a_raw()).rows}
    assert rows["kin"].net_j == pytest.approx(rows["big"].net_j / 2)
    assert not rows["kin"].measured and "not measured" in rows["kin"].flags[0]


def test_closure_names_every_factor_and_adds_up():
    closed = judge(a_plan(), a_raw()).closure
    assert closed.idle_w == 100.0 and closed.wall_s == pytest.approx(0.005)
    assert closed.predicted_j == pytest.approx(closed.sum_net_j + 0.5)
    assert closed.measured_j == pytest.approx(0.6) and closed.measured_net_j == pytest.approx(0.1)
    assert closed.net_pct == pytest.approx(100 * (closed.sum_net_j / 0.1 - 1))
    assert closed.measured_share == pytest.approx(200 / 252)


def test_counter_and_integral_stand_side_by_side():
    model = judge(a_plan(), a_raw()).model
    assert (model.counter_j, model.integral_j) == (pytest.approx(0.6), pytest.approx(0.59))
    assert model.j_per_token == pytest.approx(0.3) and model.j_per_forward == pytest.approx(0.3)


def test_power_above_the_boards_limit_is_refused():
    raw = a_raw(facts_before={"power_limit_w": 400.0})
    result = judge(a_plan(), raw)
    assert any("above the board's limit" in why for why in result.refused)
    assert any(line.startswith("REFUSED") for line in lacking(result))
    assert "REFUSED" in terminal(result)


def test_without_idle_power_nothing_is_net_and_nothing_closes():
    result = judge(a_plan(), a_raw(idle_context=None))
    assert all(row.net_j is None for row in result.rows)
    assert result.closure is None and result.refused


def test_a_call_without_a_window_is_a_row_with_its_reason():
    raw = a_raw()
    raw.signatures[0].windows, raw.signatures[0].reason = [], "not enough memory"
    result = judge(a_plan(), raw)
    assert all(row.net_j is None for row in result.rows)
    assert any("not enough memory" in line for line in lacking(result))


def test_sensors_that_disagree_are_flagged():
    raw = a_raw()
    raw.signatures[0].windows = [a_window(2500.0, launches=50_000, integral=1500.0)]
    assert any("disagree" in flag for row in judge(a_plan(), raw).rows for flag in row.flags)


def test_calls_are_chosen_by_time_and_kin_stand_for_kin():
    chosen, stands_for = choose(a_plan(), EnergyConfig(coverage=0.7))
    assert chosen == [0] and stands_for == {2: 0, 1: 0}
    everything, nobody = choose(a_plan(), EnergyConfig(coverage=1.0))
    assert everything == [0, 2, 1] and nobody == {}
    assert choose(a_plan(), EnergyConfig(coverage=1.0, most_calls=1))[0] == [0]


def test_the_analysis_writes_json_and_csv_and_tells_of_a_step_that_left_nothing(tmp_path):
    (tmp_path / "energy").mkdir()
    (tmp_path / "replay_plan.json").write_bytes(msgspec.json.encode(a_plan()))
    assert analyse_energy(tmp_path, tmp_path).status == "fail"
    (tmp_path / "energy/energy_raw.json").write_bytes(msgspec.json.encode(a_raw()))
    found = analyse_energy(tmp_path, tmp_path / "out")
    assert [path.name for path in found.files] == ["energy.json", "energy.csv"]
    assert all(path.stat().st_size for path in found.files)


def test_a_run_without_gpu_is_refused_before_anything_starts():
    from lab.core.plan import Site
    from lab.rooms.kernels.energy.cli import energy_run

    with pytest.raises((GpuError, UsageError), match="measured on a GPU"):
        energy_run(a_plan(), EnergyConfig(), Site(vendor="none"))


@pytest.mark.torch
def test_the_workload_without_a_gpu_says_so(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count():
        pytest.skip("a GPU is here")
    from lab.rooms.kernels.workload.energy import main

    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(a_plan()))
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(EnergyConfig()))
    arguments = [
        "--plan",
        str(tmp_path / "plan.json"),
        "--config",
        str(tmp_path / "config.json"),
        "--out",
        str(tmp_path),
    ]
    with pytest.raises(GpuError, match="sees no GPU"):
        main(arguments)


@pytest.mark.torch
def test_idle_is_a_window_in_which_nothing_runs_and_the_warm_one_is_taken_off():
    pytest.importorskip("torch")
    from lab.rooms.kernels.energy.joules import idle_power
    from lab.rooms.kernels.workload.energy import at_rest

    class Steady(FakeMeter):
        def energy_j(self):
            import time

            return round(time.monotonic() * 100.0, 0)  # 100 W in steps of 1 J

    assert at_rest(Steady(), 0.4).counter_j is not None
    assert idle_power(a_raw()) == 100.0
    assert idle_power(a_raw(idle_between=[a_window(510.0), a_window(530.0)])) == pytest.approx(104.0)
