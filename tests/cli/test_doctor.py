"""`lab doctor` names what is here with its verdict, and fails only where nothing can run."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys

import pytest
from click.testing import CliRunner

from lab.cli.registry import SCANNERS
from lab.gpus.health import join_group_of
from lab.native import C
from tests.wire import dead_socket

SMI = """\
#!/bin/sh
if [ "$1" = -L ]; then cat <<'END'
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4)
END
else
echo '0, GPU-5d5ba0d6, NVIDIA A100-SXM4-40GB, 535.1, 40960, 400.00, 1410, 1215, 8.0, Enabled'
echo '1, GPU-1080, NVIDIA GeForce GTX 1080 Ti, 535.1, 11264, 250.00, 1911, 5505, 6.1, [N/A]'
fi
"""


@pytest.fixture
def box(tmp_path):
    """A machine with an A100 in one MIG instance, a GTX 1080 Ti, and a socket of a Docker that has died."""
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    dead_socket(tmp_path / "s")
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/broken.yaml").write_text("kind: [")
    env = {name: value for name, value in os.environ.items() if not name.endswith("_VISIBLE_DEVICES")}
    return {
        **env,
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "DOCKER_HOST": f"unix://{tmp_path}/s",
        "LAB_CDI_DIRS": f"{tmp_path}/cdi",
    }


def lab(*words, env, cwd):
    return subprocess.run(
        [sys.executable, "-m", "lab", *words], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )


def test_each_gpu_has_the_image_that_serves_it_and_a_dead_socket_is_not_ok(box, tmp_path):
    done = lab("doctor", "--json", env=box, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [(row["what"], row["state"], row["detail"]) for row in json.loads(done.stdout)]
    gpus = [(state, text) for what, state, text in rows if what == "gpu"]
    assert [state for state, _ in gpus] == ["ok", "ok"]
    assert "0:0" in gpus[0][1] and "MIG-c6d4f1ef-42e4" in gpus[0][1] and gpus[0][1].endswith("--image cuda")
    assert "sm_61" in gpus[1][1] and gpus[1][1].endswith("--image pascal")
    (engine,) = [(state, text) for what, state, text in rows if what == "engine"]
    assert engine[0] != "ok"
    assert [state for what, state, text in rows if what == "cdi" and "broken.yaml" in text] == ["warn"]


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"LAB_READER": "plain"}, "plain, as LAB_READER asks"),
        ({"CC": "no-such-compiler", "XDG_CACHE_HOME": "{here}"}, "plain: no C compiler here"),
        ({}, "native" if any(map(shutil.which, C.names)) else "plain: "),
    ],
)
def test_each_scanner_says_which_form_is_in_use_and_why(settings, said, box, tmp_path):
    """By an import of its own, so that the state said is the state used."""
    env = {**box, **{name: value.format(here=tmp_path) for name, value in settings.items()}}
    done = lab("doctor", "--json", env=env, cwd=tmp_path)
    readers = [row for row in json.loads(done.stdout) if row["what"] == "reader"]
    assert [row["detail"].split(":")[0] for row in readers] == list(SCANNERS) == ["tensors on a CPU"]
    for row in readers:
        assert row["state"] == "ok" and row["detail"].split(": ", 1)[1].startswith(said), row
    uses = "import sys, importlib; print(importlib.import_module(sys.argv[1]).library() is not None)"
    for module in SCANNERS.values():
        used = subprocess.check_output([sys.executable, "-c", uses, module], env=env, text=True)
        assert used == f"{said == 'native'}\n"


@pytest.mark.parametrize(
    "words, mask, said",
    [
        (("--image", "cuda"), "GPU-1080", "no code for NVIDIA GeForce GTX 1080 Ti, which is sm_61"),
        (("--image", "pascal"), "MIG-c6d4f1ef-42e4", "no code for NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
        (("--image", "cuda"), "MIG-00000000", "not on this machine"),
        ((), "MIG-00000000", "not on this machine"),
        ((), "GPU-5d5ba0d6,GPU-1080", "one MIG instance at most"),
    ],
)
def test_a_plan_that_the_gpus_cannot_run_is_refused_before_anything_runs(box, tmp_path, words, mask, said):
    env = {**box, "CUDA_VISIBLE_DEVICES": mask}
    done = lab("run", *words, "--dry-run", "sweep", "-c", "28", env=env, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, ""), done.stderr
    assert said in done.stderr and "fix:" in done.stderr


def test_a_plan_uses_the_mig_instance_that_a_scheduler_gave(box, tmp_path):
    env = {**box, "CUDA_VISIBLE_DEVICES": "MIG-c6d4f1ef-42e4"}
    for words in ((), ("--image", "cuda")):
        done = lab(
            "run", *words, "--dry-run", "--json", "sweep", "-c", "28", "-t", "256", env=env, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        (step,) = plan["steps"]
        assert [gpu["uuid"] for gpu in plan["gpus"]] == ["MIG-c6d4f1ef-42e4"] and step["num_gpus"] == 1
        starts = json.dumps(step["starts"])
        assert "MIG-c6d4f1ef-42e4" in starts and '"LAB_NUM_GPUS": "1"' in starts


def test_a_wrong_mask_does_not_keep_a_run_from_the_cpu_that_was_asked_for(box, tmp_path):
    env = {**box, "CUDA_VISIBLE_DEVICES": "MIG-00000000"}
    done = lab("run", "--gpus", "none", "--dry-run", "--json", "sweep", "-c", "28", env=env, cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["gpus"] == []


# What mends a finding


DOCKER = {"ApiVersion": "1.41", "Components": [{"Name": "Engine", "Version": "20.10.24"}]}
PODMAN = {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}
ONE_GPU = "0, GPU-5d5ba0d6, NVIDIA H200, 580.1, 143771, 700.00, 1980, 3201, 9.0, Disabled"
VERSION = '[ "$1" != --version ] || { echo NVIDIA Container Toolkit CLI version 1.17.4; exit; }\n'
SPEC = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: GPU-5d5ba0d6}]\n"


@pytest.fixture
def ill(tmp_path, monkeypatch):
    """A machine of stand-ins: what is put on its PATH, and `lab doctor` on it."""
    pytest.importorskip("docker")
    return Ill(tmp_path, monkeypatch)


class Ill:
    def __init__(self, folder, patch):
        self.folder, self._patch = folder, patch
        self.socket = folder / "run/podman/podman.sock"
        self.socket.parent.mkdir(parents=True)
        (folder / "bin").mkdir()
        for name in list(os.environ):
            if name.endswith("_VISIBLE_DEVICES") or name.startswith(("LAB_", "DOCKER_")):
                patch.delenv(name)
        patch.setenv("PATH", f"{folder}/bin")
        patch.setattr("lab.gpus.health.SYSTEM_PROGRAMS", str(folder))
        patch.setenv("LAB_CDI_DIRS", f"{folder}/cdi")
        patch.setenv("LAB_SYS_ROOT", f"{folder}/sys")
        patch.setenv("LAB_DEV_ROOT", f"{folder}/dev")
        patch.setenv("XDG_RUNTIME_DIR", f"{folder}/run")
        patch.setattr("lab.images.docker_cli.SOCKET", f"unix://{folder}/docker.sock")
        patch.setattr("lab.images.docker_cli.PODMAN_SOCKET", f"unix://{folder}/none.sock")
        patch.setattr("lab.gpus.nvidia.CONTAINER_MARKS", ())
        self.user(1234)

    def user(self, uid: int) -> None:
        self._patch.setattr(os, "geteuid", lambda: uid)

    def program(self, name: str, does: str = "") -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{does}\n")
        path.chmod(0o755)

    def engine(self, **said):
        """An engine that answers at `real.sock`; where it is reached is a link's or a setting's to say."""
        from tests.engines.docker.test_client import an_engine

        return an_engine(self.folder / "real.sock", **said)

    def doctor(self):
        """-> (exit code, state of each finding, what was printed)."""
        from lab.cli.main import cli
        from lab.errors import LabError

        done = CliRunner().invoke(cli, ["doctor", "--json"])
        if done.exception and not isinstance(done.exception, (LabError, SystemExit)):
            raise done.exception
        code = getattr(done.exception, "exit_code", done.exit_code)
        rows = json.loads(done.stdout)
        text = f"{done.output}\n{done.exception or ''}"
        return code, {row["what"]: (row["state"], row["fix"]) for row in rows}, text


@pytest.mark.parametrize("dead", [False, True])
def test_a_podman_of_ones_own_is_started_without_root(ill, dead):
    """Also where the socket is there and no engine behind it."""
    if dead:
        dead_socket(ill.socket)
    ill.program("podman")
    code, found, text = ill.doctor()
    assert code == 0 and found["engine"][1] == "systemctl --user start podman.socket", text
    ill.socket.unlink(missing_ok=True)
    ill.socket.symlink_to(ill.folder / "real.sock")
    with ill.engine(**PODMAN, Rootless=True):
        assert ill.doctor()[1]["engine"] == ("ok", None)


def test_the_systems_docker_is_started_by_root(ill):
    ill._patch.setenv("DOCKER_HOST", f"unix://{ill.folder}/docker.sock")
    ill.program("dockerd")
    assert ill.doctor()[1]["engine"] == ("-", "sudo systemctl start docker")
    ill.user(0)
    assert ill.doctor()[1]["engine"] == ("-", "systemctl start docker")


def test_the_engine_that_died_is_started_and_not_another_that_would_stay_behind_it(ill):
    dead_socket(ill.folder / "docker.sock")
    ill.program("podman")
    ill.program("dockerd")
    _, found, _ = ill.doctor()
    assert found["engine"] == ("warn", "sudo systemctl start docker")


def test_without_an_engines_program_there_is_nothing_to_start(ill):
    code, found, _ = ill.doctor()
    assert (code, found["engine"]) == (0, ("-", None))


@pytest.mark.parametrize("running", [0, 2])
def test_nvidias_toolkit_is_registered_and_docker_restarted_unless_that_ends_containers(ill, running):
    ill.user(0)
    ill._patch.setenv("DOCKER_HOST", f"unix://{ill.folder}/real.sock")
    ill.program("nvidia-smi", f"echo '{ONE_GPU}'")
    ill.program("nvidia-ctk", VERSION)
    with ill.engine(**DOCKER, ContainersRunning=running, Runtimes={"runc": {}}):
        _, before, _ = ill.doctor()
        ill.program("nvidia-container-runtime-hook")  # as dockerd finds it after its restart
        code, after, text = ill.doctor()
    then = "then restart Docker once its containers have ended" if running else "systemctl restart docker"
    assert before["gpu access"] == ("warn", f"nvidia-ctk runtime configure --runtime=docker; {then}")
    assert (code, after["gpu access"]) == (0, ("ok", None)), text
    assert "by NVIDIA's container toolkit (NVIDIA Container Toolkit CLI version 1.17.4)" in text


def test_podman_gets_a_cdi_specification_in_place_of_a_broken_one(ill):
    file = ill.folder / "cdi/nvidia.yaml"
    file.parent.mkdir()
    file.write_text("kind: [")
    ill._patch.setattr("lab.engines.docker.health.CDI_FILE", str(file))
    ill._patch.setenv("DOCKER_HOST", f"unix://{ill.folder}/real.sock")
    ill.program("nvidia-smi", f"echo '{ONE_GPU}'")
    ill.program("nvidia-ctk", VERSION)
    with ill.engine(**PODMAN):
        _, before, _ = ill.doctor()
        assert before["gpu access"] == ("warn", f"sudo nvidia-ctk cdi generate --output={file}")
        assert before["cdi"][0] == "warn"
        file.write_text(SPEC)
        code, after, text = ill.doctor()
    assert (code, after["gpu access"]) == (0, ("ok", None)) and "cdi" not in after, text


def test_nvidias_driver_is_loaded_or_installed_where_a_card_has_none(ill):
    card = ill.folder / "sys/bus/pci/devices/0000:3b:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    ill.program("nvidia-smi", 'echo "couldn\'t communicate with the NVIDIA driver"; exit 9')
    code, found, text = ill.doctor()
    assert (code, found["gpu"]) == (1, ("bad", "sudo modprobe nvidia, or install the driver")), text


def test_the_group_of_a_socket_or_node_is_named_for_who_is_not_in_it(tmp_path, monkeypatch):
    node = tmp_path / "renderD128"
    node.touch()
    if os.getuid() == 0:
        os.chown(node, -1, 1)
    monkeypatch.setattr(os, "getgroups", list)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    fix = join_group_of(node)
    assert fix.startswith("sudo usermod -aG ") and fix.endswith("; then log in again")
    monkeypatch.setattr(os, "getgroups", lambda: [node.stat().st_gid])
    assert join_group_of(node) == join_group_of(tmp_path / "none") == ""
