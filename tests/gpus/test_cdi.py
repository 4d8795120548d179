"""The host's CDI specifications name its GPUs, for engines that give devices by them."""

from __future__ import annotations

import json

import pytest
import yaml

from lab.core.gpu import Gpu
from lab.gpus.cdi import Devices, read_cdi, with_cdi_names

TWICE = "kind: nvidia.com/gpu\ndevices: [{name: '1'}, {name: '1'}]"
WHOLE = Gpu(vendor="nvidia", index=0, uuid="GPU-aa")
SLICE = Gpu(vendor="nvidia", index=1, uuid="MIG-b1", parent="GPU-bb", instance=1)


def spec(kind, **devices):
    """A specification: name -> its device nodes."""
    edits = {name: {"deviceNodes": [{"path": path} for path in paths]} for name, paths in devices.items()}
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": edit} for name, edit in edits.items()],
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]},
    }


@pytest.fixture
def env(tmp_path):
    return {"LAB_CDI_DIRS": f"{tmp_path}/missing:{tmp_path}"}


@pytest.mark.parametrize(
    "names, found",
    [
        (["0", "1:1", "all"], ["nvidia.com/gpu=0", "nvidia.com/gpu=1:1"]),
        (["gpu0", "mig1:1"], ["nvidia.com/gpu=gpu0", "nvidia.com/gpu=mig1:1"]),
        (["0", "GPU-aa", "MIG-b1", "1:1"], ["nvidia.com/gpu=GPU-aa", "nvidia.com/gpu=MIG-b1"]),
        (["1", "GPU-bb"], [None, None]),
    ],
)
def test_nvidia_gpus_have_the_name_of_their_uuid_or_their_number(env, tmp_path, names, found):
    (tmp_path / "nvidia.yaml").write_text(
        yaml.safe_dump(spec("nvidia.com/gpu", **{n: ["/dev/nvidia0"] for n in names}))
    )
    assert [gpu.cdi for gpu in with_cdi_names([WHOLE, SLICE], read_cdi(env))] == found


def test_an_amd_gpu_has_the_name_whose_only_render_node_is_its_own(env, tmp_path):
    nodes = {
        "0": ["/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD129"],
        "1": ["/dev/kfd", "/dev/dri/card0", "/dev/dri/renderD128"],
        "all": ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"],
    }
    (tmp_path / "amd.json").write_text(json.dumps(spec("amd.com/gpu", **nodes)))
    gpus = [
        Gpu(vendor="amd", index=i, uuid=f"GPU-{i}", render_node=f"/fake/dev/dri/renderD{128 + i}")
        for i in range(3)
    ]
    found = with_cdi_names(gpus, read_cdi(env))
    assert [gpu.cdi for gpu in found] == ["amd.com/gpu=1", "amd.com/gpu=0", None]


@pytest.mark.parametrize(
    "text", ["{", "[]", "kind: nvidia.com/gpu", "kind: nvidia.com/gpu\ndevices: [3]", "- a: [", "\0", TWICE]
)
def test_a_bad_file_is_named_and_hides_no_other(env, tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.json").write_text(json.dumps(spec("nvidia.com/gpu", **{"0": []})))
    devices = read_cdi(env)
    assert list(devices.nodes) == ["nvidia.com/gpu=0"]
    assert len(devices.problems) == 1 and "a.yaml" in devices.problems[0]


def test_other_devices_and_other_files_are_passed_over(env, tmp_path):
    (tmp_path / "net.json").write_text(json.dumps(spec("vendor.com/nic", **{"0": []})))
    (tmp_path / "notes.txt").write_text("{")
    assert (read_cdi(env).nodes, read_cdi(env).problems) == ({}, ())


def test_a_name_in_two_files_of_one_folder_is_nobodys_and_said(env, tmp_path):
    """The engine refuses it as a conflict, so a plan must not count on it."""
    for file in ("a.yaml", "b.yaml", "c.yaml"):
        (tmp_path / file).write_text(json.dumps(spec("nvidia.com/gpu", **{"0": [], file[0]: []})))
    devices = read_cdi(env)
    assert set(devices.nodes) == {f"nvidia.com/gpu={name}" for name in "abc"}
    assert [problem.partition("nvidia")[0].split("/")[-1] for problem in devices.problems] == [
        "b.yaml: ",
        "c.yaml: ",
    ]


def test_a_later_folder_goes_before_an_earlier_one(tmp_path):
    for folder, node in (("etc", "/dev/old"), ("run", "/dev/new")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nvidia.json").write_text(json.dumps(spec("nvidia.com/gpu", **{"0": [node]})))
    devices = read_cdi({"LAB_CDI_DIRS": f"{tmp_path}/etc:{tmp_path}/run"})
    assert devices.nodes == {"nvidia.com/gpu=0": {"/dev/new"}} and devices.problems == ()


def test_an_empty_variable_means_the_usual_folders_and_not_this_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lab.gpus.cdi.FOLDERS", (f"{tmp_path}/etc",))
    (tmp_path / "here.yaml").write_text(json.dumps(spec("nvidia.com/gpu", **{"0": []})))
    assert read_cdi({"LAB_CDI_DIRS": ""}) == read_cdi({}) == Devices({})
