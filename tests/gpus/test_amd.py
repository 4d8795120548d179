"""AMD GPUs as a tree like the kernel's /sys describes them; what is not there is None."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.gpus.amd import amd_gpus


class Tree:
    """A /sys and a /dev under a folder, filled node by node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {"LAB_SYS_ROOT": str(root / "sys"), "LAB_DEV_ROOT": str(root / "dev")}

    def write(self, path: str, text: str) -> None:
        file = self.root / "sys" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def node(self, number: int, **properties: int | str) -> None:
        lines = "".join(f"{name} {value}\n" for name, value in properties.items())
        self.write(f"class/kfd/kfd/topology/nodes/{number}/properties", lines)

    def device_node(self, minor: int) -> None:
        file = self.root / f"dev/dri/renderD{minor}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def device(self, minor: int, **files: str) -> None:
        for name, text in files.items():
            self.write(f"class/drm/renderD{minor}/device/{name}", text)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def full(tree: Tree) -> None:
    tree.node(0, cpu_cores_count=64, drm_render_minor=0)
    tree.node(1, drm_render_minor=128, gfx_target_version=90402, unique_id=0xABCDEF)
    tree.device(128, mem_info_vram_total="206141652992\n", product_name="AMD Instinct MI300X\n")
    tree.write("class/drm/renderD128/device/hwmon/hwmon3/power1_cap", "750000000\n")
    tree.write("module/amdgpu/version", "6.10.5\n")


def test_every_value_of_a_gpu_comes_from_its_file(tree):
    full(tree)
    (gpu,) = amd_gpus(tree.env)
    assert (gpu.vendor, gpu.index, gpu.uuid) == ("amd", 0, "GPU-0000000000abcdef")
    assert (gpu.name, gpu.arch, gpu.driver) == ("AMD Instinct MI300X", "gfx942", "6.10.5")
    assert (gpu.mem_bytes, gpu.power_limit_w) == (206141652992, 750.0)
    assert gpu.render_node == str(tree.root / "dev/dri/renderD128")


def test_what_a_gpu_does_not_report_is_none(tree):
    tree.node(1, drm_render_minor=129)
    (gpu,) = amd_gpus(tree.env)
    assert (gpu.uuid, gpu.name) == ("GPU-renderD129", "AMD GPU")
    assert (gpu.arch, gpu.driver, gpu.mem_bytes, gpu.power_limit_w) == (None, None, None, None)


def test_values_that_are_no_numbers_are_none(tree):
    tree.node(1, drm_render_minor=128, gfx_target_version="unknown", unique_id="N/A")
    tree.device(128, mem_info_vram_total="N/A\n", product_name="\n")
    tree.write("class/drm/renderD128/device/hwmon/hwmon3/power1_cap", "N/A\n")
    (gpu,) = amd_gpus(tree.env)
    assert (gpu.arch, gpu.name, gpu.mem_bytes, gpu.power_limit_w) == (None, "AMD GPU", None, None)


def test_a_gpu_without_a_product_name_is_named_by_its_architecture(tree):
    tree.node(1, drm_render_minor=128, gfx_target_version=110001)
    assert [gpu.name for gpu in amd_gpus(tree.env)] == ["gfx1101"]


@pytest.mark.parametrize(
    "version, arch",
    [(90402, "gfx942"), (90010, "gfx90a"), (90008, "gfx908"), (100300, "gfx1030"), (120001, "gfx1201")],
)
def test_the_architecture_is_spelt_as_the_compiler_does(tree, version, arch):
    tree.node(1, drm_render_minor=128, gfx_target_version=version)
    assert [gpu.arch for gpu in amd_gpus(tree.env)] == [arch]


def test_gpus_are_numbered_in_the_order_of_their_nodes_and_cpus_are_not_counted(tree):
    tree.node(0, drm_render_minor=0)
    tree.node(1, cpu_cores_count=8)
    tree.node(10, drm_render_minor=128)
    tree.node(9, drm_render_minor=130)
    tree.node(11, drm_render_minor=1)
    found = [(gpu.index, gpu.uuid) for gpu in amd_gpus(tree.env)]
    assert found == [(0, "GPU-renderD130"), (1, "GPU-renderD128"), (2, "GPU-renderD1")]


def test_lines_of_another_form_are_passed_over(tree):
    tree.write(
        "class/kfd/kfd/topology/nodes/1/properties",
        "caps\nname of several words\n\ndrm_render_minor 128\nunique_id 0x12 3\nunique_id -5\n",
    )
    assert [gpu.uuid for gpu in amd_gpus(tree.env)] == ["GPU-renderD128"]


def test_a_node_without_properties_is_no_gpu(tree):
    (tree.root / "sys/class/kfd/kfd/topology/nodes/1").mkdir(parents=True)
    assert amd_gpus(tree.env) == []


def test_a_machine_without_the_driver_has_no_gpus(tree):
    assert amd_gpus(tree.env) == []


def test_the_first_sensor_that_has_a_power_cap_counts(tree):
    tree.node(1, drm_render_minor=128)
    for number, text in ((2, ""), (3, "300000000"), (4, "400000000")):
        tree.write(f"class/drm/renderD128/device/hwmon/hwmon{number}/power1_cap", text)
    assert [gpu.power_limit_w for gpu in amd_gpus(tree.env)] == [300.0]
