"""`lab doctor` names what is here with its verdict, and fails only where nothing can run."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys

import pytest

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
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "s"))
    dead.close()
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
