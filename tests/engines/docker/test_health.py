"""`lab doctor` asks the engine itself, and says how it would give the GPUs to a container."""

from __future__ import annotations

import os

import msgspec
import pytest

pytest.importorskip("docker")
from lab.core.gpu import Gpu
from lab.engines.docker import engine as docker_engine
from lab.engines.docker import health
from lab.engines.docker.client import how_gpus_reach, nature_of
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.health import check_engine
from tests.engines.docker.fixtures import an_image
from tests.engines.docker.test_client import DOCKER, PODMAN, an_engine
from tests.wire import dead_socket, deaf_socket

GPU = Gpu(vendor="nvidia", index=0, uuid="GPU-0")
NAMED = msgspec.structs.replace(GPU, cdi="nvidia.com/gpu=GPU-0")
AMD = Gpu(vendor="amd", index=0, uuid="GPU-1", render_node="/dev/dri/renderD128")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No variables of other tests of this process: a plan notes those that do not reach a container."""
    kept = ("PATH", "HOME", "TMP", "LANG", "LC_", "PYTEST", "PYTHON", "LAB_", "XDG", "USER", "DOCKER")
    for name in [name for name in os.environ if not name.startswith(kept)]:
        monkeypatch.delenv(name)


def test_a_socket_that_nobody_serves_is_not_an_engine(tmp_path):
    dead_socket(tmp_path / "s")
    (row,) = check_engine({"DOCKER_HOST": f"unix://{tmp_path}/s"}, [])
    assert (row.subject, row.state) == ("engine", "warn") and "no Docker engine answers" in row.detail
    assert (
        "nothing serves it; sudo systemctl start docker" in row.detail and "errno" not in row.detail.lower()
    )


def test_an_engine_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "TIMEOUT_S", 0.3)
    with deaf_socket(tmp_path / "s"):
        (row,) = check_engine({"DOCKER_HOST": f"unix://{tmp_path}/s"}, [])
    assert row.state == "warn" and "does not answer in time" in row.detail


def test_a_remote_engine_is_not_used(tmp_path):
    (row,) = check_engine({"DOCKER_HOST": "tcp://10.0.0.1:2375"}, [])
    assert row.state == "warn" and "not the socket of an engine of this machine" in row.detail


def test_without_a_socket_there_is_no_engine(tmp_path):
    (row,) = check_engine({"DOCKER_HOST": f"unix://{tmp_path}/none"}, [GPU])
    assert row.state == "-"


@pytest.mark.parametrize(
    "said, words",
    [
        ({**DOCKER, "Version": "20.10.24"}, "Docker 20.10.24 at unix://"),
        ({**PODMAN, "Version": "4.3.1"}, "podman 4.3.1"),
    ],
)
def test_an_engine_that_answers_is_named_with_its_version(tmp_path, said, words):
    with an_engine(tmp_path / "e.sock", **said) as env:
        row, access = check_engine(env, [AMD])
    assert row.state == "ok" and words in row.detail and access.detail == "by their device nodes"


@pytest.mark.parametrize(
    "engine, info, gpu, state, words",
    [
        (DOCKER, {"CDISpecDirs": ["/etc/cdi"]}, NAMED, "ok", "by CDI: nvidia.com/gpu=GPU-0"),
        (PODMAN, {}, NAMED, "ok", "by CDI"),
        (PODMAN, {}, GPU, "warn", "nvidia-ctk cdi generate"),
        (DOCKER, {"Runtimes": {"runc": {}, "nvidia": {}}}, NAMED, "ok", "container toolkit"),
        (DOCKER, {"Runtimes": {"runc": {}}}, GPU, "warn", "toolkit was not found"),
        (DOCKER, {"Runtimes": None}, GPU, "warn", "install nvidia-container-toolkit"),
    ],
)
def test_how_a_container_would_get_the_gpus(engine, info, gpu, state, words, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    access, detail = how_gpus_reach(nature_of(engine, info), [gpu])
    assert access == state and words in detail


ROOTLESS = {"SecurityOptions": ["name=rootless"]}


@pytest.mark.parametrize(
    "said, limited",
    [
        ({**DOCKER, "CgroupVersion": "1", "CgroupDriver": "cgroupfs", "PidsLimit": True}, True),
        ({**DOCKER, **ROOTLESS, "CgroupVersion": "1", "CgroupDriver": "none", "PidsLimit": False}, False),
        ({**DOCKER, **ROOTLESS, "CgroupVersion": "2", "CgroupDriver": "systemd", "PidsLimit": True}, True),
        ({**DOCKER, **ROOTLESS, "CgroupVersion": "2", "CgroupDriver": "none", "PidsLimit": False}, False),
        # podman says that it could
        ({**PODMAN, "Rootless": True, "CgroupVersion": "1", "PidsLimit": True}, False),
        ({**PODMAN, "Rootless": True, "CgroupVersion": "2", "PidsLimit": True}, True),
        ({**PODMAN, "Rootless": False, "CgroupVersion": "1", "PidsLimit": True}, True),
    ],
)
def test_an_engine_whose_limits_have_no_effect_is_told_in_doctor_and_plan(
    tmp_path, monkeypatch, said, limited
):
    with an_engine(tmp_path / "e.sock", **said) as env:
        monkeypatch.setenv("DOCKER_HOST", env["DOCKER_HOST"])
        notes, row = DockerEngine(an_image()).notes([]), check_engine(env, [])[0]
    words = "cannot limit a container's memory or processes"
    assert (words in row.detail) == (notes != ()) == (not limited)
    assert limited or words in notes[0]


def test_a_plan_without_an_answer_says_for_which_engine_it_is(tmp_path, monkeypatch):
    """A rootless podman that is loaded gets other users and mounts than what the plan shows."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
    monkeypatch.setattr(docker_engine, "PREVIEW_TIMEOUT_S", 0.2)
    with deaf_socket(tmp_path / "s"):
        assert DockerEngine(an_image()).notes([]) == (docker_engine.UNKNOWN_ENGINE,)


def test_a_plan_says_that_the_toolkit_is_missing(tmp_path, monkeypatch):
    """Else a dry run looks well, and the run fails at its first step."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with an_engine(tmp_path / "e.sock", **DOCKER) as env:
        monkeypatch.setenv("DOCKER_HOST", env["DOCKER_HOST"])
        (note,) = DockerEngine(an_image("nvidia")).notes([GPU])
        assert "toolkit was not found: install nvidia-container-toolkit" in note
        assert DockerEngine(an_image("amd")).notes([AMD]) == DockerEngine(an_image()).notes([]) == ()
