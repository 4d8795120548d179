"""The slurm engine against a real Slurm of two nodes (scripts/slurm-node.sh starts one on this machine)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from datetime import datetime
from functools import partial

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.options import SlurmOptions
from lab.core.provenance import lab_with_content
from lab.core.run import Run
from lab.core.snapshot import package_folder, take_snapshot
from lab.core.step import Outcome, Status, Step
from lab.core.stop import Stop
from lab.driver.detached import follow_logs
from lab.driver.drive import finish_run
from lab.driver.execute import StepRunner
from lab.engines.slurm import queue
from lab.engines.slurm.engine import SlurmEngine
from lab.engines.slurm.follow import cancel_run
from lab.engines.slurm.records import read_jobs
from lab.engines.slurm.submission import alike, setup, step_parameters
from lab.engines.slurm.task import on_this_node
from lab.errors import EngineError, GpuError, UsageError
from lab.images import spec as images
from lab.recordings.gpu_state import read_state
from tests.command import until
from tests.core.test_manifest import a_manifest
from tests.gpus.test_amd import Tree


def states_of(run) -> list[str]:
    return [job.state for job in queue.listed(read_jobs(run.root).of_step.values()).values()]


def python(name: str, code: str, **fields) -> Step:
    return Step(name=name, argv=("python", "-c", textwrap.dedent(code)), folder=name, **fields)


def a_run(root, *steps: Step) -> Run:
    return Run.create(root, a_manifest(*steps))


class Ears:
    """A watcher that remembers."""

    def __init__(self):
        self.lines: list[str] = []
        self.ended: list[str] = []

    def begin(self, step):
        pass

    def line(self, step, line):
        self.lines.append(f"{step.name}: {line}")

    def end(self, step, outcome):
        self.ended.append(step.name)


def execute(
    run: Run, *, jobs: int = 2, ask: SlurmOptions | None = None, stop: Stop | None = None, say=None
) -> Ears:
    ears, engine = Ears(), SlurmEngine(ask or SlurmOptions())
    engine.say = say or engine.say
    runner = StepRunner(run, engine, [ears], stop or Stop())
    runner.execute(run.pending(), (), jobs=jobs)
    return ears


def outcome_of(run: Run, name: str) -> Outcome:
    record = next(record for record in Run.open(run.root).manifest.steps if record.step.name == name)
    assert record.outcome is not None
    return record.outcome


# Without a Slurm.


def test_a_login_node_without_slurm_is_told_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EngineError, match="not a Slurm login node"):
        queue.living(["1"])


def test_an_image_needs_the_sites_container_runtime_and_the_other_way_round():
    with pytest.raises(UsageError, match="--container docker runs an image"):
        SlurmEngine(SlurmOptions(container="docker"))
    with pytest.raises(UsageError, match="container runtime"):
        SlurmEngine(SlurmOptions(), image=images.load("cpu"))


def test_over_nodes_torchrun_gets_the_static_rendezvous_of_its_node():
    step = Step(
        name="s",
        nodes=4,
        argv=("python", "--node_rank={node_rank}", "{master_addr}:{master_port}"),
        expects=("x",),
    )
    env = {"SLURM_NODEID": "3", "SLURM_JOB_ID": "123", "LAB_MASTER_ADDR": "10.0.0.1"}
    mine = on_this_node(step, env)
    assert mine.argv == ("python", "--node_rank=3", "10.0.0.1:20123")
    assert mine.expects == ()  # the driver asks for the files when all nodes have ended


def in_job(lines: list[str], **env: str) -> str:
    """Which lab a Python of the job's script finds."""
    script = "\n".join([*lines, f"{sys.executable} -c 'import lab; print(lab.__file__)'"])
    return subprocess.run(
        ["bash", "-c", script],
        cwd="/",
        env={**os.environ, **env},
        text=True,
        capture_output=True,
        check=True,
    ).stdout.strip()


def test_a_job_imports_the_runs_copy_of_lab_and_without_one_the_tree_of_its_driver(tmp_path):
    root, ours = tmp_path / "it's a run", lab_with_content()
    lines = setup(root)
    assert in_job(lines, PYTHONPATH="") == str(package_folder() / "__init__.py")
    take_snapshot(root, ours)
    assert in_job(setup(root), PYTHONPATH="/nowhere").startswith(f"{root}/.lab/{str(ours.sha256)[:16]}/lab/")


def test_a_job_that_finds_another_lab_ends_in_words(tmp_path):
    take_snapshot(tmp_path, lab_with_content())
    lines = setup(tmp_path)
    (tmp_path / ".lab").rename(tmp_path / "gone")  # as on a node that does not see the run folder
    old = tmp_path / "old" / "lab"
    shutil.copytree(tmp_path / "gone" / lines[1][-64:][:16] / "lab", old)
    (old / "more.py").write_text("")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        in_job(lines, PYTHONPATH=str(old.parent))
    assert "imports another lab than the one that its run names" in caught.value.stderr


