"""GPUs are found by nvidia-smi, NVML or the KFD tree, and narrowed by a scheduler's mask."""

from __future__ import annotations

import os
import stat
import sys
import types

import pytest

from lab.errors import GpuError
from lab.gpus.discover import discover

H200 = "NVIDIA H200, 580.159.04, 143771"
TWO_H200 = f"""\
0, GPU-aaaa1111-0000-0000-0000-000000000000, {H200}, 700.00, 1980, 3201, 9.0
1, GPU-bbbb2222-0000-0000-0000-000000000000, {H200}, [N/A], [Not Supported], 3201, 9.0
"""


@pytest.fixture
def fake_smi(tmp_path, monkeypatch):
    """Put a program named nvidia-smi first on PATH that prints and exits as told."""

    def make(text: str, code: int = 0) -> None:
        path = tmp_path / "bin" / "nvidia-smi"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\nexit {code}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    return make


@pytest.fixture
def fake_kfd(tmp_path, monkeypatch):
    """A KFD tree with one CPU node and GPUs at the given render minors."""

    def make(*minors: int) -> None:
        for node, minor in enumerate([0, *minors]):
            folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}"
            folder.mkdir(parents=True)
            folder.joinpath("properties").write_text(
                f"cpu_cores_count 0\nsimd_count 1216\ndrm_render_minor {minor}\n"
                f"gfx_target_version 90402\nunique_id {7000 + minor}\n"
            )
            device = tmp_path / f"sys/class/drm/renderD{minor}/device"
            device.mkdir(parents=True)
            device.joinpath("mem_info_vram_total").write_text("206141652992\n")
            device.joinpath("product_name").write_text("AMD Instinct MI300X\n")
        monkeypatch.setenv("LAB_SYS_ROOT", str(tmp_path / "sys"))
        monkeypatch.setenv("LAB_DEV_ROOT", str(tmp_path / "dev"))

    return make


def test_nvidia_smi_is_read_with_units_and_gaps(fake_smi):
    fake_smi(TWO_H200)
    first, second = discover()
    assert (first.uuid[:8], first.mem_bytes, first.power_limit_w, first.arch) == (
        "GPU-aaaa",
        143771 * 2**20,
        700.0,
        "sm_90",
    )
    assert second.power_limit_w is None and second.max_sm_mhz is None


def test_a_schedulers_mask_narrows_and_orders_the_gpus(fake_smi, monkeypatch):
    fake_smi(TWO_H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert [gpu.index for gpu in discover()] == [1, 0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb2222")
    assert [gpu.index for gpu in discover()] == [1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert discover() == []


def test_a_machine_with_the_tool_but_no_gpu_has_none(fake_smi):
    fake_smi("No devices were found\n", code=6)
    assert discover() == []


def test_a_broken_driver_is_an_error_and_never_no_gpu(fake_smi):
    fake_smi("Failed to initialize NVML: Driver/library version mismatch\n", code=18)
    with pytest.raises(GpuError, match="version mismatch"):
        discover()


def test_amd_gpus_come_from_the_kfd_tree_and_cpus_are_left_out(fake_kfd):
    fake_kfd(128, 136)
    found = discover()
    assert [(gpu.vendor, gpu.index, gpu.arch, gpu.name) for gpu in found] == [
        ("amd", 0, "gfx942", "AMD Instinct MI300X"),
        ("amd", 1, "gfx942", "AMD Instinct MI300X"),
    ]
    assert [gpu.render_node.rsplit("/", 1)[1] for gpu in found if gpu.render_node] == [
        "renderD128",
        "renderD136",
    ]
    assert found[0].mem_bytes == 206141652992


def test_rocr_visible_devices_narrows_amd(fake_kfd, monkeypatch):
    fake_kfd(128, 129, 130)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2")
    assert [gpu.index for gpu in discover()] == [2]


def test_nvml_serves_where_nvidia_smi_is_missing(monkeypatch, tmp_path):
    """A stand-in for the package nvidia-ml-py, with the calls that discovery makes."""
    module = types.ModuleType("pynvml")
    module.NVMLError = type("NVMLError", (Exception,), {})
    module.nvmlInit = module.nvmlShutdown = lambda: None
    module.nvmlSystemGetDriverVersion = lambda: b"550.1"
    module.nvmlDeviceGetCount = lambda: 2
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
    module.nvmlDeviceGetName = lambda handle: b"NVIDIA A100"
    module.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(total=40 * 2**30)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [(gpu.uuid, gpu.name, gpu.driver, gpu.mem_bytes) for gpu in discover()] == [
        (f"GPU-{i}", "NVIDIA A100", "550.1", 40 * 2**30) for i in range(2)
    ]


@pytest.mark.parametrize(
    "mask, indices",
    [
        ("0,7,1", [0]),
        ("1,,0", [1]),
        ("x", []),
        (" 1 , 0 ", [1, 0]),
        ("GPU-bbbb2222,0", [1, 0]),
        ("-1", []),
    ],
)
def test_an_entry_that_names_no_gpu_ends_the_mask(fake_smi, mask, indices):
    fake_smi(TWO_H200)
    assert [gpu.index for gpu in discover({"CUDA_VISIBLE_DEVICES": mask})] == indices


def test_the_environment_that_is_given_counts_and_not_this_process_s(fake_smi, monkeypatch):
    fake_smi(TWO_H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.index for gpu in discover({})] == [0, 1]


def test_hips_mask_counts_where_rocrs_is_not_set(fake_kfd):
    fake_kfd(128, 129, 130)
    roots = {name: os.environ[name] for name in ("LAB_SYS_ROOT", "LAB_DEV_ROOT")}
    assert [gpu.index for gpu in discover({**roots, "HIP_VISIBLE_DEVICES": "2"})] == [2]
    both = {**roots, "HIP_VISIBLE_DEVICES": "2", "ROCR_VISIBLE_DEVICES": "1,0"}
    assert [gpu.index for gpu in discover(both)] == [1, 0]


def test_an_amd_gpu_beside_nvidias_is_left_out_unless_the_mask_hides_those(fake_smi, fake_kfd):
    fake_smi(TWO_H200)
    fake_kfd(128)
    assert [gpu.vendor for gpu in discover()] == ["nvidia", "nvidia"]
    roots = {name: os.environ[name] for name in ("LAB_SYS_ROOT", "LAB_DEV_ROOT")}
    assert [gpu.vendor for gpu in discover({**roots, "CUDA_VISIBLE_DEVICES": ""})] == ["amd"]
