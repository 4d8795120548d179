"""Meters of energy, by fakes that answer as NVML and amdsmi do; a missing sensor is None and never 0."""

from __future__ import annotations

import ctypes
import sys
import types

import pytest

from lab.errors import GpuError
from lab.power.meters import AmdMeter, NvmlMeter, meter_of

pynvml = pytest.importorskip("pynvml")
OK, NOT_SUPPORTED, INSUFFICIENT_SIZE = 0, 3, 7


class FakeNvml:
    """Stands for libnvidia-ml below the real pynvml: writes through the pointers that it is given.

    `sensors` are the answers; a value of None is a sensor that the GPU does not have. `absent` are functions
    that the library lacks.
    """

    CLOCKS = {1: "sm_mhz", 2: "mem_mhz"}  # NVML_CLOCK_SM, NVML_CLOCK_MEM
    FIELDS = {185: "average_mw", 186: "instant_mw"}

    def __init__(self, *absent: str, **sensors):
        self.sensors = {
            "energy_mj": 123_456,
            "power_mw": 250_000,
            "average_mw": 240_000,
            "instant_mw": None,
            "limit_mw": 700_000,
            "sm_mhz": 1980,
            "mem_mhz": 2619,
            "celsius": 41,
            "throttle": 1 << 40,
            "mig": 0,
            "pids": [100],
            "old_pids": None,
            **sensors,
        }
        self.absent, self.calls = absent, []

    def __getattribute__(self, name):
        if name.startswith("nvml"):
            self.calls.append(name)
            if name in self.absent:
                raise AttributeError(name)
        return object.__getattribute__(self, name)

    def answer(self, gpu, name, out):
        assert ctypes.cast(gpu, ctypes.c_void_p).value == 0xBEEF  # the handle of this GPU
        if self.sensors[name] is None:
            return NOT_SUPPORTED
        out._obj.value = self.sensors[name]
        assert out._obj.value == self.sensors[name]  # the type is wide enough
        return OK

    def nvmlInitWithFlags(self, flags):
        return OK

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        ctypes.c_void_p.from_address(ctypes.addressof(handle._obj)).value = 0xBEEF
        return OK if uuid.value == b"GPU-1" else 6

    def nvmlSystemGetDriverVersion(self, buffer, size):
        assert size.value == len(buffer)
        buffer.value = b"580.1"
        return OK if "driver" not in self.sensors else NOT_SUPPORTED

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu, out):
        assert ctypes.sizeof(out._obj) == 8
        return self.answer(gpu, "energy_mj", out)

    def nvmlDeviceGetPowerUsage(self, gpu, out):
        return self.answer(gpu, "power_mw", out)

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu, out):
        return self.answer(gpu, "limit_mw", out)

    def nvmlDeviceGetClockInfo(self, gpu, clock, out):
        return self.answer(gpu, self.CLOCKS[clock.value], out)

    def nvmlDeviceGetTemperature(self, gpu, sensor, out):
        assert sensor.value == 0  # NVML_TEMPERATURE_GPU
        return self.answer(gpu, "celsius", out)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu, out):
        return self.answer(gpu, "throttle", out)

    def nvmlDeviceGetFieldValues(self, gpu, count, out):
        assert ctypes.cast(gpu, ctypes.c_void_p).value == 0xBEEF and count.value == 1
        (field,) = out._obj
        assert ctypes.sizeof(field) == 40  # nvmlFieldValue_t
        value = self.sensors[self.FIELDS[field.fieldId]]
        if value == "refused":
            field.value.uiVal = 5
            return NOT_SUPPORTED
        field.nvmlReturn = NOT_SUPPORTED if value is None else OK
        field.value.uiVal = 7 if value is None else value
        return OK

    def nvmlDeviceGetMigMode(self, gpu, mode, pending):
        pending._obj.value = 1  # what a reboot would bring does not count
        return self.answer(gpu, "mig", mode)

    def processes(self, gpu, count, buffer, pids):
        """As the driver: the number alone where the buffer is too small, and nothing behind the last one."""
        assert ctypes.cast(gpu, ctypes.c_void_p).value == 0xBEEF
        if pids is None:
            return NOT_SUPPORTED
        room, count._obj.value = count._obj.value, len(pids)
        if room < len(pids):
            return INSUFFICIENT_SIZE
        for index in range(room):
            buffer[index].pid = pids[index] if index < len(pids) else 9000 + index
        return OK

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu, count, buffer):
        return self.processes(gpu, count, buffer, self.sensors["pids"])

    def nvmlDeviceGetComputeRunningProcesses_v2(self, gpu, count, buffer):
        return self.processes(gpu, count, buffer, self.sensors["old_pids"])