@pytest.mark.parametrize("extra, said", [("=x", "KEY=VALUE"), ("--time=5", "--time MINUTES")])
def test_extra_options_must_be_pairs_without_the_time_limit(extra, said):
    with pytest.raises(UsageError, match=said):
        step_parameters(SlurmOptions(extra=(extra,)), [Step(name="s", argv=("x",))], jobs=1)


def test_options_of_sbatch_replace_what_lab_asks_for_itself():
    steps = [Step(name="s", argv=("x",), num_gpus=2, timeout_s=600)]
    plain = step_parameters(SlurmOptions(), steps, jobs=1)
    assert plain["slurm_time"] == 20 and plain["slurm_additional_parameters"] == {"gres": "gpu:2"}
    options = SlurmOptions(time_min=90, extra=("gres=gpu:h100:2", "--partition=p", "requeue"))
    asked = step_parameters(options, steps, jobs=1)
    assert asked["slurm_time"] == 90
    assert asked["slurm_additional_parameters"] == {"gres": "gpu:h100:2", "partition": "p", "requeue": True}


# With one.


@pytest.mark.slurm
def test_steps_become_one_array_and_their_logs_come_live(tmp_path):
    steps = [
        python(f"s{n}", f"print('hello {n}'); open('s{n}/out', 'w').write('x')", expects=(f"s{n}/out",))
        for n in range(6)
    ]
    run = a_run(tmp_path / "run", *steps)
    ears = execute(run, jobs=4)
    assert {record.outcome.status for record in run.manifest.steps} == {Status.ok}
    assert sorted(ears.lines) == [f"s{n}: hello {n}" for n in range(6)]
    assert len({job.split("_")[0] for job in read_jobs(run.root).of_step.values()}) == 1
    assert run.pending() == []


@pytest.mark.slurm
def test_a_job_measures_the_copy_of_its_run_and_not_what_was_edited_meanwhile(tmp_path):
    step = Step(name="s", argv=("python", "-m", "lab.core.content"), folder="s")
    ours = msgspec.structs.replace(lab_with_content(), used="copy")
    run = Run.create(tmp_path / "run", msgspec.structs.replace(a_manifest(step), lab=ours))
    take_snapshot(run.root, ours)
    ears = execute(run)
    assert run.manifest.steps[0].outcome.ok and run.manifest.steps[0].lab_sha256 == ours.sha256
    assert any(str(ours.sha256) in line for line in ears.lines)
    assert "slurm" in str(SlurmEngine(SlurmOptions()).version())


@pytest.mark.slurm
def test_a_failing_task_tells_why_and_the_others_go_on(tmp_path):
    run = a_run(
        tmp_path / "run",
        python("bad", "raise ValueError('seven')"),
        python("good", "pass"),
        python("forgot", "pass", expects=("forgot/x",)),
    )
    execute(run)
    assert (outcome_of(run, "bad").status, "ValueError: seven" in outcome_of(run, "bad").reason) == (
        Status.failed,
        True,
    )
    assert outcome_of(run, "good").ok
    assert "left no forgot/x" in outcome_of(run, "forgot").reason
    assert [step.name for step in run.pending()] == ["bad", "forgot"]


@pytest.mark.slurm
def test_a_step_over_two_nodes_has_a_task_and_a_log_on_each(tmp_path):
    code = "import os, sys; print(os.environ['SLURMD_NODENAME'], *sys.argv[1:])"
    step = Step(
        name="wide",
        nodes=2,
        folder="wide",
        argv=("python", "-c", code, "{node_rank}", "{master_addr}", "{master_port}"),
    )
    run = a_run(tmp_path / "run", step)
    execute(run)
    assert outcome_of(run, "wide").ok
    first, second = (
        path.read_text().split() for path in (run.log(step), run.folder(step) / "run_output.node1.log")
    )
    assert (first[0], first[1], second[0], second[1]) == ("n1", "0", "n2", "1")
    assert first[2:] == second[2:] and first[2] == "127.0.0.1"


