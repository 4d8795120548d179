"""Smoke runs give a container exactly what `lab run` would, stand-ins for GPUs included."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from lab.cli.registry import smoke_runs
from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.images import smoke as imagesmoke
from lab.images import spec as images
from lab.images.command_line import arguments_of
from lab.images.container import ContainerSpec, HostContext, container_spec
from lab.images.targets import targets


def words(name: str, folder: Path) -> tuple[list[str], ContainerSpec]:
    image = images.load(name)
    gpus = imagesmoke.gpu_stand_ins(image, folder)
    spec = container_spec(
        image, Step(name="s", argv=("lab", "--version"), num_gpus=len(gpus)), gpus, imagesmoke._host(folder)
    )
    return imagesmoke.docker_run_arguments(spec), spec


@pytest.mark.parametrize("name", images.names())
def test_everything_that_lab_decided_is_said_to_docker(name, tmp_path):
    said, spec = words(name, tmp_path)
    pairs = set(pairwise(said))
    assert {("--user", spec.user), ("--network", spec.network_mode), ("--cap-drop", "ALL")} <= pairs
    assert {"--read-only", "--init", "--rm"} <= set(said) and "--privileged" not in said
    assert {("--env", f"{name}={value}") for name, value in spec.env.items()} <= pairs
    assert sum(word == "--mount" for word in said) == len(spec.mounts)
    assert {("--security-opt", option) for option in spec.security_opt} <= pairs
    assert tuple(said[-len(spec.command) - 1 :]) == (spec.image, *spec.command)


def test_nvidia_stand_ins_are_asked_for_by_id_and_amds_are_nodes_of_nothing(tmp_path):
    said, _ = words("pascal", tmp_path)
    asked = said[said.index("--gpus") + 1]
    assert asked.startswith('"device=GPU-0000') and "count" not in asked and "all" not in asked
    (tmp_path / "amd").mkdir()
    said, spec = words("rocm70", tmp_path / "amd")
    assert len(spec.devices) == 3 and {Path(device.split(":")[0]).resolve() for device in spec.devices} == {
        Path("/dev/null")
    }
    assert {("--device", device) for device in spec.devices} <= set(pairwise(said))


def test_gpus_by_cdi_are_devices_on_the_command_line():
    spec = container_spec(
        images.load("cuda"),
        Step(name="s", argv=("true",)),
        [Gpu(vendor="nvidia", index=0, uuid="GPU-0", cdi="nvidia.com/gpu=0")],
        HostContext(run_dir="/r", hf_cache="/h", cache="/c", uid=1, gid=1, cdi=True),
    )
    said = arguments_of(spec)
    assert ("--device", "nvidia.com/gpu=0") in set(pairwise(said)) and "--gpus" not in said


def test_nothing_that_runs_on_stand_ins_is_told_that_it_has_gpus():
    assert imagesmoke._without_promise({"LAB_NUM_GPUS": "2", "HOME": "/tmp"}) == {"HOME": "/tmp"}


def test_root_runs_a_smoke_as_somebody_else(tmp_path, monkeypatch):
    monkeypatch.setattr(imagesmoke.os, "getuid", lambda: 0)
    owners = []
    monkeypatch.setattr(imagesmoke.os, "chown", lambda path, uid, gid: owners.append(uid))
    assert imagesmoke._host(tmp_path).uid == imagesmoke.ORDINARY_UID and set(owners) == {
        imagesmoke.ORDINARY_UID
    }


def test_a_command_that_fails_or_hangs_is_a_row_with_its_reason(tmp_path, monkeypatch):
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\necho out; echo broken >&2; exit 3\n")
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\n[ $1 = rm ] && exit 0\nexec sleep 60\n")
    for script in (fails, hangs):
        script.chmod(0o755)
    assert imagesmoke._run([str(fails)], ["run", "x"]) == ("exit code 3: broken", "")
    monkeypatch.setattr(imagesmoke, "TIMEOUT_S", 0.2)
    assert imagesmoke._run([str(hangs)], ["run", "x"])[0] == "did not end in 0 s"


def test_an_image_that_is_not_built_fails_the_smoke_that_asked_for_it(monkeypatch):
    monkeypatch.setattr(imagesmoke, "listed", lambda: {"other:latest": "x"})
    monkeypatch.setattr(imagesmoke, "engine_cli", lambda: ["docker"])
    (row,) = imagesmoke.smoke(["rocm70"], smoke_runs())
    assert row.state == "failed" and "lab images build rocm70" in row.detail


@pytest.mark.parametrize(
    "cdi, words", [(False, ("--gpus", '"device=GPU-7"')), (True, ("--device", "n/gpu=7"))]
)
def test_an_image_is_tried_with_the_gpu_that_is_here_and_has_to_see_it(monkeypatch, cdi, words):
    """Where the GPU does not reach the container, `lab doctor` in it fails by the number it was promised."""
    tried = []
    monkeypatch.setattr(imagesmoke, "listed", lambda: {f"{t.ref}:latest": t.ref for t in targets()})
    monkeypatch.setattr(imagesmoke, "engine_cli", lambda: ["docker"])
    monkeypatch.setattr(imagesmoke, "_run", lambda _, argv: tried.append(argv) or (None, ""))
    gpu = Gpu(vendor="nvidia", index=0, uuid="GPU-7", cdi="n/gpu=7" if cdi else None)
    list(imagesmoke.smoke(["cuda", "cpu"], {}, box=imagesmoke.Box(cdi=cdi, gpus=(gpu,))))
    (*of_cpu, of_cuda) = [argv for argv in tried if argv[-1] == "doctor"]
    pairs = list(pairwise(of_cuda))
    assert any(a == words[0] and b.startswith(words[1]) for a, b in pairs) and "LAB_NUM_GPUS=1" in of_cuda
    assert len(of_cpu) == 2 and not any("GPU-7" in w or "LAB_NUM_GPUS" in w for argv in of_cpu for w in argv)


@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_built_images_do_their_work_as_nobody_on_a_read_only_root(cpu_images):
    rows = list(imagesmoke.smoke(["cpu"], smoke_runs()))
    assert [(row.image, row.check) for row in rows] == [
        ("cpu", "version"),
        ("cpu", "doctor"),
        ("cpu", "analysis"),
        ("cpu-torch", "version"),
        ("cpu-torch", "doctor"),
        *(("cpu-torch", room) for room in smoke_runs()),
    ]
    assert not [row for row in rows if row.state != "ok"], rows
    assert (
        subprocess.run(
            ["docker", "ps", "-q", "--filter", "name=lab-smoke-"], capture_output=True, check=True
        ).stdout
        == b""
    )
