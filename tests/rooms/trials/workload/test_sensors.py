"""Clocks and temperature of a trial, from sensors that answer in part, not at all, or refuse."""

from __future__ import annotations

from lab.errors import GpuError
from lab.rooms.trials.workload import sensors
from lab.rooms.trials.workload.sensors import Sensors, summary


class Meter:
    def __init__(self, uuid):
        if uuid == "GPU-gone":
            raise GpuError("no such GPU")
        self.seen = 0

    def facts(self):
        self.seen += 1
        return {"temperature_c": 40 + self.seen, "sm_clock_mhz": 1000 * self.seen, "throttle_bits": 0x40}


def test_the_highest_temperature_the_median_clock_and_any_throttling(monkeypatch):
    monkeypatch.setattr(sensors, "NvmlMeter", Meter)
    monkeypatch.setattr(sensors, "PERIOD_S", 0.001)
    with Sensors({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}) as both:
        while len(both._samples) < 6:
            pass
    found = both.summary()
    assert found["throttled"] is True and found["temperature_c"] >= 43 and found["sm_clock_mhz"] >= 1000


def test_what_is_not_reported_is_none_and_not_zero():
    assert summary([]) == {"temperature_c": None, "sm_clock_mhz": None, "throttled": None}
    part = summary([{"temperature_c": None, "sm_clock_mhz": 900, "throttle_bits": 1}])
    assert part == {"temperature_c": None, "sm_clock_mhz": 900, "throttled": False}


def test_without_gpus_or_nvml_a_trial_goes_on(monkeypatch):
    monkeypatch.setattr(sensors, "NvmlMeter", Meter)
    for env in (
        {},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "GPU-gone"},
    ):
        with Sensors(env) as none:
            pass
        assert none.summary()["temperature_c"] is None