@pytest.mark.slurm
def test_the_gpus_of_both_nodes_are_sampled_beside_the_step(tmp_path, monkeypatch):
    """The tests' Slurm gives out pretended GPUs; here AMD's sensors are pretended for them too."""
    tree = Tree(tmp_path)
    for number, minor in enumerate((128, 129), start=1):
        tree.node(number, drm_render_minor=minor, gfx_target_version=90402, unique_id=number)
        tree.write(f"class/drm/renderD{minor}/device/hwmon/hwmon1/freq1_input", f"{minor * 10**7}\n")
        tree.device_node(minor)  # without it a container's /sys shows a GPU that it was not given
    for name, value in tree.env.items():
        monkeypatch.setenv(name, value)
    sampled = """
        import pathlib, time
        def lines(): return [p.read_text().count("\\n") for p in pathlib.Path("wide").glob("gpu_clocks*.csv")]
        while len(lines()) < 2 or min(lines()) < 3: time.sleep(0.1)
    """
    step = python("wide", sampled, nodes=2, num_gpus=2)
    run = a_run(tmp_path / "run", step)
    runner = StepRunner(run, SlurmEngine(SlurmOptions(), vendor="amd"), [], Stop())
    runner.execute(
        run.pending(), [Gpu(vendor="amd", index=n, uuid=f"placeholder{n}") for n in (0, 1)], jobs=1
    )
    assert outcome_of(run, "wide").ok
    state = read_state(run.folder(step))
    assert sorted(set(state.place.tolist())) == [0, 1, 2, 3] and state.reasons == ()
    assert set(state.values["sm_clock_mhz"].tolist()) == {1280, 1290}
    outcome = outcome_of(run, "wide")
    assert state.unix_ns.min() / 1e9 > datetime.fromisoformat(outcome.started_utc).timestamp() - 60


@pytest.mark.slurm
def test_one_bad_node_is_named(tmp_path):
    step = Step(
        name="wide",
        nodes=2,
        folder="wide",
        argv=("python", "-c", "import sys; sys.exit(int(sys.argv[1]))", "{node_rank}"),
    )
    run = a_run(tmp_path / "run", step)
    execute(run)
    assert "exit code 1" in outcome_of(run, "wide").reason
    assert "node n2" in outcome_of(run, "wide").reason


@pytest.mark.slurm
def test_ctrl_c_cancels_the_jobs_and_lets_the_steps_clean_up(tmp_path):
    code = """
        import pathlib, time
        print("up", flush=True)
        try: time.sleep(300)
        except KeyboardInterrupt: pathlib.Path("a/cleaned").write_text("yes")
    """
    run = a_run(tmp_path / "run", python("a", code), python("never", "pass"))
    stop = Stop()
    done = threading.Thread(target=execute, args=(run,), kwargs={"jobs": 1, "stop": stop})
    done.start()
    until(
        lambda: (
            (run.root / "a" / "run_output.log").exists()
            and "up" in (run.root / "a" / "run_output.log").read_text()
        )
    )
    stop.set()
    done.join(600)
    assert not done.is_alive()
    assert outcome_of(run, "a").status is Status.interrupted
    assert outcome_of(run, "never").status is Status.interrupted
    assert (run.root / "a" / "cleaned").read_text() == "yes"
    assert len(run.pending()) == 2


@pytest.mark.slurm
def test_a_killed_driver_leaves_jobs_that_the_next_one_takes_up(tmp_path):
    run = a_run(tmp_path / "run", python("a", "import time; time.sleep(3); print('done')"))
    program = (
        "from pathlib import Path; from tests.engines.slurm.test_engine import *; "
        f"execute(Run.open(Path({str(run.root)!r})))"
    )
    driver = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: (run.root / ".slurm" / "jobs.json").exists())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    again = Run.open(run.root)
    ears = Ears()
    runner = StepRunner(again, SlurmEngine(SlurmOptions()), [ears], Stop())
    runner.take_up()
    assert outcome_of(again, "a").ok
    assert "a: done" in ears.lines


@pytest.mark.slurm
def test_a_run_left_to_slurm_is_followed_to_the_end_of_its_analysis_and_stopped_with_it(tmp_path):
    run = a_run(tmp_path / "run", python("a", "import time; print('begun', flush=True); time.sleep(4)"))
    run.manifest.engine, engine = "slurm", SlurmEngine(SlurmOptions())
    engine.leave(run, run.pending(), jobs=1, finish=partial(finish_run, str(run.root), "none"))
    assert "begun" in list(follow_logs(run, "a", follow=True))
    assert outcome_of(Run.open(run.root), "a").ok
    held = a_run(tmp_path / "held", python("a", "pass"))
    SlurmEngine(SlurmOptions(extra=("--hold",))).leave(held, held.pending(), jobs=1, finish=print)
    assert len(cancel_run(held.root)) == 2 and not SlurmEngine.has_jobs(held)


@pytest.mark.slurm
def test_a_job_cancelled_from_outside_before_it_began_is_interrupted_in_slurms_words(tmp_path):
    run = a_run(tmp_path / "run", python("a", "pass"))
    ask = SlurmOptions(extra=("--hold",))
    run.begin(run.manifest.steps[0].step)
    engine = SlurmEngine(ask)
    engine.submit(run, [run.manifest.steps[0].step], jobs=1)
    assert len(cancel_run(run.root)) == 1
    assert cancel_run(run.root) == []
    lost = engine.lost(run, run.manifest.steps[0].step)
    assert lost.status is Status.interrupted
    assert "CANCELLED" in lost.reason


