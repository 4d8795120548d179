"""Clocks and temperature of a trial, from sensors that answer in part, not at all, or refuse."""

from __future__ import annotations

import pytest

from lab.errors import GpuError
from lab.rooms.trials.workload import sensors
from lab.rooms.trials.workload.sensors import Sensors, lost, summary


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


@pytest.mark.parametrize(
    "says, code, gone",
    [
        ("GPU 0: H200 (UUID: GPU-a)\\n  MIG 1g Device 0: (UUID: MIG-b)", 0, ""),
        ("GPU 0: H200 (UUID: GPU-a)", 0, "MIG-b is no longer there, says nvidia-smi"),
        ("Unable to determine the device handle: GPU is lost", 15, "GPU-a, MIG-b is no longer there"),
        ("No devices were found", 6, "GPU-a, MIG-b is no longer there"),
        ("Failed to initialize NVML: driver mismatch", 18, ""),  # which says nothing of a GPU
    ],
)
def test_a_gpu_that_the_driver_no_longer_has_is_named(tmp_path, monkeypatch, says, code, gone):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '{says}'\nexit {code}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = lost({"CUDA_VISIBLE_DEVICES": "GPU-a,MIG-b"})
    assert found.startswith(gone) and bool(found) == bool(gone)
    assert lost({"CUDA_VISIBLE_DEVICES": "0"}) == "" == lost({})
