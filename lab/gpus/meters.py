"""Meters of a GPU's energy behind one protocol: NVML's counter and power sensor, AMD's through amdsmi.

A meter returns the present values of its sensors; a missing sensor gives None, never 0. NVML is called by
ctypes on libnvidia-ml.so.1 (nvml.h: NVML_FI_DEV_POWER_AVERAGE 185, NVML_FI_DEV_POWER_INSTANT 186), so that no
package is needed.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, Protocol

from lab.core.words import plural
from lab.errors import GpuError

NVML_SUCCESS = 0
POWER_AVERAGE, POWER_INSTANT = 185, 186
CLOCK_SM, CLOCK_MEM, TEMPERATURE_GPU = 1, 2, 0
MIG_REFUSAL = "MIG is on: the sensors count the whole board, not this instance"
LIBRARY = "libnvidia-ml.so.1"
# What a sample of a GPU's state holds; a value that is not reported is None.
STATE = ("sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "throttle_bits")


class Meter(Protocol):
    """What a measurement needs of a GPU's sensors: energy in J, power in W, None without such a sensor."""

    name: str

    def energy_j(self) -> float | None: ...
    def power_w(self) -> float | None: ...
    def facts(self) -> dict[str, Any]: ...
    def refusal(self) -> str | None: ...


class NvmlMeter:
    """One NVIDIA GPU, by its UUID ("GPU-..."). Raises GpuError if NVML is missing or has no such GPU."""

    name = "nvml"

    def __init__(self, uuid: str, library: Any = None) -> None:
        self._nvml = library if library is not None else _load()
        self._call("nvmlInit_v2")
        self._gpu = ctypes.c_void_p()
        self.uuid = uuid
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._gpu))

    def energy_j(self) -> float | None:
        """The counter since the driver was loaded; None before Volta."""
        found = self._number("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
        return None if found is None else found / 1e3

    def power_w(self) -> float | None:
        """Instantaneous power if the driver reports it, else what it calls power usage."""
        instant = self._field_mw(POWER_INSTANT)
        found = instant if instant is not None else self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return found / 1e3 if found else None

    def facts(self) -> dict[str, Any]:
        """What else affects a measurement: limits, clocks, temperature, throttling. None: not reported."""
        limit = self._number("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint)
        average = self._field_mw(POWER_AVERAGE)
        return {
            "uuid": self.uuid,
            "driver": self._text("nvmlSystemGetDriverVersion"),
            "power_limit_w": None if limit is None else limit / 1e3,
            "power_average_w": None if average is None else average / 1e3,
            **{name: value for name, value in self.state().items() if name != "power_w"},
            "other_processes": self._others(),
        }

    def state(self) -> dict[str, float | None]:
        """The present STATE: clocks, power, temperature in degrees C, throttle reasons as bits."""
        return {
            "sm_clock_mhz": self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, CLOCK_SM),
            "mem_clock_mhz": self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, CLOCK_MEM),
            "power_w": self.power_w(),
            "temperature_c": self._number("nvmlDeviceGetTemperature", ctypes.c_uint, TEMPERATURE_GPU),
            "throttle_bits": self._number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong),
        }

    def refusal(self) -> str | None:
        """Why energy measured on this GPU would not be that of one program alone, or None."""
        if self.uuid.startswith("MIG-"):
            return MIG_REFUSAL
        now, pending = ctypes.c_uint(), ctypes.c_uint()
        function = getattr(self._nvml, "nvmlDeviceGetMigMode", None)
        if (
            function
            and function(self._gpu, ctypes.byref(now), ctypes.byref(pending)) == NVML_SUCCESS
            and now.value
        ):
            return MIG_REFUSAL
        others = self._others()
        return f"{plural(others, 'other process')} on this GPU" if others else None

    def _others(self) -> int | None:
        """Processes with a context on this GPU besides this one; None if the driver does not report them."""
        count = ctypes.c_uint(64)
        buffer = (_Process * 64)()
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            function = getattr(self._nvml, name, None)
            if function and function(self._gpu, ctypes.byref(count), ctypes.byref(buffer)) == NVML_SUCCESS:
                pids = {buffer[index].pid for index in range(count.value)}
                return max(0, len(pids) - 1)  # a container sees other numbers for its own processes
        return None

    def _number(self, name: str, kind: Any, *before: Any) -> int | None:
        function, value = getattr(self._nvml, name, None), kind()
        if function is None or function(self._gpu, *before, ctypes.byref(value)) != NVML_SUCCESS:
            return None
        return int(value.value)

    def _field_mw(self, field: int) -> int | None:
        function, value = getattr(self._nvml, "nvmlDeviceGetFieldValues", None), _FieldValue()
        value.field_id = field
        if (
            function is None
            or function(self._gpu, 1, ctypes.byref(value)) != NVML_SUCCESS
            or value.result != NVML_SUCCESS
        ):
            return None
        return int(value.value.ui_val) or None

    def _text(self, name: str) -> str | None:
        buffer = ctypes.create_string_buffer(96)
        function = getattr(self._nvml, name, None)
        found = function is not None and function(buffer, 96) == NVML_SUCCESS
        return buffer.value.decode() if found else None

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._nvml, name)(*args)
        if code != NVML_SUCCESS:
            raise GpuError(
                f"{name} failed with NVML error {code}",
                where=self.uuid if args else None,
                fix="see `lab doctor`: the GPU must be in this machine and its driver loaded",
            )


