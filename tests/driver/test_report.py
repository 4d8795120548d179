"""A step writes down what it sees before its command begins; the driver holds that against the plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lab.core.gpu import Gpu, GpuProcess
from lab.core.manifest import ImageRecord, Neighbours, StepReport
from lab.core.run import REPORT, Run
from lab.core.step import Outcome, Status, Step
from lab.driver.comparable import checked
from lab.driver.report import busy_sentences, read_report, seen_env
from lab.workload import launch
from tests.core.test_manifest import a_manifest

PROGRAM = Path(launch.__file__)


def made_run(root: Path, steps: list[Step]) -> Run:
    return Run.create(root, a_manifest(*steps))


def launched(tmp_path: Path, argv: list[str], **env: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    path = tmp_path / "report.json"
    words = [sys.executable, "-I", "-S", str(PROGRAM), str(path), "--", *argv]
    done = subprocess.run(
        words, env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, check=False
    )
    return done, json.loads(path.read_text())


def test_the_command_runs_with_its_environment_exit_code_and_pid(tmp_path):
    done, report = launched(
        tmp_path, ["sh", "-c", "echo $FOO; exit 7"], FOO="x", LAB_ATTEMPT="3", LAB_HOST="node7"
    )
    assert (done.returncode, done.stdout) == (7, "x\n")
    assert (report["attempt"], report["node"], report["gpus"]) == (3, "node7", [])
    assert report["cpus"] == len(os.sched_getaffinity(0))


def test_variables_of_gpu_work_and_those_of_the_step_are_reported_without_secrets_and_labs_own(tmp_path):
    env = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "3",
        "FOO": "bar",
        "OTHER": "1",
        "NCCL_TOKEN": "s",
        "HOME": "/x",
    }
    _, report = launched(tmp_path, ["true"], **env, LAB_REPORTED="FOO", LAB_STEP="r/s", LAB_IMAGE="cpu")
    assert report["env"] == {"FOO": "bar", "LAB_IMAGE": "cpu", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "3"}


@pytest.mark.parametrize("argv, code", [(["no-such-program"], 127), (["/etc/passwd"], 126)])
def test_a_command_that_cannot_start_says_so(tmp_path, argv, code):
    done, _ = launched(tmp_path, argv)
    assert done.returncode == code and f"cannot start {argv[0]}" in done.stderr


def test_a_report_that_cannot_be_written_keeps_no_step_from_running(tmp_path):
    words = [sys.executable, "-I", "-S", str(PROGRAM), "/nonexistent/report", "--", "echo", "ran"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "ran\n" and "report cannot be written" in done.stderr


@pytest.mark.parametrize(
    "lines, files, expected",
    [
        (
            "0::/job",
            {"job/memory.max": "1024", "job/cpu.max": "150000 100000", "pids.max": "max"},
            (1024, 1.5, None),
        ),
        ("0::/", {"memory.max": "max", "cpu.max": "max 100000", "pids.max": "64"}, (None, None, 64)),
        (
            "5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n2:pids:/docker/x",
            {
                "memory/docker/x/memory.limit_in_bytes": "9223372036854771712",
                "cpu/cpu.cfs_quota_us": "200000",
                "pids/docker/x/pids.max": "16384",
            },
            (None, 2.0, 16384),
        ),
    ],
)
def test_limits_are_those_of_the_control_group_of_both_versions(monkeypatch, lines, files, expected):
    texts = {"/proc/self/cgroup": lines, **{f"/sys/fs/cgroup/{name}": text for name, text in files.items()}}
    monkeypatch.setattr(launch, "text", lambda path: texts.get(path, ""))
    limits = launch.limits()
    assert (limits["memory_limit_bytes"], limits["cpu_limit"], limits["pids_limit"]) == expected


# What the driver makes of it

UUID = "GPU-aaaa"
GPU = Gpu(vendor="nvidia", index=0, uuid=UUID, driver="570.1")


def run_with(tmp_path, report: dict, *, summary: dict | None = None, env: dict[str, str] | None = None):
    step = Step(name="one", argv=("true",), folder="one", env=env or {})
    run = made_run(tmp_path / "run", [step])
    run.begin(step)
    (run.folder(step) / REPORT).write_text(json.dumps(report))
    if summary is not None:
        (run.folder(step) / "gpu_clocks.json").write_text(json.dumps(summary))
    return run, step


def test_a_report_that_agrees_with_the_plan_has_no_difference_and_leaves_no_file(tmp_path):
    seen = {
        "env": {"NCCL_DEBUG": "INFO", "PYTHONPATH": "/run/.lab/copy:/mine"},
        "gpus": [{"vendor": "nvidia", "index": 0, "uuid": UUID, "driver": "570.1"}],
    }
    run, step = run_with(tmp_path, seen, env={"NCCL_DEBUG": "INFO", "PYTHONPATH": "/mine"})
    report = read_report(run, step, [GPU])
    assert report.differences == () and not (run.folder(step) / REPORT).exists()


def test_each_difference_from_the_plan_is_a_sentence(tmp_path):
    seen = {"env": {"NCCL_DEBUG": "WARN"}, "gpus": [{"vendor": "nvidia", "index": 0, "uuid": "GPU-bbbb"}]}
    run, step = run_with(tmp_path, seen, env={"NCCL_DEBUG": "INFO"})
    run.manifest.env = {"OMP_NUM_THREADS": "3"}
    assert read_report(run, step, [GPU]).differences == (
        f"did not see GPU 0 ({UUID}), which it was given",
        "had NCCL_DEBUG=WARN, the plan sets INFO",
        "1 planned variable did not reach it: OMP_NUM_THREADS",
    )
    run, step = run_with(
        tmp_path / "b", {"gpus": [{"vendor": "nvidia", "index": 0, "uuid": UUID, "driver": "9"}]}
    )
    assert read_report(run, step, [GPU]).differences == ("saw driver 9 on GPU 0, the plan names 570.1",)
    run, step = run_with(tmp_path / "c", {"gpus": None})
    assert read_report(run, step, [GPU]).differences == ("could not say which GPUs it had",)


def test_a_step_in_another_image_than_its_run_has_failed(tmp_path):
    run, step = run_with(tmp_path, {"image_id": "sha256:new"})
    run.manifest.image = ImageRecord(name="cpu", ref="r", id="sha256:old")
    report = read_report(run, step, [])
    outcome = checked(run, step, Outcome(status=Status.ok), report)
    assert outcome.status is Status.failed and "another image" in outcome.reason
    assert "ran in the image sha256:new" in report.differences[0]


def test_where_only_nodes_know_the_image_the_first_step_says_which_it_is(tmp_path):
    steps = [Step(name=name, argv=("true",), folder=name) for name in ("one", "two")]
    run = made_run(tmp_path / "run", steps)
    run.manifest.image = ImageRecord(name="cpu", ref="r")
    run.manifest.steps[0].report = StepReport(image_id="sha256:first")
    other = StepReport(image_id="sha256:second")
    assert checked(run, steps[1], Outcome(status=Status.ok), other).status is Status.failed
    assert checked(run, steps[1], Outcome(status=Status.ok), StepReport(image_id="sha256:first")).ok


def test_the_manifests_environment_is_what_all_steps_had_without_what_their_room_varies(tmp_path):
    steps = [Step(name=n, argv=("true",), folder=n, env={"NCCL_NTHREADS": n, "FOO": "1"}) for n in ("a", "b")]
    run = made_run(tmp_path / "run", steps)
    run.manifest.env = {"NCCL_DEBUG": "INFO", "CUDA_X": "lost", "FOO": "1"}
    for record in run.manifest.steps:
        seen = {"NCCL_DEBUG": "INFO", "NCCL_NTHREADS": record.step.name, "LAB_IMAGE": "cpu", "FOO": "1"}
        record.report = StepReport(env=seen)
    assert seen_env(run.manifest) == {"NCCL_DEBUG": "INFO", "LAB_IMAGE": "cpu", "FOO": "1"}


def test_a_requeue_counts_as_an_attempt(tmp_path):
    run, step = run_with(tmp_path, {"attempt": 2})
    run.finish(step, Outcome(status=Status.ok), read_report(run, step, []))
    assert run.record(step).attempts == 2 and run.record(step).report.attempt == 2


def test_a_busy_neighbour_reaches_the_verdict(tmp_path):
    other = GpuProcess(gpu=UUID, pid=4242, name="python3", mem_bytes=61234 << 20)
    around = msgspec.to_builtins(Neighbours(during=(other,)))
    run, step = run_with(tmp_path, {}, summary={"neighbours": around, "samples": 3})
    run.manifest.gpus = (GPU,)
    assert busy_sentences(run.manifest) == []
    run.finish(step, Outcome(status=Status.ok), read_report(run, step, []))
    (sentence,) = busy_sentences(run.manifest)
    assert (
        "1 of 1 step shares a GPU" in sentence
        and "process 4242 (python3)" in sentence
        and "61,234 MiB" in sentence
    )
