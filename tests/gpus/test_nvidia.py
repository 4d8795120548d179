"""NVIDIA GPUs by nvidia-smi, or by NVML in a container without it; a broken driver is never "no GPU"."""

from __future__ import annotations

import stat
import subprocess
import sys
import types

import pytest

from lab.errors import GpuError
from lab.gpus.nvidia import nvidia_gpus, parse_nvidia_smi

ROW = "3, GPU-aa-1, NVIDIA H200, 580.159.04, 143771, 700.00, 1980, 3201, 9.0"


def test_every_column_is_read():
    (gpu,) = parse_nvidia_smi(f"{ROW}\n")
    assert (gpu.vendor, gpu.index, gpu.uuid, gpu.name) == ("nvidia", 3, "GPU-aa-1", "NVIDIA H200")
    assert (gpu.driver, gpu.arch, gpu.mem_bytes) == ("580.159.04", "sm_90", 143771 * 1024**2)
    assert (gpu.power_limit_w, gpu.max_sm_mhz, gpu.max_mem_mhz) == (700.0, 1980.0, 3201.0)
    assert gpu.render_node is None


def test_columns_that_the_driver_does_not_report_are_none():
    (gpu,) = parse_nvidia_smi("0, GPU-a, GB10, 580.1, [N/A], [N/A], [Not Supported], [N/A], [N/A]\n")
    values = (gpu.mem_bytes, gpu.power_limit_w, gpu.max_sm_mhz, gpu.max_mem_mhz, gpu.arch)
    assert values == (None,) * 5


@pytest.mark.parametrize("cap, arch", [("9.0", "sm_90"), ("10.3", "sm_103"), ("9", None), ("9.0a", None)])
def test_the_architecture_is_the_compute_capability_without_its_dot(cap, arch):
    assert [gpu.arch for gpu in parse_nvidia_smi(ROW.replace("9.0", cap))] == [arch]


def test_lines_that_are_no_row_are_passed_over_and_what_follows_is_read():
    text = f"warning: infoROM is corrupted\n\n{ROW}\n{ROW}, 1\n{ROW.replace('3, GPU', '4, GPU', 1)}\n"
    assert [gpu.index for gpu in parse_nvidia_smi(text)] == [3, 4]


def test_names_with_a_comma_are_quoted_as_in_csv():
    (gpu,) = parse_nvidia_smi(ROW.replace("NVIDIA H200", '"NVIDIA H200, 141 GB"'))
    assert gpu.name == "NVIDIA H200, 141 GB"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts a program named nvidia-smi alone on PATH."""

    def make(script: str) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("PATH", str(tmp_path))
    return make


def test_nvidia_smi_is_asked_for_the_columns_in_the_order_they_are_read(smi):
    columns = (
        "index,uuid,name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory,compute_cap"
    )
    smi(
        f'#!/bin/sh\n[ "$*" = "--query-gpu={columns} --format=csv,noheader,nounits" ] || exit 9\n'
        f'echo "{ROW}"\necho noise >&2\n'
    )
    assert nvidia_gpus() == parse_nvidia_smi(ROW)


@pytest.mark.parametrize(
    "text",
    [
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure",
    ],
)
@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_machine_that_says_it_has_no_gpu_has_none(smi, text, stream):
    smi(f'#!/bin/sh\necho "{text}" >&{stream}\nexit 9\n')
    assert nvidia_gpus() == []


def test_a_failure_is_told_with_its_code_and_its_first_words(smi):
    smi(f"#!/bin/sh\necho ' {'x' * 300}y'\nexit 18\n")
    with pytest.raises(GpuError, match=r"exit code 18.*: x{300}\n") as caught:
        nvidia_gpus()
    assert "nvidia-smi" in caught.value.fix


def test_a_program_that_cannot_start_is_a_driver_that_does_not_answer(smi):
    smi("#!/no/such/interpreter\n")
    with pytest.raises(GpuError, match="does not answer"):
        nvidia_gpus()


def test_a_program_that_hangs_is_given_up_after_half_a_minute(smi, monkeypatch):
    smi("")

    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(GpuError, match=r"does not answer.* 30 seconds"):
        nvidia_gpus()


# NVML


class NvmlError(Exception):
    """Stands for pynvml's own exception."""


@pytest.fixture
def pynvml(smi, monkeypatch):
    """A stand-in for the package nvidia-ml-py that notes how it is started and stopped."""
    module = types.ModuleType("pynvml")
    module.calls = []
    module.NVMLError = NvmlError
    module.nvmlInit = lambda: module.calls.append("init")
    module.nvmlShutdown = lambda: module.calls.append("shutdown")
    module.nvmlSystemGetDriverVersion = lambda: b"550.1"
    module.nvmlDeviceGetCount = lambda: 2
    module.nvmlDeviceGetHandleByIndex = lambda index: f"handle {index}"
    module.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle[-1]}"
    module.nvmlDeviceGetName = {"handle 0": b"A100", "handle 1": "H100"}.__getitem__
    module.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(total=40 + int(handle[-1]))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_nvml_names_the_gpus_where_nvidia_smi_is_missing(pynvml):
    found = [(g.vendor, g.index, g.uuid, g.name, g.driver, g.mem_bytes) for g in nvidia_gpus()]
    assert found == [
        ("nvidia", 0, "GPU-0", "A100", "550.1", 40),
        ("nvidia", 1, "GPU-1", "H100", "550.1", 41),
    ]
    assert pynvml.calls == ["init", "shutdown"]


def test_nvml_is_closed_when_a_question_fails(pynvml):
    def lost(handle):
        raise NvmlError

    pynvml.nvmlDeviceGetUUID = lost
    with pytest.raises(NvmlError):
        nvidia_gpus()
    assert pynvml.calls == ["init", "shutdown"]


def test_without_a_driver_nvml_finds_no_gpus(pynvml):
    def init():
        raise NvmlError

    pynvml.nvmlInit = init
    assert nvidia_gpus() == [] and pynvml.calls == []


def test_without_any_tool_there_are_no_gpus(smi, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia_gpus() == []
