"""`lab check BASE HEAD -- CMD`: fresh processes of both sides, interleaved, until the gate decides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lab.compare.check import LOOKS, SHARES
from lab.compare.check import repeat as repeat_module
from lab.compare.check.repeat import schedule, sides
from lab.compare.cli import check
from lab.errors import BusyError, EngineError, MissingError, UsageError
from lab.stats.gate import LEVEL
from lab.stats.means import tail
from tests.compare.made import layer, trace
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
    order = schedule(2)
    assert order == [(0, "base"), (0, "head"), (1, "head"), (1, "base"), (2, "base"), (2, "head")]


@pytest.mark.parametrize(("scale", "code", "word"), [(1.2, 1, "proven"), (1.0, 0, "excluded")])
def test_a_clear_case_ends_at_the_first_look(tmp_path, scale, code, word):
    base, head = side(tmp_path / "b", 1.0), side(tmp_path / "h", scale)
    done = run(base, head, "--max-slowdown", "5%", "-o", tmp_path / "out")
    assert done.exit_code == code and word in done.stdout
    assert len(list((tmp_path / "out" / "base").glob("*.json"))) == 3
    warm = sorted(one.name for one in (tmp_path / "out" / "warm-up").glob("*.json"))
    assert warm == ["base_00.json", "head_00.json"]


def test_a_noisy_case_ends_undecided_after_12_a_side(tmp_path):
    base, head = side(tmp_path / "b", 1.0, 0.3), side(tmp_path / "h", 1.0, 0.3)
    done = run(base, head, "-o", tmp_path / "out")
    assert done.exit_code == 3
    assert len(list((tmp_path / "out" / "head").glob("*.json"))) == 12


def test_the_recordings_that_stay_are_judged_as_one_look(tmp_path):
    base, head = side(tmp_path / "b", 1.0), side(tmp_path / "h", 1.0)
    first = json.loads(run(base, head, "-o", tmp_path / "o", "--max-slowdown", "5%", "--json").stdout)
    both = [str(tmp_path / "o" / "base"), str(tmp_path / "o" / "head")]
    again = json.loads(CliRunner().invoke(check, [*both, "--max-slowdown", "5%", "--json"]).stdout)
    changes = [[one["change"] for one in found["metrics"]] for found in (first, again)]
    assert changes[0] == changes[1] and first["metrics"][0]["level"] > again["metrics"][0]["level"]


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
    words = ["--max-slowdown", "5%", "--json", "-o"]
    clean = json.loads(run("HEAD~1", "HEAD", *words, tmp_path / "clean").stdout)
    assert clean["notes"] == []
    Path("scale").write_text("7")
    (same, dirty) = json.loads(run("HEAD", "HEAD", *words, tmp_path / "out").stdout)["notes"]
    assert dirty == "the checkout has changes that are not committed: they are on neither side"
    assert same.startswith("BASE and HEAD are the same commit (")
    assert json.loads(run(".", "HEAD", *words, tmp_path / "folder").stdout)["notes"] == []


def test_a_folder_with_recordings_and_a_command_without_a_folder_are_refused(tmp_path):
    base = side(tmp_path / "b", 1.0)
    (tmp_path / "out" / "base").mkdir(parents=True)
    (tmp_path / "out" / "base" / "old.json").write_text("{}")
    assert isinstance(run(base, base, "-o", tmp_path / "out").exception, BusyError)
    assert isinstance(run(base, base).exception, UsageError)


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
    one = 1 - (1 - LEVEL) / 2
    assert false_alarms(one) <= 0.0035 * 6000 and sum(SHARES.values()) == pytest.approx(1)
    assert false_alarms(one, shares=dict.fromkeys(LOOKS, 1)) > 0.0035 * 6000


def test_a_side_in_an_image_gets_its_work_read_only_and_nothing_is_pulled(tmp_path, monkeypatch):
    monkeypatch.setattr(repeat_module, "engine_cli", lambda: ["docker"])
    monkeypatch.setattr(repeat_module, "discover", list)
    monkeypatch.setattr(repeat_module, "ask", lambda *_: None)
    image = repeat_module.image_named("example.org/own/train:1")
    assert (image.ref, image.vendor) == ("example.org/own/train:1", "none")
    words = repeat_module.command_in(
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


def test_an_engine_that_does_not_remove_a_container_is_named(monkeypatch):
    monkeypatch.setattr(repeat_module, "ENGINE_S", 0.1)
    monkeypatch.setattr(repeat_module, "engine_cli", lambda: ["/bin/sh", "-c", "sleep 30"])
    with pytest.raises(EngineError, match=r"did not remove the container lab-check-x in 0\.1 s"):
        repeat_module.remove_container("lab-check-x")
