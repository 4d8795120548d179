from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from lab.cli.main import main
from tests.command import lab, start
from tests.conftest import ROOT


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """The same in this process, in a folder of its own: a process takes half a second to begin."""
    monkeypatch.chdir(tmp_path)

    def run(*words, env=None):
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words)])
        return subprocess.CompletedProcess(words, ended.value.code, *capsys.readouterr())

    return run


def test_the_program_ends_with_the_code_of_its_command(tmp_path):
    assert lab("--help", cwd=tmp_path).returncode == 0
    done = lab("runs", "show", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "") and "not the folder of a run" in done.stderr


def test_the_rocm_plan_is_right_without_daemon_gpu_or_torch(tmp_path, here):
    done = here("run", "--image", "rocm70", "--dry-run", "--json", "sweep", "-c", "28,42")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["engine"], plan["gpus_resolved"], len(plan["gpus"]), len(plan["steps"])) == (
        "docker",
        False,
        8,
        4,
    )
    settings = {(s["labels"]["threads"], s["labels"]["channels"]) for s in plan["steps"]}
    assert settings == {(256, 28), (256, 42), (512, 28), (512, 42)}
    for step in plan["steps"]:
        t, c = str(step["labels"]["threads"]), str(step["labels"]["channels"])
        assert step["env"]["RCCL_THREADS_PER_BLOCK"] == t
        assert step["env"]["NCCL_MIN_NCHANNELS"] == step["env"]["NCCL_MAX_NCHANNELS"] == c
        assert step["env"]["HSA_ENABLE_SDMA"] == "0" and "NCCL_NTHREADS" not in step["env"]
        starts = step["starts"]
        assert (
            starts["image"] == "localhost/lab/rocm70"
            and starts["devices"][0] == "/dev/kfd:/dev/kfd:rwm"
            and len(starts["devices"]) == 9
        )
        assert starts["ipc_mode"] == "host" and "--nproc_per_node=8" in starts["command"]
        assert step["folder"] == f"{t}thread/nccl_{c}channels"
    assert not list(tmp_path.iterdir()), "a dry run leaves nothing behind"


def test_the_nixnan_plan_is_right_without_daemon_or_gpu(tmp_path, here):
    tool = tmp_path / "nixnan.so"
    tool.write_bytes(b"\x7fELF\x02\x01\x01" + b"\0" * 9 + b"\x03\x00\x3e\x00")  # of a library for x86-64
    words = ("run", "--image", "cuda", "--dry-run", "--json", "nixnan", "baseline")
    done = here(*words, env={"NIXNAN_SO": str(tool)})
    assert done.returncode == 0, done.stderr
    (step,) = json.loads(done.stdout)["steps"]
    starts = step["starts"]
    assert step["tools"] == ["nixnan"] and step["num_gpus"] == 1 and "--no-hooks" in step["argv"]
    assert starts["env"]["CUDA_INJECTION64_PATH"] == "/opt/lab/nixnan.so"
    assert {"source": str(tool), "target": "/opt/lab/nixnan.so", "read_only": True} in starts["mounts"]
    assert starts["device_requests"][0]["device_ids"] == ["<uuid of GPU 0>"]
    assert starts["network_mode"] == "none" and starts["cap_add"] == []


def test_a_dry_run_here_shows_the_very_command(here):
    done = here("run", "--dry-run", "--gpus", "none", "sweep", "-c", "28", "-t", "256", "--ranks", "2")
    assert (
        done.returncode == 0
        and f"{sys.executable} -m torch.distributed.run --nproc_per_node=2" in done.stdout
    )


@pytest.mark.parametrize(
    "words, code, complaint",
    [
        (["run", "--image", "rocm71", "sweep"], 2, "unknown image 'rocm71'"),
        (["run"], 2, "name an experiment"),
        (["run", "--gpus", "0", "sweep"], 2, "zero GPUs"),
        (["run", "--gpus", "4-7", "sweep"], 7, "matches 4"),
        (["run", "--image", "cpu", "--gpus", "2", "sweep"], 2, "CPU-only"),
        (["run", "--image", "cuda", "sweep"], 7, "none was found"),
        (["run", "sweep", "-c", "28,x"], 2, "'x' in '28,x' is not an integer"),
        (["run", "sweep", "-c", "28,28"], 2, "twice"),
        (["run", "sweep", "-t=-1"], 2, "not an integer from 0 on"),
        (["run", "sweep", "--ranks", "0"], 2, "ranks"),
        (["run", "sweep", "-f", "missing.yaml"], 4, "missing.yaml"),
        (["run", "sweep", "--override", "model.layers=3"], 3, "unknown key 'layers'"),
        (["run", "--image", "cpu", "--dry-run", "nixnan", "baseline"], 2, "needs an NVIDIA GPU"),
        (["run", "--dry-run", "nan", "basline"], 2, "no experiment 'basline'"),
        (["run", "--engine", "docker", "sweep"], 2, "needs an image"),
        (["run", "--resume", "nowhere"], 4, "not the folder of a run"),
        (["run", "--resume", "nowhere", "sweep"], 2, "drop 'sweep'"),
        (["run", "--sbatch", "mem=64G", "sweep"], 2, "an option of the slurm engine"),
        (["run", "--engine", "recorded", "sweep"], 2, "is not one of"),
        (["run", "nan", "baseline", "--nonsense"], 2, "No such option"),
    ],
)
def test_bad_input_is_a_clear_error_with_its_exit_code(words, code, complaint, tmp_path, here):
    done = here(*words)
    assert done.returncode == code, done.stderr
    assert complaint in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "experiments").exists()