class _Value(ctypes.Union):
    _fields_ = [("d_val", ctypes.c_double), ("ui_val", ctypes.c_uint), ("ull_val", ctypes.c_ulonglong)]


class _FieldValue(ctypes.Structure):
    _fields_ = [
        ("field_id", ctypes.c_uint),
        ("scope_id", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_int),
        ("result", ctypes.c_int),
        ("value", _Value),
    ]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gi", ctypes.c_uint),
        ("ci", ctypes.c_uint),
    ]


def _load() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise GpuError(
            f"{LIBRARY} cannot be loaded: there is no NVIDIA driver here",
            where=LIBRARY,
            fix="run on a machine with a GPU, in a container with the capability `utility`",
        ) from error


class AmdMeter:
    """One AMD GPU through amdsmi. Energy is energy_accumulator * counter_resolution, in uJ."""

    name = "amdsmi"

    def __init__(self, index: int = 0, smi: Any = None) -> None:
        smi = smi if smi is not None else _amdsmi()
        self._smi = smi
        smi.amdsmi_init()
        found = smi.amdsmi_get_processor_handles()
        if index >= len(found):
            raise GpuError(f"amdsmi lists {plural(len(found), 'GPU')}, and number {index} was requested")
        self._gpu = found[index]

    def energy_j(self) -> float | None:
        """None in a virtual machine, where the counter stays at 0 or is refused."""
        try:
            energy = self._smi.amdsmi_get_energy_count(self._gpu)
        except self._smi.AmdSmiException:
            return None
        count = energy.get("energy_accumulator", energy.get("power", 0))
        return float(count) * float(energy["counter_resolution"]) / 1e6 if count else None

    def power_w(self) -> float | None:
        try:
            power = self._smi.amdsmi_get_power_info(self._gpu)
        except self._smi.AmdSmiException:
            return None
        for name in ("current_socket_power", "average_socket_power"):
            value = power.get(name)
            if isinstance(value, (int, float)) and value > 0:
                return float(value)
        return None

    def facts(self) -> dict[str, Any]:
        try:
            power = self._smi.amdsmi_get_power_info(self._gpu)
        except self._smi.AmdSmiException as error:
            return {"power_limit_w": None, "reason": str(error)}
        limit = power.get("power_limit")
        return {"power_limit_w": limit / 1e6 if isinstance(limit, (int, float)) and limit > 1e5 else limit}

    def refusal(self) -> str | None:
        return None


def _amdsmi() -> Any:
    try:
        return importlib.import_module("amdsmi")
    except ImportError as error:
        raise GpuError(
            "the Python package amdsmi is not installed here", fix="it comes with ROCm: use a rocm image"
        ) from error


def meter_of(vendor: str, uuid: str, index: int = 0) -> Meter:
    """The meter of this GPU. Raises GpuError if there is none for it."""
    if vendor == "nvidia":
        return NvmlMeter(uuid)
    if vendor == "amd":
        return AmdMeter(index)
    raise GpuError("cannot measure energy without a GPU", fix="run on an NVIDIA or AMD GPU")
