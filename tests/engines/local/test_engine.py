from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lab.core.gpu import Gpu
from lab.core.run import Run
from lab.core.step import Status, Step
from lab.core.stop import Stop
from lab.engines.local.engine import LocalEngine
from lab.errors import EngineError, StorageError
from tests.conftest import small_disk
from tests.core.test_manifest import a_manifest


def python(code: str, **fields) -> Step:
    return Step(
        name=fields.pop("name", "s"),
        argv=("python", "-c", textwrap.dedent(code)),
        folder=fields.pop("folder", "s"),
        **fields,
    )


def run_step(
    root: Path, step: Step, *, stop: Stop | None = None, stop_at: str | None = None, grace_s: float = 2.0
):
    """stop_at: the line at which the step is stopped."""
    run, stop = Run.create(root, a_manifest(step)), stop or Stop()
    run.begin(step)
    lines: list[str] = []

    def heard(line: str) -> None:
        lines.append(line)
        if line == stop_at:
            stop.set()

    outcome = LocalEngine(grace_s=grace_s).run(run, step, [], on_line=heard, stop=stop)
    return run, outcome, lines


def alive(marker: str) -> list[int]:
    """Processes whose command line holds `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def until_gone(marker: str, seconds: float = 300.0) -> list[int]:
    end = time.monotonic() + seconds
    while (left := alive(marker)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


# A tree such as torchrun makes: a child in a session of its own that ignores SIGINT.
STUBBORN_TREE = """
    import subprocess, sys, time
    child = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(300)  # {marker}"
    subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
    print("up", flush=True)
    time.sleep(300)  # {marker}
