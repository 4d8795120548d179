"""`lab check BASE HEAD -- CMD`: fresh processes of both sides, interleaved, until the gate decides."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lab.compare.check import in_image
from lab.compare.check.looks import LOOKS, SHARES
from lab.compare.check.repeat import _containers_of, schedule
from lab.compare.check.samples import METRICS
from lab.compare.check.sides import sides
from lab.compare.cli import check
from lab.errors import BusyError, EngineError, MissingError, UsageError
from lab.stats.gate import LEVEL
from lab.stats.means import tail
from tests.compare.made import layer, trace
from tests.conftest import ROOT
from tests.engines.docker.fixtures import REF, busybox, own_caches  # noqa: F401

PROGRAM = """
import json, os, random, sys
trace = json.load(open("template.json"))
random.seed(os.path.basename(sys.argv[1]) + os.getcwd())
own = float(open("scale").read()) * random.uniform(1 - NOISE, 1 + NOISE)
free_us = 0  # a stream runs one kernel after the other
for event in trace["traceEvents"]:
    if event["cat"] == "kernel":
        event["dur"] *= own * random.uniform(0.9995, 1.0005)
        event["ts"] = max(event["ts"], free_us)
        free_us = event["ts"] + event["dur"]
assert sys.argv[1] == os.environ["LAB_CHECK_OUT"]
json.dump(trace, open(sys.argv[1], "w"))
"""


def side(folder, scale, noise=0.002):
    trace(folder / "template.json", [layer() + layer()] * 3)
    (folder / "scale").write_text(str(scale))
    (folder / "work.py").write_text(PROGRAM.replace("NOISE", str(noise)))
    return folder


def run(*words, program="work.py"):
    typed = [*map(str, words), "--", sys.executable, program, "{out}"]
    return CliRunner().invoke(check, typed)


def test_the_order_alternates_which_side_goes_first_and_every_look_is_balanced():
    order = schedule((2,))
    assert order == [(0, "base"), (0, "head"), (1, "head"), (1, "base"), (2, "base"), (2, "head")]
    assert len(schedule()) == 2 * (LOOKS[-1] + 1)


@pytest.mark.parametrize(("scale", "code", "word"), [(1.2, 1, "proven"), (1.0, 0, "excluded")])
def test_a_clear_case_ends_at_the_first_look(tmp_path, scale, code, word):
    base, head = side(tmp_path / "b", 1.0), side(tmp_path / "h", scale)
    done = run(base, head, "--max-slowdown", "5%", "-o", tmp_path / "out")
    assert done.exit_code == code and word in done.stdout
    assert len(list((tmp_path / "out" / "base").glob("*.json"))) == 3
    warm = sorted(one.name for one in (tmp_path / "out" / "warm-up").glob("*.json"))
    assert warm == ["aa_00.json", "base_00.json", "head_00.json"]


def test_a_noisy_case_ends_undecided_after_12_a_side(tmp_path):
    base, head = side(tmp_path / "b", 1.0, 0.3), side(tmp_path / "h", 1.0, 0.3)
    done = run(base, head, "-o", tmp_path / "out")
    assert done.exit_code == 3
    assert len(list((tmp_path / "out" / "head").glob("*.json"))) == 12


def test_the_recordings_that_stay_give_the_verdict_of_the_check_again(tmp_path):
    """At the level of its last look, as the record says; a single look would prove at a lower bar."""
    base, head = side(tmp_path / "b", 1.0, 0.01), side(tmp_path / "h", 1.06, 0.01)
    first = run(base, head, "-o", tmp_path / "o", "--json")
    both = [str(tmp_path / "o" / "base"), str(tmp_path / "o" / "head")]
    again = CliRunner().invoke(check, [*both, "--json"])
    a, b = json.loads(first.stdout), json.loads(again.stdout)
    assert (first.exit_code, a["outcome"], a["second"]) == (again.exit_code, b["outcome"], b["second"])
    assert a["metrics"] == b["metrics"] and "judged as the check's look at" in b["notes"][0]
    (tmp_path / "disk").mkdir()
    for file in [*Path(both[0]).glob("*.json"), *Path(both[1]).glob("*.json")]:  # moved, and linked to
        file.symlink_to(file.rename(tmp_path / "disk" / file.name))
    linked = CliRunner().invoke(check, [*both, "--json"])
    assert (linked.exit_code, linked.stdout) == (again.exit_code, again.stdout)
    other = CliRunner().invoke(check, [*both, "--max-slowdown", "4%"])
    assert "asked for --max-slowdown 0.02" in other.stdout


def test_recordings_that_are_no_look_of_the_check_are_judged_as_a_single_look_and_that_is_said(tmp_path):
    base, head = side(tmp_path / "b", 1.0), side(tmp_path / "h", 1.0)
    run(base, head, "-o", tmp_path / "o", "--max-slowdown", "5%")
    both = [tmp_path / "o" / "base", tmp_path / "o" / "head"]
    for one, name in zip(both, ("base", "head"), strict=True):
        shutil.copy(one / f"{name}_01.json", one / f"{name}_04.json")
    found = json.loads(CliRunner().invoke(check, [*map(str, both), "--json"]).stdout)
    assert any("these are not the processes of a look that the check made" in one for one in found["notes"])
    assert found["metrics"][0]["n_base"] == 4
    assert found["metrics"][0]["level"] == pytest.approx(1 - (1 - LEVEL) / 2 / len(METRICS))
    record = tmp_path / "o" / "check.json"
    record.write_text(record.read_text().replace('"schema_version": 2', '"schema_version": 1'))
    found = json.loads(CliRunner().invoke(check, [*map(str, both), "--json"]).stdout)
    assert (
        any("by another version of lab" in one for one in found["notes"]) and found["outcome"] == "undecided"
    )


def test_git_revisions_run_in_worktrees_that_go_away(tmp_path, monkeypatch):
    monkeypatch.chdir(repository(tmp_path / "repo"))
    done = run("HEAD~1", "HEAD", "-o", tmp_path / "out")
    assert done.exit_code == 1 and "+30" in done.stdout.replace("+29", "+30")
    assert worktrees() == 1
    for name in ("no-such", "--help"):
        with pytest.raises(MissingError), sides(name, "HEAD"):
            pass
    for name in ("image:", "image:--privileged"):
        with pytest.raises(UsageError), sides(name, "HEAD"):
            pass


def test_a_process_that_fails_or_records_nothing_ends_the_check_and_is_no_regression(tmp_path):
    base, head = side(tmp_path / "b", 1.0), side(tmp_path / "h", 1.0)
    (head / "work.py").write_text("import sys; sys.exit('broken here')")
    caught = run(base, head, "-o", tmp_path / "one").exception
    assert isinstance(caught, MissingError) and "head, process 0, ended with 1: broken here" in caught.problem
    (head / "work.py").write_text("pass")
    caught = run(base, head, "-o", tmp_path / "two").exception
    assert "wrote no recording" in str(caught) and caught.exit_code == 4  # 1 is a proven slowdown


def repository(folder):
    """One with two revisions, the second slower."""
    side(folder, 1.0)
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    (folder / "scale").write_text("1.3")
    subprocess.run([*git, "commit", "-qam", "two"], cwd=folder, check=True)
    return folder


def worktrees():
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True).stdout
    return len(listed.splitlines())


def test_changes_that_are_not_committed_and_one_commit_on_both_sides_are_said(tmp_path, monkeypatch):
    monkeypatch.chdir(repository(tmp_path / "repo"))
    words = ["--no-floors", "--max-slowdown", "5%", "--json", "-o"]
    clean = json.loads(run("HEAD~1", "HEAD", *words, tmp_path / "clean").stdout)
    assert clean["notes"] == []
    Path("scale").write_text("7")
    (same, dirty) = json.loads(run("HEAD", "HEAD", *words, tmp_path / "out").stdout)["notes"]
    assert dirty == "the checkout has changes that are not committed: they are on neither side"
    assert same.startswith("BASE and HEAD are the same commit (")
    assert json.loads(run(".", "HEAD", *words, tmp_path / "folder").stdout)["notes"] == []


def test_worktrees_of_a_check_that_was_killed_go_with_the_next_one(tmp_path, monkeypatch):
    monkeypatch.chdir(repository(tmp_path / "repo"))
    killed = "import os, sys; from lab.compare.check.sides import sides\n"
    killed += "with sides('HEAD~1', 'HEAD'): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed], check=False)
    assert worktrees() == 3
    with sides("HEAD~1", "HEAD"):
        assert worktrees() == 3
        with sides("HEAD~1", "HEAD"):
            assert worktrees() == 5  # those of a check that goes on stay
    assert worktrees() == 1


def test_a_worktree_in_another_users_folder_stops_no_check(tmp_path, monkeypatch):
    monkeypatch.chdir(repository(tmp_path / "repo"))
    theirs = tmp_path / "lab-check-theirs"
    theirs.mkdir()
    subprocess.run(["git", "worktree", "add", "--detach", theirs / "base"], check=True, capture_output=True)
    plain = Path.stat

    def stat(path, **words):
        if path.parent == theirs:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, **words)

    monkeypatch.setattr(Path, "stat", stat)
    with sides("HEAD~1", "HEAD"):
        assert worktrees() == 4


def test_a_folder_with_recordings_and_a_command_without_a_folder_are_refused(tmp_path):
    base = side(tmp_path / "b", 1.0)
    (tmp_path / "out" / "base").mkdir(parents=True)
    (tmp_path / "out" / "base" / "old.json").write_text("{}")
    assert isinstance(run(base, base, "-o", tmp_path / "out").exception, BusyError)
    assert isinstance(run(base, base).exception, UsageError)


def told(done):
    return done.exit_code, done.stderr.count("A/A ")


def test_floors_are_measured_once_per_workload_and_stay_with_the_recordings(tmp_path):
    base, head = side(tmp_path / "b", 1.0), side(tmp_path / "h", 1.0)
    first = run(base, head, "--max-slowdown", "5%", "-o", tmp_path / "one")
    assert told(first) == (0, 1 + 9) and "none measured here yet" in first.stderr
    assert "A/A floors: 8 processes of BASE against each other on 20" in first.stdout
    assert len(list((tmp_path / "one" / "aa").glob("*.json"))) == 8
    second = run(base, head, "--max-slowdown", "5%", "-o", tmp_path / "two")
    assert told(second) == (0, 0) and "A/A floors: 8 processes" in second.stdout
    again = CliRunner().invoke(
        check, [*(str(tmp_path / "two" / name) for name in ("base", "head")), "--max-slowdown", "5%"]
    )
    assert again.exit_code == 0 and "A/A floors: 8 processes" in again.stdout
    assert told(run(head, base, "--max-slowdown", "5%", "-o", tmp_path / "other")) == (0, 10)
    without = run(head, base, "--max-slowdown", "5%", "--no-floors", "-o", tmp_path / "none")
    assert told(without) == (0, 0) and "No A/A floors were measured" in without.stdout
    assert not (tmp_path / "none" / "floors.json").exists()


def kept_file(tmp_path):
    (found,) = (tmp_path / "state" / "lab" / "floors").glob("*.json")
    return found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"measured_s": 1.7e9}, "expire after 30 days"),
        ({"measured_s": 9e9}, "expire after 30 days"),
        ({"schema_version": 7}, "another version"),
        ({"times_ns": {"kernel time": [1.0, -2.0]}}, "cannot be read"),
        ({"more": 1}, "cannot be read"),
        ({"measured_s": 1e300}, "cannot be read"),
    ],
)
def test_kept_floors_that_are_old_or_damaged_are_measured_again(tmp_path, changes, words):
    base = side(tmp_path / "b", 1.0)
    run(base, base, "--max-slowdown", "5%", "-o", tmp_path / "one")
    kept = kept_file(tmp_path)
    kept.write_text(json.dumps({**json.loads(kept.read_text()), **changes}))
    again = run(base, base, "--max-slowdown", "5%", "-o", tmp_path / "two")
    assert told(again) == (0, 10) and words in again.stderr


def test_floors_of_another_amount_of_work_are_not_used_and_forgotten(tmp_path):
    base = side(tmp_path / "b", 1.0)
    run(base, base, "--max-slowdown", "5%", "-o", tmp_path / "one")
    (base / "scale").write_text("4.0")
    second = run(base, base, "--max-slowdown", "5%", "-o", tmp_path / "two")
    assert "of other work, or of another state of this machine: kernel time of BASE was 0.1" in second.stdout
    assert not list((tmp_path / "state" / "lab" / "floors").glob("*.json"))


def false_alarms(level, pairs=6000, shifts=1.0, shares=SHARES):
    """Of equal pairs, looked at with 3, 6 and 12 processes a side: those that look slower at least once.

    shifts (2, pairs, 12): what the machine makes of each process; shares: of the alarms, of each look.
    """
    sides = shifts * np.random.default_rng(4).lognormal(0, 0.03, (2, pairs, LOOKS[-1]))
    found = np.zeros(pairs, dtype=bool)
    for n in LOOKS:
        x, y = np.log(sides[:, :, :n])
        parts = np.stack([x.var(axis=1, ddof=1), y.var(axis=1, ddof=1)]) / n
        t = (y.mean(axis=1) - x.mean(axis=1)) / np.sqrt(parts.sum(axis=0))
        freedom = parts.sum(axis=0) ** 2 / (parts**2 / (n - 1)).sum(axis=0)
        for pair in np.flatnonzero(t > 2):
            found[pair] |= tail(t[pair], freedom[pair]) < (1 - level) * shares[n] / 2
    return int(found.sum())


def test_three_looks_at_equal_sides_keep_the_false_alarms_of_one():
    """One metric may cost 0.25 % on the slower side; the full level at each look costs twice as much."""
    one = 1 - (1 - LEVEL) / len(METRICS)
    assert false_alarms(one) <= 0.0035 * 6000 and sum(SHARES.values()) == pytest.approx(1)
    assert false_alarms(one, shares=dict.fromkeys(LOOKS, 1)) > 0.0035 * 6000


def test_a_side_in_an_image_gets_its_work_read_only_and_nothing_is_pulled(tmp_path, monkeypatch):
    monkeypatch.setattr(in_image, "engine_cli", lambda: ["docker"])
    monkeypatch.setattr(in_image, "discover", list)
    monkeypatch.setattr(in_image, "ask", lambda *_: None)
    image = in_image.image_named("example.org/own/train:1")
    assert (image.ref, image.vendor) == ("example.org/own/train:1", "none")
    words = in_image.command_in(
        image,
        ["python", "work.py", "/out/a.json"],
        tmp_path,
        tmp_path / "out",
        {"LAB_CHECK_OUT": "/out/a.json"},
        "n",
    )
    typed = " ".join(words)
    assert words[:7] == ["docker", "run", "--rm", "--pull", "never", "--name", "n"]
    assert f"src={tmp_path},dst=/work,readonly" in typed and f"src={tmp_path / 'out'},dst=/out" in typed
    assert "--network none" in typed and "--cap-drop ALL" in typed and "LAB_CHECK_OUT=/out/a.json" in typed
    assert words[words.index(image.ref) + 1 :] == ["python3", "work.py", "/out/a.json"]


@pytest.mark.docker
@pytest.mark.usefixtures("busybox", "own_caches")
def test_both_sides_run_in_images_and_a_missing_image_ends_the_check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.sh").write_text(
        'n=$(od -An -N4 -tu4 /dev/urandom | tr -d " ")\n'  # equal times would be copies of one recording
        'echo "{\\"step_ms\\": [10.000$n, 10.100$n]}" >"$LAB_CHECK_OUT" && ! touch /work/x\n'
    )
    side = f"image:{REF}"
    done = CliRunner().invoke(check, [side, side, "-o", "out", "--", "/bin/sh", "work.sh"])
    assert done.exit_code == 0, done.output + str(done.exception)
    lost = CliRunner().invoke(
        check, [side, "image:localhost/lab-test/none:x", "-o", "two", "--", "/bin/sh", "work.sh"]
    )
    assert isinstance(lost.exception, MissingError) and "head, process 0" in lost.exception.problem


@pytest.mark.docker
@pytest.mark.usefixtures("busybox", "own_caches")
def test_the_container_of_a_check_that_was_killed_with_its_guard_is_ended_before_anything_runs(
    tmp_path, monkeypatch
):
    """Else it would run beside the processes that warm up, and for ever if its name never comes again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # as the driver has it: another one is another check
    (tmp_path / "slow").touch()
    (tmp_path / "work.sh").write_text(
        'case "$LAB_CHECK_OUT" in *head_01*) [ -e slow ] && sleep 600 ;; esac\n'
        'n=$(od -An -N4 -tu4 /dev/urandom | tr -d " ")\n'
        'echo "{\\"step_ms\\": [10.000$n, 10.100$n]}" >"$LAB_CHECK_OUT"\n'
    )
    words = [f"image:{REF}", f"image:{REF}", "--no-floors", "-o", "out", "--", "/bin/sh", "work.sh"]
    driver = subprocess.Popen([sys.executable, "-m", "lab", "check", *words], env=with_lab())
    mine = _containers_of(tmp_path / "out")
    deadline = time.monotonic() + 120
    while not is_running(f"{mine}head-1"):
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    for pid in [*children_of(driver.pid), driver.pid]:
        os.kill(pid, signal.SIGKILL)
    driver.wait()
    other = f"{mine[:-1]}0-base-1"  # of another check
    subprocess.run(["docker", "create", "--name", other, REF, "true"], check=True, capture_output=True)
    (tmp_path / "slow").unlink()
    try:
        done = CliRunner().invoke(check, words)
    finally:
        subprocess.run(["docker", "rm", other], check=True, capture_output=True)
    assert done.exit_code == 0, done.output + str(done.exception)
    said = done.stderr.splitlines()
    ended = f"ended {mine}head-1, the container of an earlier start that was killed"
    assert ended in said and said.index(ended) < said.index("base 0, warm-up, dropped"), said
    noted = [line for line in done.stdout.splitlines() if "containers of another check were here" in line]
    assert len(noted) == 1 and other in noted[0]  # beside those of whoever else uses this engine
    assert in_image.containers(mine) == []
    ended = [one["recording"] for one in json.loads((tmp_path / "out" / "check.json").read_text())["ended"]]
    assert len(ended) == len(set(ended)) == 2 * LOOKS[0]


def test_an_engine_that_does_not_remove_a_container_is_named(monkeypatch):
    monkeypatch.setattr(in_image, "REMOVE_S", 0.1)
    monkeypatch.setattr(in_image, "engine_cli", lambda: ["/bin/sh", "-c", "sleep 30"])
    with pytest.raises(EngineError, match=r"did not remove the container lab-check-x in 0\.1 s"):
        in_image.end("lab-check-x")


def is_running(name):
    asked = ["docker", "inspect", "-f", "{{.State.Running}}", name]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip() == "true"


def with_lab():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def children_of(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]
