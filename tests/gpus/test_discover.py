"""GPUs are found by nvidia-smi, NVML or the KFD tree, and narrowed by a scheduler's mask."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from lab.errors import GpuError
from lab.gpus.amd import amd_gpus
from lab.gpus.discover import discover
from lab.gpus.nvidia import cards_without_driver
from tests.gpus.test_amd import Tree

H200 = "NVIDIA H200, 580.159.04, 143771"
TWO_H200 = f"""\
0, GPU-aaaa1111-0000-0000-0000-000000000000, {H200}, 700.00, 1980, 3201, 9.0, Disabled
1, GPU-bbbb2222-0000-0000-0000-000000000000, {H200}, [N/A], [Not Supported], 3201, 9.0, [N/A]
"""


@pytest.fixture
def fake_smi(tmp_path, monkeypatch):
    """Put a program named nvidia-smi first on PATH that prints and exits as told."""

    def make(text: str, code: int = 0) -> None:
        path = tmp_path / "bin" / "nvidia-smi"
        path.parent.mkdir(exist_ok=True)
        # Without `cat`: it may lie in the folder that a test takes off the PATH for a real nvidia-smi in it.
        lines = "while IFS= read -r line; do printf '%s\\n' \"$line\"; done"
        path.write_text(f"#!/bin/sh\n{lines} <<'END'\n{text}END\nexit {code}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    return make


@pytest.fixture
def fake_kfd(tmp_path, monkeypatch):
    """A KFD tree with one CPU node and GPUs at the given render minors, and none of NVIDIA; -> its roots."""

    def make(*minors: int) -> dict[str, str]:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        folders = os.environ["PATH"].split(os.pathsep)
        own = [
            one for one in folders if one.startswith(str(tmp_path)) or not Path(one, "nvidia-smi").exists()
        ]
        monkeypatch.setenv("PATH", os.pathsep.join(own))
        tree = Tree(tmp_path)
        for number, minor in enumerate([0, *minors]):
            tree.node(number, drm_render_minor=minor, gfx_target_version=90402, unique_id=7000 + minor)
            tree.device_node(minor)
        for name, value in tree.env.items():
            monkeypatch.setenv(name, value)
        return tree.env

    return make


def test_the_beginning_of_several_uuids_names_none_of_them(fake_smi, monkeypatch):
    fake_smi(TWO_H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert [gpu.index for gpu in discover()] == [1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-")
    with pytest.raises(GpuError, match="begins several UUIDs"):
        discover()


@pytest.mark.parametrize(
    "mask, indices",
    [
        ("", []),
        ("1,,0", [1]),
        ("0,-1,1", [0]),
        (" 1 , 0 ", [1, 0]),
        ("GPU-bbbb2222,0", [1, 0]),
        ("1,1", [1]),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_an_empty_entry_or_a_negative_index_ends_the_mask(fake_smi, mask, indices):
    fake_smi(TWO_H200)
    assert [gpu.index for gpu in discover({"CUDA_VISIBLE_DEVICES": mask})] == indices


def test_the_environment_that_is_given_counts_and_not_this_process_s(fake_smi, monkeypatch):
    fake_smi(TWO_H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.index for gpu in discover({})] == [0, 1]


def test_hips_mask_counts_where_rocrs_is_not_set(fake_kfd):
    roots = fake_kfd(128, 129, 130)
    assert [gpu.index for gpu in discover({**roots, "HIP_VISIBLE_DEVICES": "2"})] == [2]
    both = {**roots, "HIP_VISIBLE_DEVICES": "2", "ROCR_VISIBLE_DEVICES": "1,0"}
    assert [gpu.index for gpu in discover(both)] == [1, 0]


def test_an_amd_gpu_beside_nvidias_is_left_out_unless_the_mask_hides_those(fake_smi, fake_kfd):
    fake_smi(TWO_H200)
    roots = fake_kfd(128)
    assert [gpu.vendor for gpu in discover()] == ["nvidia", "nvidia"]
    assert [gpu.vendor for gpu in discover({**roots, "CUDA_VISIBLE_DEVICES": ""})] == ["amd"]


@pytest.mark.parametrize("mask", [",MIG-c6d4f1ef", "-1,GPU-aaaa1111"])
def test_a_mask_that_ends_before_the_gpu_it_names_is_refused(fake_smi, mask):
    fake_smi(TWO_H200)
    with pytest.raises(GpuError, match="ends before the first GPU"):
        discover({"CUDA_VISIBLE_DEVICES": mask})


@pytest.mark.parametrize(
    "mask", ["0,7,1", "x", "2", "\u00b2", "0:1", "MIG-c6d4f1ef", "MIG-GPU-aaaa1111/1/0", "GPU-cccc"]
)
def test_a_mask_that_names_what_is_not_here_is_refused_and_never_a_run_on_less(fake_smi, mask):
    fake_smi(TWO_H200)
    with pytest.raises(GpuError, match="not on this machine") as caught:
        discover({"CUDA_VISIBLE_DEVICES": mask})
    assert "GPU-aaaa1111" in str(caught.value) and "--gpus none" in str(caught.value)


@pytest.mark.parametrize("mask", ["MIG-c6d4f1ef", "GPU-aaaa1111"])
def test_a_mask_by_uuid_is_refused_where_there_is_no_gpu_at_all(fake_smi, fake_kfd, mask):
    fake_smi("No devices were found\n", code=6)
    roots = fake_kfd(128)
    with pytest.raises(GpuError, match="not on this machine"):
        discover({**roots, "CUDA_VISIBLE_DEVICES": mask})


def test_an_index_that_a_scheduler_sets_for_both_vendors_does_not_hide_amds(fake_smi, fake_kfd):
    fake_smi("No devices were found\n", code=6)
    roots = fake_kfd(128, 129)
    both = {**roots, "CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"}
    assert [(gpu.vendor, gpu.index) for gpu in discover(both)] == [("amd", 1)]


# MIG: an A100 in two instances

MIG_SMI = """\
#!/bin/sh
if [ "$1" = -L ]; then cat <<'END'
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4)
  MIG 1g.5gb      Device  1: (UUID: MIG-71c87eb3-91c7)