def test_an_unwritable_output_folder_is_named(tmp_path, here):
    (tmp_path / "file").write_text("")
    done = here("run", "-o", "file/run", "sweep", "-c", "28")
    assert done.returncode == 9 and "a file exists where a folder is needed" in done.stderr


def test_a_planted_secret_is_in_no_dry_run(here):
    done = here(
        "run",
        "--dry-run",
        "--json",
        "--image",
        "cuda",
        "nan",
        "baseline",
        "--prompt",
        "my hf_planted_secret_1234",
        env={"HF_TOKEN": "hf_planted_secret_1234"},
    )
    assert done.returncode == 0 and "hf_planted" not in done.stdout + done.stderr


def test_runs_and_images_list_as_json(here):
    assert [i["name"] for i in json.loads(here("images", "list", "--json").stdout)] == [
        "cpu",
        "cuda",
        "pascal",
        "rocm70",
    ]
    assert json.loads(here("runs", "list", "--json").stdout) == []
    assert any(row["what"] == "python" for row in json.loads(here("doctor", "--json").stdout))


def start_sweep(tmp_path, *words):
    return start("run --gpus none -o run sweep", *words, cwd=tmp_path)


def read_until(stream, text):
    seen = []
    for line in stream:
        seen.append(line)
        if text in line:
            return "".join(seen)
    raise AssertionError(f"{text!r} never came:\n{''.join(seen)}")


