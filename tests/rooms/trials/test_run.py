"""Runs from the command line: rows, JSON, exit codes, resume, replay."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lab.gpus.discover import Found

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")
from lab.core.run import MANIFEST, Run
from lab.errors import BadDataError
from lab.rooms.trials.analyze import gather
from tests.command import lab as run_lab
from tests.conftest import ROOT

SLEEPS = f"987.{os.getpid()}"  # seconds, as no other tests on this machine have it
FLAKY = "import os; print('loss:', 'nan' if int('{seed}') % 2 and not os.environ.get('CURE') else 1.5)"


def lab(*words, cwd, env=None):
    return run_lab("run", *words, cwd=cwd, env={"PYTHONPATH": str(ROOT), **(env or {})})


def analyze(cwd):
    return run_lab("analyze out", cwd=cwd, env={"PYTHONPATH": str(ROOT)})


def rows(run):
    with (run / "tables/trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_rates_comparisons_and_the_exit_code_of_an_undecided_run(tmp_path):
    cells = ("--cell", "none", "--cell", "{name: cured, env: {CURE: 1}}")
    command = ("--", sys.executable, "-c", FLAKY)
    words = ["-j", "2", "-o", "out", "trials", "-n", "4", "--json", *cells, "--fail", "nan in loss"]
    done = lab(*words, *command, cwd=tmp_path)
    answer = json.loads(done.stdout)
    none, cured = answer["cells"]
    assert (none["name"], none["n"], none["fail"], none["error"], none["rate"]) == ("none", 4, 2, 0, 0.5)
    assert none["low"] < 0.5 < none["high"] and (cured["n"], cured["fail"]) == (4, 0)
    (compared,) = answer["comparisons"]
    assert set(compared) == {"cell", "baseline", "p", "p_corrected", "verdict"}
    assert compared["p"] == pytest.approx(3 / 7) and compared["verdict"] == "no evidence"
    assert answer["decided"] is False and done.returncode == 1, done.stderr
    found = {(row["cell"], int(row["trial"])): row for row in rows(tmp_path / "out")}
    assert len(found) == 8 and {key for key, row in found.items() if row["verdict"] == "fail"} == {
        ("none", 1),
        ("none", 3),
    }
    again = lab("-o", "again", "trials", "--again", "out/steps/none-0003", "-n", "2", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["cells"][0]["fail"] == 2 and {
        r["seed"] for r in rows(tmp_path / "again")
    } == {"3"}


def test_until_fixed_ends_after_ten_clean_trials(tmp_path):
    words = ("trials", "--until", "fixed", "--was", "0.3", "-n", "12", "--json", "--", "true")
    done = lab("-o", "out", *words, cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["decided"] and answer["cells"][0]["n"] == 10, done.stderr
    assert [row["verdict"] for row in rows(tmp_path / "out")] == ["pass"] * 10 + ["not run"] * 2
    assert "1 more pass would say fixed" in done.stderr
    assert not (tmp_path / "out/steps/none-0010").exists()  # nothing starts once it is decided


def test_a_killed_run_that_is_resumed_loses_no_trial_and_counts_none_twice(tmp_path):
    """The driver is killed in the middle of a trial; what each trial did is in a file of its own count."""
    note = "import os, time; open('did', 'a').write('{cell} {trial}\\n'); time.sleep(0.7); print('loss: 1')"
    command = [sys.executable, "-m", "lab", "run", "-o", "out", "trials", "-n", "4"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        [*command, "--fail", "nan in loss", "--", sys.executable, "-c", note],
        cwd=tmp_path,
        env=env,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 300
    while not (tmp_path / "did").exists() or (tmp_path / "did").read_text().count("\n") < 2:
        assert time.monotonic() < end and driver.poll() is None
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = lab("--resume", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(row["trial"], row["verdict"]) for row in rows(tmp_path / "out")] == [
        (str(n), "pass") for n in range(4)
    ]
    did = (tmp_path / "did").read_text().split("\n")[:-1]
    assert set(did) == {f"none {n}" for n in range(4)} and did.count("none 0") == 1


@pytest.mark.parametrize(
    "words, code, says",
    [
        (("--",), 2, "no command to try"),
        (("--fail", "loss", "--", "true"), 2, "does not say what a failure is"),
        (("--until", "fixed", "--", "true"), 2, "--was"),
        (("--was", "0.3", "--", "true"), 2, "--until"),
        (("--again", "nowhere"), 4, "no trial ended"),
        (("nowhere.yaml",), 4, "cannot read the matrix"),
        (("--cell", "{image: cuda}", "--", "true"), 7, "needs nvidia GPUs and none was found"),
        (("--cell", "{image: nope}", "--", "true"), 2, "unknown image 'nope'"),
        (("--cell", "{img: cpu}", "--", "true"), 3, "a cell has name, image,"),
        (("--", "echo", "hf_planted_token_value"), 2, "a secret stands in the command"),
        (("--", "no-such-program"), 4, "no program 'no-such-program'"),
        (("--", sys.executable, "nothing.py"), 4, "the script is not there"),
        (("--cell", "none", "--cell", "{env: {PATH: /nowhere}}", "--", "true"), 4, "of cell 'path-nowhere'"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_runs(
    tmp_path, capsys, monkeypatch, words, code, says
):
    from lab.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_planted_token_value")
    monkeypatch.setattr("lab.engines.docker.host.look", lambda: Found([]))
    with pytest.raises(SystemExit) as error:
        main(["run", "trials", *words])
    assert error.value.code == code and says in capsys.readouterr().err
    assert not (tmp_path / "experiments").exists()


def test_options_of_lab_run_stand_before_the_experiment_and_the_command_keeps_its_own(
    tmp_path, capsys, monkeypatch
):
    from lab.cli.main import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        main(["run", "--dry-run", "--json", "trials", "-n", "2", "--", "true", "--dry-run"])
    plan = json.loads(capsys.readouterr().out)
    assert error.value.code == 0 and [step["name"] for step in plan["steps"]] == ["none-0000", "none-0001"]
    assert plan["config"]["command"] == ["true", "--dry-run"]
    with pytest.raises(SystemExit) as error:
        main(["run", "trials", "--dry-run", "-n", "2", "--", "true"])
    refusal = capsys.readouterr().err
    assert error.value.code == 2 and "--dry-run stands before the experiment" in refusal


def test_output_that_never_ends_a_line_and_a_daemon_that_holds_it_open(tmp_path):
    """The line is read once nothing can add to it; no escape in the table, nothing left running."""
    code = (
        f"import subprocess, sys; subprocess.Popen(['sleep', '{SLEEPS}'], start_new_session=True);"
        "sys.stdout.write('=1+1(x)\\x1b[31m' + 'A' * 300000); sys.exit(3)"
    )
    words = ("trials", "-n", "1", "--fail", "/A{9}$/", "--", sys.executable, "-c", code)
    done = lab("-q", "-o", "out", *words, cwd=tmp_path)
    (row,) = rows(tmp_path / "out")
    assert row["verdict"] == "fail" and done.returncode == 0, done.stderr
    assert not [p for p in os.listdir("/proc") if p.isdigit() and SLEEPS in _command_of(p)]


def _command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", errors="replace") as file:
            return file.read().split("\0")
    except OSError:
        return []


def test_a_trial_that_runs_past_its_limit_is_an_error(tmp_path):
    words = ("trials", "-n", "1", "--trial-timeout", "0.5", "--", "sleep", "60")
    lab("-q", "-o", "out", *words, cwd=tmp_path)
    assert rows(tmp_path / "out")[0]["reason"] == "ran past --trial-timeout"


def test_a_flood_of_output_is_judged_to_its_end_and_kept_in_part(tmp_path, monkeypatch):
    """The only NaN stands in the last line; a number across two parts of a line is never read as a part."""
    import io

    from lab.rooms.trials.failure import Reader, parse
    from lab.rooms.trials.workload import main

    monkeypatch.setattr(main, "MOST_LOG_BYTES", 1000)
    out = io.StringIO()
    monkeypatch.setattr(main.sys, "stdout", out)
    flood = b"x" * 30 + b" loss: 1\n"
    reader = Reader(parse("nan in loss or loss > 5"))
    main._pass_on(io.BytesIO(flood * 5000 + b"loss: nan\n"), reader)
    assert reader.hits == {"nan in loss": 5001}
    assert len(out.getvalue()) < 10_000 and "further characters were judged" in out.getvalue()
    bar = b"".join(b"\r%d %% loss: %d" % (n, n) for n in range(7))
    reader = Reader(parse("loss > 5"))
    main._pass_on(io.BytesIO(bar), reader)
    assert reader.verdict(0) == ("fail", "loss > 5: line 8")
    reader = Reader(parse("loss > 100000"))
    main._pass_on(io.BytesIO(b"a" * (main.LONGEST_LINE - 10) + b" loss: 123456"), reader)
    assert reader.verdict(0) == ("error", "line 1 is too long: a number in it may have been cut in two")
    for terms, verdict in (("/Error|NaN/", "error"), ("exit!=0", "pass")):
        reader = Reader(parse(terms))
        main._pass_on(io.BytesIO(b"a" * (main.LONGEST_LINE - 1) + b"NaN"), reader)
        assert reader.verdict(0)[0] == verdict


def test_a_row_that_cannot_be_read_is_one_error_and_said(tmp_path):
    done = lab("-q", "-o", "out", "trials", "-n", "3", "--", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "out/steps/none-0001/trial.json").write_text("{")
    done = analyze(tmp_path)
    assert done.returncode == 1 and "none-0001: its row cannot be used" in done.stderr
    assert [row["verdict"] for row in rows(tmp_path / "out")] == ["pass", "error", "pass"]


def test_a_pass_that_leaves_its_work_running_says_so_and_helpers_that_end_with_it_do_not(tmp_path):
    """A script that starts its program in the background ends with 0 at once, whatever becomes of it."""
    for name, command, passes in (
        ("background", "setsid sleep 985 & echo loss: 1", 0),
        ("helper", "setsid sleep 0.2 & echo loss: 1", 1),
    ):
        done = lab("-q", "-o", name, *["trials", "-n", "1", "--", "sh", "-c"], command, cwd=tmp_path)
        (row,) = rows(tmp_path / name)
        assert row["verdict"] == "pass" and (row["reason"] == "") == bool(passes), row["reason"]
        assert done.returncode == 1 - passes
        assert ("left processes running" in row["reason"]) == ("was not seen" in done.stderr) != bool(passes)


def test_a_pass_behind_a_pipe_that_ends_in_a_traceback_ends_with_1(tmp_path):
    command = f"{sys.executable} -S -c 'raise ValueError(7)' 2>&1 | cat"
    done = lab("-q", "-o", "out", *["trials", "-n", "1", "--", "sh", "-c"], command, cwd=tmp_path)
    assert rows(tmp_path / "out")[0]["reason"].endswith("ends in an error: ValueError: 7")
    said = "1 pass may be none"
    assert done.returncode == 1 and said in done.stderr
    assert said in (tmp_path / "out" / "report.html").read_text()


def _resumed(tmp_path):
    return lab("-q", "--resume", "out", cwd=tmp_path)


def test_a_trial_whose_driver_died_before_it_knew_decides_nothing(tmp_path):
    """Its row lies there and its step is open: it runs again, and is not called decided by itself."""
    words = ("trials", "--until", "fixed", "--was", "0.3", "-n", "12", "--", "true")
    assert lab("-q", "-o", "out", *words, cwd=tmp_path).returncode == 0
    path = tmp_path / "out/manifest.json"
    manifest = json.loads(path.read_text())
    for record in manifest["steps"][9:]:
        record.pop("outcome", None)
        record.pop("files", None)
    path.write_text(json.dumps(manifest))
    assert (tmp_path / "out/steps/none-0009/trial.json").exists()
    done = _resumed(tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["verdict"] for row in rows(tmp_path / "out")] == ["pass"] * 10 + ["not run"] * 2


# Uses its GPU alone, or ends with 9.
ON_A_GPU = """
import os, sys, time
gpu = os.environ["CUDA_VISIBLE_DEVICES"]
try:
    os.mkdir("use-" + gpu)
