"""NVML and amdsmi, by fakes that answer as the libraries do."""

from __future__ import annotations

import ctypes
import types

import pytest

from lab.errors import GpuError
from lab.gpus.meters import AmdMeter, NvmlMeter, meter_of


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
        for index in range(1 + self.others):
            buffer._obj[index].pid = 100 + index
        count._obj.value = 1 + self.others
        return 0


def test_nvml_reports_joules_and_watts():
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