@pytest.mark.torch
def test_ctrl_c_ends_the_tree_says_how_to_go_on_and_resume_does_only_the_rest(tmp_path):
    driver = start_sweep(tmp_path, "-c", "28,42", "-t", "256", "--ranks", "2", "--order", "given")
    read_until(driver.stderr, "256t_42ch starts")
    time.sleep(1.0)
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=900)
    assert driver.returncode == 130 and "lab run --resume run" in err
    states = {
        s["step"]["name"]: s for s in json.loads((tmp_path / "run" / "manifest.json").read_text())["steps"]
    }
    assert states["256t_28ch"]["outcome"]["status"] == "ok"
    assert states["256t_42ch"]["outcome"]["status"] == "interrupted"
    done = lab("run", "--resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 steps to do" in done.stderr and "256t_28ch starts" not in done.stderr
    states = json.loads((tmp_path / "run" / "manifest.json").read_text())["steps"]
    assert [s["attempts"] for s in states] == [1, 2] and all(s["outcome"]["status"] == "ok" for s in states)
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


@pytest.mark.torch
def test_hostile_paths_work_from_run_to_report(tmp_path):
    folder = tmp_path / "a 'quoted' \"näme\"\nwith newline; $(touch pwned)"
    folder.mkdir()
    done = lab(
        "run", "-o", "the run", "--gpus", "none", "sweep", "-c", "28", "-t", "256", "--ranks", "1", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "the run" / "report.html").exists() and not (folder / "pwned").exists()


@pytest.mark.torch
def test_a_step_that_dies_is_a_row_and_the_others_are_measured(tmp_path):
    """Rank 1 of the first setting is killed as the kernel's out-of-memory killer would."""
    driver = start_sweep(tmp_path, "-c", "28,42", "-t", "256", "--ranks", "2", "--order", "given")
    read_until(driver.stderr, "256t_28ch starts")
    workload = b"lab.rooms.sweep.workload"
    ranks, end = [], time.monotonic() + 300
    while not ranks:
        assert time.monotonic() < end and driver.poll() is None, "rank 1 was never seen"
        time.sleep(0.02)
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        ranks = [pid for pid in pids if _is_rank(pid, 1, workload, tmp_path)]
    os.kill(ranks[0], signal.SIGKILL)
    _, err = driver.communicate(timeout=900)
    assert driver.returncode == 1 and "1 of 2 steps did not succeed" in err and "SIGKILL" in err
    assert (tmp_path / "run" / "report.html").exists()
    assert "256thread" in err or "256t_28ch" in err
    rows = (tmp_path / "run" / "tables" / "configs.csv").read_text().splitlines()
    assert len(rows) == 3 and any("failed" in row for row in rows) and any(",ok," in row for row in rows)
    assert "SUCCESS" in next((tmp_path / "run").glob("*summary*")).read_text()


def _is_rank(pid: int, rank: int, workload: bytes, folder) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as a, open(f"/proc/{pid}/environ", "rb") as b:
            return (
                workload in a.read()
                and f"\0RANK={rank}\0".encode() in b.read()
                and os.readlink(f"/proc/{pid}/cwd").startswith(str(folder))
            )
    except OSError:
        return False


@pytest.mark.torch
def test_jobs_run_side_by_side_and_skip_existing_adds_only_what_is_new(tmp_path):
    common = ("run", "--gpus", "none", "--analysis", "none", "-o", "run")
    done = lab(*common, "--jobs", "2", "sweep", "-c", "28,42", "-t", "256", "--ranks", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    starts = [line for line in done.stderr.splitlines() if " starts " in line or line.startswith("✓")]
    assert " starts " in starts[0] and " starts " in starts[1]
    again = lab(*common, "sweep", "-s", "-c", "28,42,56", "-t", "256", "--ranks", "1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "256t_56ch starts (1 of 1)" in again.stderr
    steps = json.loads((tmp_path / "run" / "manifest.json").read_text())["steps"]
    assert sorted((s["step"]["name"], s["attempts"]) for s in steps) == [
        ("256t_28ch", 1),
        ("256t_42ch", 1),
        ("256t_56ch", 1),
    ]


@pytest.mark.data
def test_a_recorded_sweep_is_analysed_without_touching_it(tmp_path, shared_data):
    """One of its settings, with all ranks: tests of the room look at the whole of it."""
    recorded, setting = tmp_path / "recorded/sweep_h200", "512thread/nccl_28channels"
    shutil.copytree(shared_data / "sweep_h200" / setting, recorded / setting)
    before = sorted((p, p.stat().st_mtime_ns) for p in recorded.rglob("*"))
    done = lab("analyze", recorded, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = tmp_path / "experiments" / "sweep_h200_analysis" / "report.html"
    assert page.exists() and "report: experiments/sweep_h200_analysis/report.html" in done.stdout
    assert before == sorted((p, p.stat().st_mtime_ns) for p in recorded.rglob("*"))


@pytest.mark.data
def test_a_missing_rank_and_a_cut_trace_are_rows_and_an_exit_code_and_the_rest_is_analysed(
    tmp_path, shared_data
):
    for setting in ("256thread/nccl_28channels", "256thread/nccl_42channels", "512thread/nccl_28channels"):
        shutil.copytree(shared_data / "sweep_h200" / setting, tmp_path / "s" / setting)
    shutil.rmtree(tmp_path / "s/256thread/nccl_28channels/torch_profiler/rank3")
    (trace,) = (tmp_path / "s/256thread/nccl_42channels/torch_profiler/rank5").iterdir()
    trace.write_bytes(trace.read_bytes()[:100_000])
    done = lab("analyze", "s", cwd=tmp_path)
    assert (
        done.returncode == 1 and "1 of 8 ranks" in done.stderr and "512 threads, 28 channels" in done.stdout
    )
    problems = (tmp_path / "experiments/s_analysis/tables/problems.csv").read_text()
    assert (
        "256thread/nccl_42channels/torch_profiler/rank5/trace_step7.json.gz" in problems
        and "truncated" in problems
    )
    assert str(tmp_path) not in problems


def readme_commands() -> list[str]:
    """The `$ lab` lines of the README's blocks, in order."""
    blocks = (ROOT / "README.md").read_text().split("```")[1::2]
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ lab ")]


@pytest.mark.torch
def test_the_readmes_commands_run_as_they_stand(tmp_path):
    """In order, in one folder, on the examples' recordings; what computes is asked for its plan only."""
    shutil.copy(ROOT / "examples/read_trace/step.json.gz", tmp_path)
    for name in ("base", "head"):
        shutil.copytree(ROOT / "examples/compare_traces" / name, tmp_path / name)
    commands = [command for command in readme_commands() if "experiments/" not in command]
    assert len(commands) >= 7
    for command in commands:
        command = command.replace("lab run", "lab run --dry-run")
        done = lab(*shlex.split(command)[1:], cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.docker
def test_the_readmes_setup_says_what_it_would_bring(tmp_path):
    assert "`lab setup`" in (ROOT / "README.md").read_text()
    done = lab("setup", "-n", cwd=tmp_path)  # without -n it pulls or builds
    assert done.returncode == 0 and "next: lab run --image" in done.stdout, done.stderr