"""


def test_output_comes_live_and_lands_in_the_log(tmp_path):
    run, outcome, lines = run_step(
        tmp_path / "r",
        python("""
        import sys; print("out"); print("err", file=sys.stderr); print("no newline", end="")"""),
    )
    assert outcome.status is Status.ok and outcome.exit_code == 0
    assert lines == ["out", "err", "no newline"]
    assert run.log(run.manifest.steps[0].step).read_text() == "out\nerr\nno newline\n"
    assert outcome.peak_mem_bytes and outcome.peak_mem_bytes > 1e6


def test_a_process_works_in_the_run_folder(tmp_path):
    _, outcome, lines = run_step(
        tmp_path / "a 'quoted' \n näme", python("import os; print(os.getcwd().encode())")
    )
    assert outcome.ok and "näme".encode() in eval(lines[0])  # noqa: S307 - our own child printed it


def test_bytes_that_are_no_text_do_not_break_the_log(tmp_path):
    _, outcome, lines = run_step(
        tmp_path / "r",
        python(r"""
        import sys; sys.stdout.buffer.write(b"\xff\xfe caf\xc3\xa9\r\n" + b"x" * 200_000)"""),
    )
    assert outcome.ok
    assert lines[0] == "\ufffd\ufffd café" and sum(map(len, lines[1:])) == 200_000


def test_a_failure_brings_the_last_lines_and_the_steps_own_logs(tmp_path):
    step = python(
        """
        open("s/rank0.log", "w").write("the rank's last words")
        raise ValueError("no such shape")""",
        logs=("s/rank*.log",),
    )
    _, outcome, _ = run_step(tmp_path / "r", step)
    assert outcome.status is Status.failed and "ValueError: no such shape" in outcome.reason
    assert "the rank's last words" in outcome.tail


def test_exit_zero_without_the_expected_files_is_a_failure(tmp_path):
    _, outcome, _ = run_step(tmp_path / "r", python("open('s/empty.json', 'w')", expects=("s/*.json",)))
    assert outcome.status is Status.failed and "left no s/*.json" in outcome.reason


def test_a_program_that_is_not_there_is_an_engine_error(tmp_path):
    with pytest.raises(EngineError, match="no-such-program: No such file"):
        run_step(tmp_path / "r", Step(name="s", argv=("no-such-program",), folder="s"))


def test_timeout_ends_the_whole_tree(tmp_path):
    marker = f"lab-test-{os.getpid()}-timeout"
    _, outcome, _ = run_step(
        tmp_path / "r", python(STUBBORN_TREE.format(marker=marker), timeout_s=1.0), grace_s=0.5
    )
    assert outcome.status is Status.timeout and outcome.seconds < 100  # it would sleep for 300
    assert not until_gone(marker)


def test_a_clock_that_jumps_ends_no_step_and_changes_no_duration(tmp_path, monkeypatch):
    """Limits and durations are by the monotonic clock; the wall clock only dates them."""
    wall, began = time.time, time.monotonic()
    jumps = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: wall() + 86_400 * (-1) ** next(jumps))
    step = python("import time; time.sleep(0.3)", timeout_s=30, stall_timeout_s=30)
    _, outcome, _ = run_step(tmp_path / "run", step)
    assert outcome.ok
    assert 0.3 <= outcome.seconds <= time.monotonic() - began


def test_silence_past_its_limit_is_a_stall(tmp_path):
    step = python("import time; print('x', flush=True); time.sleep(60)", stall_timeout_s=0.7)
    _, outcome, _ = run_step(tmp_path / "r", step)
    assert outcome.status is Status.timeout and "printed nothing for 0.7 s" in outcome.reason


def test_a_stop_lets_the_step_clean_up_first(tmp_path):
    run, outcome, lines = run_step(
        tmp_path / "r",
        python("""
        import time
        try:
            print("up", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("cleaned up", flush=True)"""),
        stop_at="up",
        grace_s=400,
    )
    assert outcome.status is Status.interrupted and lines == ["up", "cleaned up"]
    assert run.pending() == [run.manifest.steps[0].step]


def test_a_daemon_left_behind_by_a_good_step_is_ended(tmp_path):
    marker = f"lab-test-{os.getpid()}-daemon"
    _, outcome, _ = run_step(
        tmp_path / "r",
        python(f"""
        import subprocess, sys
        argv = [sys.executable, "-c", "import time; time.sleep(300)  # {marker}"]
        subprocess.Popen(argv, start_new_session=True)"""),
    )
    assert outcome.ok and outcome.seconds < 100  # it would sleep for 300
    assert not until_gone(marker)


DRIVER = """
    import sys
    from pathlib import Path
    from lab.core.run import Run
    from lab.engines.local.engine import LocalEngine
    from lab.core.stop import Stop
    run = Run.open(Path(sys.argv[1]))
    step = run.manifest.steps[0].step
    run.begin(step)
    LocalEngine(grace_s=0.5).run(run, step, [], on_line=lambda line: print(line, flush=True), stop=Stop())
"""


def test_a_driver_killed_by_sigkill_takes_its_step_along_and_the_run_resumes(tmp_path):
    marker = f"lab-test-{os.getpid()}-kill9"
    step = python(STUBBORN_TREE.format(marker=marker))
    Run.create(tmp_path / "r", a_manifest(step))
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path / "r")], stdout=subprocess.PIPE
    )
    assert driver.stdout and driver.stdout.readline() == b"up\n"
    assert len(alive(marker)) >= 2
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert not until_gone(marker)
    run = Run.open(tmp_path / "r")
    assert run.manifest.steps[0].attempts == 1 and run.pending() == [step]


def test_a_worker_killed_like_the_oom_killer_does_is_told_in_words(tmp_path):
    _, outcome, _ = run_step(
        tmp_path / "r", python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    )
    assert outcome.status is Status.failed and "killed by SIGKILL, not by lab" in outcome.reason


def test_secrets_never_reach_log_screen_or_tail(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "planted_secret_1234")
    run, outcome, lines = run_step(
        tmp_path / "r", python("import os; print('token', os.environ['WANDB_API_KEY'])")
    )
    assert lines == ["token [redacted]"] and outcome.tail == ("token [redacted]",)
    assert "planted" not in run.log(run.manifest.steps[0].step).read_text()


@pytest.mark.root
def test_a_full_disk_stops_the_step_with_a_storage_error(tmp_path):
    endless = python("""
        import time
        for _ in range(60):
            print("x" * 100_000, flush=True); time.sleep(0.1)""")
    with small_disk(tmp_path / "disk", "400k") as disk, pytest.raises(StorageError, match="no space left"):
        run_step(disk / "r", endless)


PRINT_HUB = "import os, sys; print({n: v for n, v in os.environ.items() if 'HF_' in n or 'HUB' in n})"


def test_a_step_is_offline_and_never_has_the_hubs_token(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret_1234")
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "hf_planted_secret_1234")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    _, outcome, lines = run_step(tmp_path / "r", python(PRINT_HUB))
    assert outcome.ok and "TOKEN" not in lines[0] and "'HF_HUB_OFFLINE': '1'" in lines[0]


def test_the_caller_may_let_steps_of_this_environment_use_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    _, _, lines = run_step(tmp_path / "r", python("import os; print(os.environ['TRANSFORMERS_OFFLINE'])"))
    assert lines == ["0"]


def test_a_fetch_reads_its_token_from_memory_and_is_online(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret_1234")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    step = python("""
        import os, sys
        print(len(sys.stdin.read()), os.environ["HF_HUB_OFFLINE"], os.environ.get("HF_TOKEN"))
        print(os.readlink("/proc/self/fd/0").startswith("/memfd:"))""")
    run = Run.create(tmp_path / "r", a_manifest(step))
    run.begin(step)
    lines: list[str] = []
    LocalEngine().fetch(run, step, stdin=b"token" * 50_000, on_line=lines.append, stop=Stop())
    assert lines == ["250000 0 None", "True"]


MASKS = {"CUDA_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2,3", "GPU_DEVICE_ORDINAL": "2,3"}


@pytest.mark.parametrize(
    "vendor, index, seen",
    [
        (
            "none",
            None,
            {"CUDA_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"},
        ),
        ("nvidia", 2, {"CUDA_VISIBLE_DEVICES": "GPU-a"}),
        (
            "amd",
            2,
            {"ROCR_VISIBLE_DEVICES": "2"},
        ),  # a mask of HIP's or CUDA's would hide the one that is left
    ],
)
def test_a_step_sees_its_gpus_and_none_without_any_whatever_mask_the_caller_has(
    tmp_path, monkeypatch, vendor, index, seen
):
    for name, value in MASKS.items():
        monkeypatch.setenv(name, value)
    gpus = [] if index is None else [Gpu(vendor=vendor, index=index, uuid="GPU-a")]
    step = python(
        "import os; print(sorted((k, v) for k, v in os.environ.items() if 'VISIBLE' in k or 'ORDINAL' in k))"
    )
    run, lines = Run.create(tmp_path / "run", a_manifest(step)), []
    run.begin(step)
    LocalEngine(vendor=vendor).run(run, step, gpus, on_line=lines.append, stop=Stop())
    assert lines == [str(sorted(seen.items()))]