except FileExistsError:
    sys.exit(9)
time.sleep(0.3)
os.rmdir("use-" + gpu)
"""


def test_one_trial_at_a_time_visits_every_gpu(tmp_path):
    """Two runs at once on two GPUs: none is used twice at a time."""
    made = [f"GPU-{one}aaa1111-0000-0000-0000-000000000000" for one in "ab"]
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir()
    lines = [
        f"{at}, {uuid}, NVIDIA H200, 580.1, 143771, 700.00, 1980, 3201, 9.0, Disabled"
        for at, uuid in enumerate(made)
    ]
    tool.write_text("".join(["#!/bin/sh\n", *(f"echo '{line}'\n" for line in lines)]))
    tool.chmod(0o755)
    env = {"PATH": f"{tool.parent}:{os.environ['PATH']}", "LAB_LEASES": str(tmp_path / "leases")}
    (tmp_path / "job.py").write_text(ON_A_GPU)
    other = threading.Thread(
        target=lab,
        args=("-q", "--gpus", "0-0", "-o", "other", "trials", "-n", "2", "--", sys.executable, "job.py"),
        kwargs={"cwd": tmp_path, "env": env},
    )
    other.start()
    done = lab("-q", "-o", "out", "trials", "-n", "4", "--", sys.executable, "job.py", cwd=tmp_path, env=env)
    other.join()
    found = rows(tmp_path / "out")
    assert [row["gpus"] for row in found] == made * 2, done.stderr
    assert [row["verdict"] for row in found] == ["pass"] * 4
    assert [row["verdict"] for row in rows(tmp_path / "other")] == ["pass"] * 2


def test_a_manifest_that_lists_no_trial_is_damaged_data(tmp_path):
    assert lab("-q", "-o", "out", "trials", "-n", "1", "--", "true", cwd=tmp_path).returncode == 0
    path = tmp_path / "out" / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "steps": []}))
    with pytest.raises(BadDataError, match="the manifest lists no trial") as raised:
        gather(Run.open(tmp_path / "out"))
    assert raised.value.exit_code == 5 and MANIFEST in str(raised.value.location)
