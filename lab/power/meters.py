"""Meters of a GPU's energy behind one protocol: NVML's counter and power sensor, AMD's through amdsmi.

A meter returns the present values of its sensors; a missing sensor gives None, never 0.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from lab.core.words import plural
from lab.errors import GpuError

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

    def __init__(self, uuid: str) -> None:
        fix = "pip install nvidia-ml-py, or an image of lab that has it"
        self.nvml = _package("pynvml", "nvidia-ml-py", fix)
        self.uuid = uuid
        self._call("nvmlInit")
        self._gpu = self._call("nvmlDeviceGetHandleByUUID", uuid)

    def energy_j(self) -> float | None:
        """The counter since the driver was loaded; None before Volta."""
        return _per_1000(self.value("nvmlDeviceGetTotalEnergyConsumption"))

    def power_w(self) -> float | None:
        """Instantaneous power if the driver reports it, else what it calls power usage."""
        instant_w = self._field_w(self.nvml.NVML_FI_DEV_POWER_INSTANT)
        return instant_w or _per_1000(self.value("nvmlDeviceGetPowerUsage")) or None

    def facts(self) -> dict[str, Any]:
        """Facts that affect a measurement: limits, clocks, temperature, throttling. None: not reported."""
        return {
            "uuid": self.uuid,
            "driver": self._reported("nvmlSystemGetDriverVersion"),
            "power_limit_w": _per_1000(self.value("nvmlDeviceGetEnforcedPowerLimit")),
            "power_average_w": self._field_w(self.nvml.NVML_FI_DEV_POWER_AVERAGE),
            **{name: value for name, value in self.state().items() if name != "power_w"},
            "other_processes": self._other_processes(),
        }

    def state(self) -> dict[str, float | None]:
        """The present STATE: clocks, power, temperature in degrees C, throttle reasons as bits."""
        return {
            "sm_clock_mhz": self.value("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM),
            "mem_clock_mhz": self.value("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_MEM),
            "power_w": self.power_w(),
            "temperature_c": self.value("nvmlDeviceGetTemperature", self.nvml.NVML_TEMPERATURE_GPU),
            "throttle_bits": self.value("nvmlDeviceGetCurrentClocksThrottleReasons"),
        }

    def refusal(self) -> str | None:
        """Why energy measured on this GPU would not be that of one program alone, or None."""
        mig_modes = self.value("nvmlDeviceGetMigMode")  # of now, and after a reset
        if self.uuid.startswith("MIG-") or (mig_modes and mig_modes[0]):
            return MIG_REFUSAL
        count = self._other_processes()
        return f"{plural(count, 'other process')} on this GPU" if count else None

    def _other_processes(self) -> int | None:
        """Processes with a context on this GPU besides this one; None if the driver does not report them."""
        for version in ("v3", "v2"):
            processes = self.value(f"nvmlDeviceGetComputeRunningProcesses_{version}")
            if processes is not None:
                # A container sees other numbers for its own processes, so its own is not looked for.
                return max(0, len({process.pid for process in processes}) - 1)
        return None

    def _field_w(self, field: int) -> float | None:
        """A power by its field; None where it is 0, which is what some boards say without a sensor."""
        values = self.value("nvmlDeviceGetFieldValues", [field])
        reported = values is not None and values[0].nvmlReturn == self.nvml.NVML_SUCCESS
        return values[0].value.uiVal / 1e3 or None if reported else None

    def value(self, name: str, *arguments: Any) -> Any:
        """Ask NVML about this GPU; None where GPU or driver do not report it."""
        return self._reported(name, self._gpu, *arguments)

    def _reported(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self.nvml, name)(*arguments)
        except self.nvml.NVMLError:
            return None

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self.nvml, name)(*arguments)
        except self.nvml.NVMLError as error:
            if error.value == self.nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                raise GpuError(
                    f"{LIBRARY} cannot be loaded: the NVIDIA driver is missing here",
                    location=LIBRARY,
                    fix="run on a machine with a GPU, in a container with the capability `utility`",
                ) from error
            raise GpuError(
                f"{name} failed with NVML error {error.value}",
                location=self.uuid if arguments else None,
                fix="see `lab doctor`: the GPU must be in this machine and its driver loaded",
            ) from error


def _per_1000(value: int | None) -> float | None:
    return None if value is None else value / 1e3


def _package(name: str, package: str, fix: str) -> Any:
    """A vendor's package, imported when a meter is made: pynvml takes 33 ms (10 ms of them ctypes)."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise GpuError(f"the Python package {package} is not installed here", fix=fix) from error


class AmdMeter:
    """One AMD GPU through amdsmi. Energy is energy_accumulator * counter_resolution, in uJ."""

    name = "amdsmi"

    def __init__(self, index: int = 0, smi: Any = None) -> None:
        smi = smi or _package("amdsmi", "amdsmi", "it comes with ROCm: use a rocm image")
        self._smi = smi
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
        if index >= len(handles):
            raise GpuError(f"amdsmi lists {plural(len(handles), 'GPU')}, and number {index} was requested")
        self._gpu = handles[index]

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


def meter_of(vendor: str, uuid: str, index: int = 0) -> Meter:
    """The meter of this GPU. Raises GpuError if there is none for it."""
    if vendor == "nvidia":
        return NvmlMeter(uuid)
    if vendor == "amd":
        return AmdMeter(index)
    raise GpuError("cannot measure energy without a GPU", fix="run on an NVIDIA or AMD GPU")
