"""GPUs in containers, by stand-ins: NVIDIA's hook is tests/fakebin's, AMD's nodes are null devices."""

from __future__ import annotations

import os

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.run import Run
from lab.core.stop import Stop
from lab.errors import GpuError
from lab.gpus.discover import discover

pytest.importorskip("docker")
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.leftovers import leftovers
from tests.engines.docker.fixtures import (  # noqa: F401
    a_docker_run,
    an_image,
    busybox,
    hook_says,
    nvidia,
    own_caches,
    quiet_hook,
    run_step,
    shell,
    systems_engine,
)

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("busybox", "own_caches")]


@pytest.mark.usefixtures("systems_engine", "quiet_hook")
def test_an_nvidia_container_sees_the_uuids_it_was_given_and_no_others(tmp_path):
    steps = "env | grep -E '^(NVIDIA_VISIBLE|CUDA_VISIBLE)'; ls /sys/class/net"
    ran = run_step(tmp_path / "r", shell(steps, num_gpus=2), nvidia(3, 5), image=an_image("nvidia"))
    assert ran.outcome.ok, ran.outcome
    assert "NVIDIA_VISIBLE_DEVICES=GPU-1234-3,GPU-1234-5" in ran.lines
    assert not any(line.startswith("CUDA_VISIBLE") for line in ran.lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="the stand-in for NVIDIA's hook takes its orders from root")
def test_what_nvidias_hook_says_reaches_the_user_in_words(tmp_path):
    text = "nvidia-container-cli: device error: GPU-1234-9: unknown device"
    with hook_says(text), pytest.raises(GpuError, match="no such GPU on this machine: GPU-1234-9") as caught:
        run_step(tmp_path / "r", shell("true", num_gpus=1), nvidia(9), image=an_image("nvidia"))
    assert "lab doctor" in str(caught.value)
    assert leftovers(run_dir=tmp_path / "r") == []


@pytest.mark.usefixtures("systems_engine", "quiet_hook")
def test_the_gpus_of_running_containers_count_as_used(tmp_path):
    stop, seen, image = Stop(), [], an_image("nvidia")
    engine = DockerEngine(image)

    def meanwhile(_: Run, line: str) -> None:
        seen.append("GPU-1234-4" in engine.gpus_in_use())
        stop.set()

    step = shell("echo up; sleep 300", num_gpus=1)
    run_step(tmp_path / "r", step, nvidia(4), image=image, stop=stop, grace_s=1, meanwhile=meanwhile)
    assert seen == [True] and "GPU-1234-4" not in engine.gpus_in_use()


@pytest.fixture
def amd_nodes(tmp_path, monkeypatch) -> list[Gpu]:
    """Two AMD GPUs made of null devices that only group 5109 may open."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    dev, sysfs = tmp_path / "dev", tmp_path / "sys"
    (dev / "dri").mkdir(parents=True)
    for path in (dev / "kfd", dev / "dri/renderD128", dev / "dri/renderD129"):
        os.mknod(path, 0o020660, os.makedev(1, 3))
        os.chown(path, 0, 5109)
        path.chmod(0o660)
    for node, minor in enumerate((0, 128, 129)):
        folder = sysfs / f"class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"drm_render_minor {minor}\nunique_id {minor}\n")
    monkeypatch.setenv("LAB_DEV_ROOT", str(dev))
    monkeypatch.setenv("LAB_SYS_ROOT", str(sysfs))
    return discover()


@pytest.mark.root
@pytest.mark.parametrize("gids, opens", [(("5109",), True), ((), False)])
def test_an_amd_container_opens_the_picked_nodes_by_their_numeric_group(tmp_path, amd_nodes, gids, opens):
    from lab.engines.docker.host import host_context
    from lab.images.container import container_spec

    step = shell("ls /dev /dev/dri; id; : < /dev/kfd && : < /dev/dri/renderD129 && echo opened", num_gpus=1)
    run = a_docker_run(tmp_path / "r", step)
    run.begin(step)
    picked = [amd_nodes[1]]
    here = host_context(str(run.root), picked)
    assert here.device_gids == ("5109",)
    image = an_image("amd", security_opt=("seccomp=unconfined",))
    somebody = msgspec.structs.replace(here, uid=1234, gid=1234, device_gids=gids)
    lines: list[str] = []
    outcome = DockerEngine(image).run_spec(
        run, step, container_spec(image, step, picked, somebody), picked, on_line=lines.append, stop=Stop()
    )
    assert outcome.ok is opens and ("opened" in lines) is opens, (outcome, lines)
    assert "renderD129" in lines and "renderD128" not in lines


@pytest.mark.root
def test_a_host_without_amdgpu_is_a_gpu_error(tmp_path):
    gone = Gpu(vendor="amd", index=0, uuid="GPU-0", render_node=str(tmp_path / "dev/dri/renderD128"))
    with pytest.raises(GpuError, match="this host has no AMD GPU"):
        run_step(tmp_path / "r", shell("true", num_gpus=1), [gone], image=an_image("amd"))
    assert leftovers(run_dir=tmp_path / "r") == []