@pytest.mark.slurm
@pytest.mark.root
@pytest.mark.usefixtures("cluster_alone")
def test_a_drained_cluster_only_makes_a_run_wait(tmp_path):
    run, said = a_run(tmp_path / "run", python("a", "print('after')")), []
    _scontrol("update", "nodename=n1,n2", "state=drain", "reason=test")
    try:
        working = threading.Thread(target=execute, args=(run,), kwargs={"say": said.append})
        working.start()
        until(lambda: states_of(run) == ["PENDING"])
        until(lambda: said)
    finally:
        _scontrol("update", "nodename=n1,n2", "state=resume")
    working.join(600)
    assert outcome_of(run, "a").ok
    assert "1 step waits" in said[0] and 'node n1 is drained ("test"), node n2 is drained ("test")' in said[0]


@pytest.mark.slurm
@pytest.mark.root
@pytest.mark.usefixtures("cluster_alone")
def test_a_wait_for_a_node_that_is_down_ends_in_words_where_a_limit_is_set(tmp_path):
    gone = python("gone", "pass", node="n2", stall_timeout_s=6)
    run = a_run(tmp_path / "run", gone, python("here", "print('fine')", node="n1", stall_timeout_s=600))
    _scontrol("update", "nodename=n2", "state=drain", "reason=fan")
    try:
        execute(run)
    finally:
        _scontrol("update", "nodename=n2", "state=resume")
    assert outcome_of(run, "here").ok
    outcome = outcome_of(run, "gone")
    assert outcome.status is Status.interrupted and 'node n2 is drained ("fan")' in outcome.reason
    assert "longer than --stall-timeout allows" in outcome.reason and len(run.pending()) == 1
    run.manifest.steps[0].step = msgspec.structs.replace(gone, stall_timeout_s=None)  # a queue may be longer
    execute(run)
    assert outcome_of(run, "gone").ok


@pytest.mark.slurm
@pytest.mark.root
@pytest.mark.usefixtures("cluster_alone")
def test_a_preempted_job_starts_its_step_over_and_nothing_is_lost(tmp_path):
    code = """
        import pathlib, time
        tries = pathlib.Path("a/tries"); tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
        print("up", flush=True)
        if len(tries.read_text()) == 1: time.sleep(120)
    """
    run = a_run(tmp_path / "run", python("a", code))
    working = threading.Thread(
        target=execute, args=(run,), kwargs={"ask": SlurmOptions(extra=("partition=gpu",))}
    )
    working.start()
    until(lambda: (run.root / "a" / "tries").exists())
    subprocess.run(
        ["srun", "--partition=urgent", "--nodes=2", "--exclusive", "true"], check=True, timeout=900
    )
    working.join(600)
    assert not working.is_alive()
    assert outcome_of(run, "a").ok
    assert (run.root / "a" / "tries").read_text() == "xx"


@pytest.mark.slurm
def test_gpus_that_the_node_does_not_show_are_an_error_with_its_name(tmp_path):
    run = a_run(tmp_path / "run", python("a", "pass", num_gpus=1))
    gpu = Gpu(vendor="nvidia", index=0, uuid="placeholder")
    runner = StepRunner(run, SlurmEngine(SlurmOptions(), vendor="nvidia"), [], Stop())
    runner.execute(run.pending(), [gpu], jobs=1)
    assert "needs 1 GPU and this node shows 0" in outcome_of(run, "a").reason
    with pytest.raises(GpuError):
        runner.execute([msgspec.structs.replace(run.pending()[0], num_gpus=2)], [gpu], jobs=1)


@pytest.mark.slurm
def test_what_slurm_refuses_is_told_before_anything_is_lost(tmp_path):
    run = a_run(tmp_path / "run", python("a", "pass"))
    with pytest.raises(EngineError, match=r"(?i)partition"):
        execute(run, ask=SlurmOptions(extra=("partition=nosuch",)))


def _scontrol(*words: str) -> None:
    subprocess.run(["scontrol", *words], check=True, timeout=300)


def test_steps_that_name_a_node_are_asked_for_there_and_share_no_array_with_others():
    steps = [Step(name=f"s{n}", argv=("x",), node=node) for n, node in enumerate((None, "n1", "n2", "n1"))]
    groups = alike(steps)
    assert [[one.name for one in group] for group in groups] == [["s0"], ["s1", "s3"], ["s2"]]
    asked = [step_parameters(SlurmOptions(), group, jobs=1) for group in groups]
    lists = [one.get("slurm_additional_parameters", {}).get("nodelist") for one in asked]
    assert lists == [None, "n1", "n2"]