END
else echo '0, GPU-5d5ba0d6, NVIDIA A100-SXM4-40GB, 535.1, 40960, 400.00, 1410, 1215, 8.0, Enabled'
fi
"""


@pytest.fixture
def mig(fake_smi, tmp_path):
    fake_smi("")
    (tmp_path / "bin/nvidia-smi").write_text(MIG_SMI)


@pytest.mark.parametrize(
    "mask, numbers",
    [
        ("MIG-71c87eb3-91c7", ["0:1"]),
        ("MIG-71c87eb3", ["0:1"]),
        ("MIG-71c87eb3-91c7,MIG-c6d4f1ef-42e4", ["0:1", "0:0"]),
        ("0", ["0:0"]),  # as CUDA does: the first instance
        ("GPU-5d5ba0d6", ["0:0"]),
        ("", []),
    ],
)
def test_a_mask_names_mig_instances(mig, mask, numbers):
    assert [gpu.number for gpu in discover({"CUDA_VISIBLE_DEVICES": mask})] == numbers


def test_without_a_mask_every_instance_is_a_gpu(mig):
    assert [gpu.uuid for gpu in discover({})] == ["MIG-c6d4f1ef-42e4", "MIG-71c87eb3-91c7"]


def test_a_step_that_was_given_gpus_and_sees_fewer_is_an_error(fake_smi):
    fake_smi("No devices were found\n", code=6)
    with pytest.raises(GpuError, match="was given 1 GPU, and 0 can be seen"):
        discover({"LAB_NUM_GPUS": "1"})
    fake_smi(TWO_H200)
    assert len(discover({"LAB_NUM_GPUS": "1"})) == 2


def test_an_empty_variable_means_the_usual_tree_and_not_the_current_folder(tmp_path, monkeypatch):
    """Else a GPU is not seen, and the run is one on the CPU."""
    asked = []
    real = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, what: asked.append(str(self)) or real(self, what))
    env = {"LAB_SYS_ROOT": "", "LAB_DEV_ROOT": "", "LAB_IMAGE": "", "PATH": str(tmp_path)}
    amd_gpus(env)
    monkeypatch.setattr("lab.gpus.nvidia.CONTAINER_MARKS", ())
    cards_without_driver(env)
    assert asked == ["/sys/class/kfd/kfd/topology/nodes", "/sys/bus/pci/devices"]