@pytest.fixture(autouse=True)
def no_library_is_left(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


def meter_on(library: FakeNvml, uuid: str = "GPU-1") -> NvmlMeter:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return NvmlMeter(uuid)


def nvml(*absent: str, **sensors) -> NvmlMeter:
    return meter_on(FakeNvml(*absent, **sensors))


def test_nvml_reports_joules_and_watts():
    meter = nvml()
    assert (meter.name, meter.energy_j(), meter.power_w()) == ("nvml", 123.456, 250.0)
    assert meter.refusal() is None


def test_the_facts_beside_a_measurement_are_read_one_by_one():
    assert nvml().facts() == {
        "uuid": "GPU-1",
        "driver": "580.1",
        "power_limit_w": 700.0,
        "power_average_w": 240.0,
        "sm_clock_mhz": 1980,
        "mem_clock_mhz": 2619,
        "temperature_c": 41,
        "throttle_bits": 1 << 40,
        "other_processes": 0,
    }


def test_facts_of_sensors_that_are_not_there_are_none():
    names = ("average_mw", "limit_mw", "sm_mhz", "mem_mhz", "celsius", "throttle", "pids")
    facts = nvml(**dict.fromkeys(names), driver=None).facts()
    assert facts == {**dict.fromkeys(facts), "uuid": "GPU-1"}


def test_a_value_of_zero_is_a_value_where_zero_can_be():
    facts = nvml(celsius=0, throttle=0, sm_mhz=0).facts()
    assert (facts["temperature_c"], facts["throttle_bits"], facts["sm_clock_mhz"]) == (0, 0, 0)
    assert nvml(energy_mj=0).energy_j() == 0.0


def test_the_instantaneous_power_is_taken_before_the_averaged_one():
    assert nvml(instant_mw=310_000).power_w() == 310.0


@pytest.mark.parametrize("instant", [None, 0, "refused"])
def test_without_an_instantaneous_power_the_usual_one_is_taken(instant):
    assert nvml(instant_mw=instant).power_w() == 250.0


def test_pascal_has_no_counter_and_an_absent_sensor_is_none():
    meter = nvml(energy_mj=None, power_mw=None)
    assert meter.energy_j() is None and meter.power_w() is None


def test_a_zero_watt_reading_is_no_reading():
    assert nvml(power_mw=0).power_w() is None


def test_mig_and_shared_gpus_are_refused():
    assert "MIG" in nvml(mig=1).refusal()
    assert nvml(mig=None).refusal() is None
    assert nvml("nvmlDeviceGetMigMode").refusal() is None
    assert "2 other processes" in nvml(pids=[1, 2, 3]).refusal()


def test_an_older_driver_is_asked_by_the_older_name():
    assert nvml(pids=None, old_pids=[1, 2]).facts()["other_processes"] == 1
    assert nvml("nvmlDeviceGetComputeRunningProcesses_v3", old_pids=[1, 2, 3]).facts()["other_processes"] == 2


def test_a_gpu_that_nvml_does_not_know_is_an_error_with_its_name():
    with pytest.raises(GpuError, match=r"nvmlDeviceGetHandleByUUID.* error 6\n") as caught:
        meter_on(FakeNvml(), "GPU-2")
    assert caught.value.location == "GPU-2" and "lab doctor" in caught.value.fix


def test_the_library_of_the_driver_is_loaded_by_its_name(monkeypatch):
    loaded = []
    monkeypatch.setattr(pynvml, "CDLL", lambda name: loaded.append(name) or FakeNvml())
    meter = meter_of("nvidia", "GPU-1")
    assert (meter.name, meter.energy_j()) == ("nvml", 123.456)
    assert loaded == ["libnvidia-ml.so.1"]


def test_a_machine_without_the_driver_is_an_error_that_names_the_library(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(pynvml, "CDLL", missing)
    with pytest.raises(GpuError) as caught:
        meter_of("nvidia", "GPU-1")
    assert caught.value.location == "libnvidia-ml.so.1" and "utility" in caught.value.fix


def test_without_the_package_there_is_no_meter_and_the_fix_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(GpuError) as caught:
        meter_of("nvidia", "GPU-1")
    assert "nvidia-ml-py" in caught.value.fix


# AMD


class Refused(Exception):
    """Stands for amdsmi's own exception."""


def amdsmi(energy=None, power=None, gpus=("gpu0",)) -> types.SimpleNamespace:
    """amdsmi with these answers; None is a refusal."""

    def answer(value):
        def call(gpu):
            assert gpu == "gpu0" and started
            if value is None:
                raise Refused("not supported")
            return value

        return call

    started: list[bool] = []
    return types.SimpleNamespace(
        AmdSmiException=Refused,
        amdsmi_init=lambda: started.append(True),
        amdsmi_get_processor_handles=lambda: list(gpus),
        amdsmi_get_energy_count=answer(energy),
        amdsmi_get_power_info=answer(power),
    )


def counted(**more) -> AmdMeter:
    return AmdMeter(0, amdsmi(energy={"counter_resolution": 15.3, **more}))


def powered(**fields) -> AmdMeter:
    return AmdMeter(0, amdsmi(power=fields))


def test_amd_counts_accumulator_times_resolution_in_microjoules():
    meter = counted(energy_accumulator=10**9, power=5)
    assert (meter.name, meter.energy_j()) == ("amdsmi", 15_300.0)
    assert meter.refusal() is None


def test_amd_in_a_virtual_machine_has_no_counter():
    assert AmdMeter(0, amdsmi()).energy_j() is None
    assert counted(energy_accumulator=0).energy_j() is None
    assert counted().energy_j() is None
    assert counted(energy_accumulator=1).energy_j() == 15.3 / 1e6


@pytest.mark.parametrize(
    "fields, watts",
    [
        ({"current_socket_power": 180, "average_socket_power": 90}, 180.0),
        ({"current_socket_power": "N/A", "average_socket_power": 90.5}, 90.5),
        ({"current_socket_power": 0, "average_socket_power": 90}, 90.0),
        ({"current_socket_power": "N/A", "average_socket_power": "N/A"}, None),
        ({}, None),
    ],
)
def test_amd_takes_the_present_power_before_the_averaged_one(fields, watts):
    assert powered(**fields).power_w() == watts


def test_amd_without_a_power_sensor_has_no_power_and_says_why():
    meter = AmdMeter(0, amdsmi())
    assert meter.power_w() is None
    assert meter.facts() == {"power_limit_w": None, "reason": "not supported"}


@pytest.mark.parametrize(
    "limit, watts",
    [
        (750_000_000, 750.0),  # uW on older versions
        (750, 750),
        (None, None),
        ("N/A", "N/A"),
    ],
)
def test_amds_power_limit_is_in_watts_whichever_unit_it_comes_in(limit, watts):
    assert powered(power_limit=limit).facts() == {"power_limit_w": watts}


def test_an_amd_gpu_is_chosen_by_its_index():
    smi = amdsmi(power={"current_socket_power": 9}, gpus=("other", "gpu0"))
    assert AmdMeter(1, smi).power_w() == 9.0
    with pytest.raises(GpuError, match=r"2 GPUs.* 2 "):
        AmdMeter(2, smi)
    first = amdsmi(power={"current_socket_power": 9}, gpus=("gpu0", "other"))
    assert AmdMeter(smi=first).power_w() == 9.0


def test_the_package_of_rocm_is_imported_by_its_name(monkeypatch):
    smi = amdsmi(power={"current_socket_power": 9}, gpus=("other", "gpu0"))
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    assert meter_of("amd", "GPU-x", 1).power_w() == 9.0
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(power={"current_socket_power": 8}))
    assert meter_of("amd", "GPU-x").power_w() == 8.0


def test_without_the_package_of_rocm_the_fix_is_an_image(monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(GpuError, match="amdsmi") as caught:
        meter_of("amd", "GPU-x")
    assert "rocm" in caught.value.fix


@pytest.mark.parametrize("vendor", ["none", ""])
def test_without_a_gpu_there_is_no_meter(vendor):
    with pytest.raises(GpuError, match="without a GPU"):
        meter_of(vendor, "")
