"""podman gives GPUs by CDI: with a stand-in specification of null devices a container gets its own only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("docker")
from lab.engines.docker import container as containers
from lab.engines.docker.client import connect
from lab.errors import GpuError
from lab.gpus.cdi import read_cdi, with_cdi_names
from lab.images.command_line import arguments_of
from tests.command import until
from tests.engines.docker.fixtures import a_test_image, an_image, nvidia, own_caches, run_step, shell  # noqa: F401

FOLDER = Path("/var/run/cdi")
pytestmark = [pytest.mark.docker, pytest.mark.root, pytest.mark.usefixtures("own_caches")]


@pytest.fixture(scope="module")
def podman() -> Iterator[str]:
    """A podman of this test's own, with its own storage; -> its endpoint."""
    if shutil.which("podman") is None:
        pytest.skip("no podman here")
    # Not pytest's folder: podman refuses a runroot of more than 50 characters.
    with tempfile.TemporaryDirectory(prefix="lab-podman-", dir="/tmp") as name:
        here = Path(name)
        storage = ["--root", f"{here}/root", "--runroot", f"{here}/run", "--storage-driver", "vfs"]
        own = ["podman", *storage, *(["--runtime", "runc"] if shutil.which("runc") else [])]
        yield from _serve(here, own, f"unix://{here}/p.sock")


@pytest.fixture(autouse=True)
def kept_limits(monkeypatch) -> None:
    """podman raises limits by default, for which root needs a capability that root in a container lacks."""
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    monkeypatch.setattr(containers, "arguments_of", lambda spec: [*limits, *arguments_of(spec)])


def _serve(here: Path, own: list[str], endpoint: str) -> Iterator[str]:
    log = here / "service.log"
    with log.open("wb") as said:
        service = subprocess.Popen([*own, "system", "service", "-t", "0", endpoint], stderr=said)
    try:
        until(lambda: service.poll() is not None or (here / "p.sock").exists())
        assert service.poll() is None, f"podman does not serve: {log.read_text()}"
        remote = ["podman", "--remote", "--url", endpoint]
        words = ["import", "-c", "ENV PATH=/bin", "-", "localhost/lab-test/busybox:cdi"]
        subprocess.run([*remote, *words], input=a_test_image(), check=True)
        yield endpoint
    finally:
        service.terminate()
        service.wait()


@pytest.fixture
def specification() -> Iterator[None]:
    """Three GPUs made of null devices, as nvidia-ctk would describe them."""
    made = not FOLDER.exists()
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"lab-test-{os.getpid()}.json"
    devices = [
        {
            "name": gpu.uuid,
            "containerEdits": {
                "deviceNodes": [{"path": f"/dev/nvidia{gpu.index}", "hostPath": "/dev/null", "type": "c"}],
                "env": [f"STAND_IN_{gpu.index}=given"],
            },
        }
        for gpu in nvidia(3, 5, 7)
    ]
    path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}))
    try:
        yield
    finally:
        path.unlink()
        if made:
            FOLDER.rmdir()


def image():
    return msgspec.structs.replace(an_image("nvidia"), ref="localhost/lab-test/busybox:cdi")


def engine(endpoint: str):
    return lambda: connect({"DOCKER_HOST": endpoint})


def test_a_container_of_podman_sees_its_gpus_and_no_others(tmp_path, podman, specification):
    gpus = with_cdi_names(nvidia(3, 5), read_cdi({}))
    step = shell("ls /dev; env; : > /dev/nvidia5 && echo opened; exit 3", num_gpus=2)
    ran = run_step(tmp_path / "r", step, gpus, image=image(), daemon=engine(podman))
    assert ran.outcome.exit_code == 3, (ran.outcome, ran.lines)
    assert {"nvidia3", "nvidia5", "STAND_IN_3=given", "LAB_NUM_GPUS=2", "opened"} <= set(ran.lines)
    assert "nvidia7" not in ran.lines


def test_a_name_that_podman_does_not_know_is_a_gpu_error(tmp_path, podman, specification):
    (known,) = with_cdi_names(nvidia(7), read_cdi({}))
    gone = msgspec.structs.replace(known, cdi="nvidia.com/gpu=GPU-gone")
    with pytest.raises(GpuError, match="no CDI specification that the engine reads"):
        run_step(tmp_path / "r", shell("true", num_gpus=1), [gone], image=image(), daemon=engine(podman))


def test_without_a_specification_podman_is_refused(tmp_path, podman):
    with pytest.raises(GpuError, match="by CDI only"):
        run_step(tmp_path / "r", shell("true", num_gpus=1), nvidia(3), image=image(), daemon=engine(podman))
