"""A check that is killed goes on with the same command: nothing is lost, doubled, or looked at twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from lab.compare.check import progress as kept
from lab.compare.check.looks import LOOKS
from lab.compare.check.progress import FILE, MOST_CUT, Asked, Progress, differing
from lab.compare.check.repeat import repeat, schedule
from lab.compare.check.samples import METRICS
from lab.compare.check.sides import Side, described, sides
from lab.errors import BadDataError, BusyError, LabError, MissingError, UsageError
from lab.stats.gate import LEVEL
from tests.compare.check.test_repeat import false_alarms

# The times of a process depend on its name alone, so that a check in one go and one in ten tell the same.
PROGRAM = """
label=$(basename "$1" .json)
echo "$label" >>"$STARTS"
if [ "$label" = "$KILL_AT" ]; then
  echo '{"step_ms": [1.0, 1.1]}' >"$1"  # nobody may take this for a sample
  kill -9 "$CHECK_PID"; echo $$ >outlives; exec sleep 6000
fi
[ -e fail_once ] && [ "$label" = head_02 ] && rm fail_once && echo once && exit 1
cp "times/$label.json" "$1"
"""
COMMAND = ["/bin/sh", "work.sh", "{out}"]
NOISY, QUIET = 0.2, 0.01


@pytest.fixture
def both(tmp_path, monkeypatch):
    """Two folders to run in; `noise` 0.01 is decided at the first look, 0.2 not before the last."""
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))

    def made(noise=QUIET, scale=10.5):
        for name, own in (("base", 10.0), ("head", scale)):
            (tmp_path / name / "times").mkdir(parents=True)
            (tmp_path / name / "work.sh").write_text(PROGRAM)
            for label in [
                f"{side}_{n:02}" for side in (name, f"second_{name}", "aa") for n in range(LOOKS[-1] + 1)
            ]:
                time_ms = own * (1 + noise * (zlib.crc32(label.encode()) % 9973 / 9973 - 0.5))
                text = json.dumps({"step_ms": [time_ms * (1 + 0.001 * (n % 3)) for n in range(5)]})
                (tmp_path / name / "times" / f"{label}.json").write_text(text)
        return Side("base", tmp_path / "base"), Side("head", tmp_path / "head")

    return made


def go(pair, out, *, floors=False, allowed=0.02, command=COMMAND):
    return repeat(pair, command, out, allowed, lambda _: None, with_floors=floors)


def killed(pair, out, *, writes=None, before=False, **options):
    """The check in a process of its own, killed at its n-th write of check.json (before or after it), or by
    the program itself; whether it came to its end instead."""

    def target():
        os.environ["CHECK_PID"] = str(os.getpid())
        real, seen = kept.write_atomic, []

        def write(path, data):
            seen.append(path)
            if before and len(seen) == writes:
                os.kill(os.getpid(), signal.SIGKILL)
            real(path, data)
            if len(seen) == writes:
                os.kill(os.getpid(), signal.SIGKILL)

        kept.write_atomic = write
        go(pair, out, **options)
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=target)
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode == 0


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def starts(tmp_path):
    found = Counter((tmp_path / "starts").read_text().split())
    (tmp_path / "starts").unlink()
    return {name: n for name, n in found.items() if not name.endswith("_00")}


def alike(found):
    """A verdict without what tells of breaks, and where the floors come from."""
    return msgspec.structs.replace(found, notes=[], floors=None, floors_words="")


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_every_write_it_ends_as_in_one_go_and_runs_at_most_what_was_running_again(
    tmp_path, both, before
):
    pair = both()
    whole = go(pair, tmp_path / "whole")
    assert whole.outcome == "regression" and set(starts(tmp_path).values()) == {1}
    n_first, n_all = 2 * LOOKS[0], 4 * LOOKS[0]  # with the second set
    n_writes = 1 + n_first + 1 + LOOKS[0]
    for at in (4, n_first + 2, n_writes) if before else (2, 3, n_first + 2, n_writes):
        out = tmp_path / f"{before}{at}"
        assert not killed(pair, out, writes=at, before=before)
        found = go(pair, out)
        assert alike(found) == alike(whole)
        ran = starts(tmp_path)
        again = [name for name, n in ran.items() if n > 1]
        assert len(ran) == n_all and len(again) <= before, "after its write a process is never run again"
        recorded = [one["recording"] for one in json.loads((out / FILE).read_text())["ended"]]
        assert len(recorded) == len(set(recorded)) == n_all
        assert len(json.loads((out / FILE).read_text())["looks"]) == 1


def test_killed_while_a_process_runs_what_it_wrote_is_no_sample_and_it_does_not_outlive_lab(
    tmp_path, both, monkeypatch
):
    pair = both()
    whole = go(pair, tmp_path / "whole")
    starts(tmp_path)
    for label in ("base_00", "head_02"):
        out = tmp_path / label
        monkeypatch.setenv("KILL_AT", label)
        assert not killed(pair, out)
        monkeypatch.delenv("KILL_AT")
        assert alike(go(pair, out)) == alike(whole)
        sleeper = next(tmp_path.glob("*/outlives"))
        assert not is_alive(int(sleeper.read_text())), "the process that would sleep was ended with its lab"
        sleeper.unlink()
        assert all(n == 1 + (name == label) for name, n in starts(tmp_path).items())


def test_killed_while_floors_are_measured_all_eight_are_kept_and_used(tmp_path, both, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    pair = both()
    whole = go(pair, tmp_path / "whole", floors=True)
    starts(tmp_path)
    for at in (3, 10):  # the second process, the floors themselves
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / f"state{at}"))
        out = tmp_path / str(at)
        assert not killed(pair, out, writes=at, floors=True)
        found = go(pair, out, floors=True)
        assert alike(found) == alike(whole) and found.floors["processes"] == 8
        assert set(starts(tmp_path).values()) == {1}
    floors = tmp_path / "10" / "floors.json"
    floors.write_text(floors.read_text() + " ")
    with pytest.raises(BadDataError, match="floors were changed"):
        go(pair, tmp_path / "10", floors=True)


def test_a_look_that_was_made_is_not_made_again_and_the_last_one_ends_for_good(tmp_path, both, monkeypatch):
    pair = both(NOISY, 10.0)
    from lab.compare.check import repeat as module

    seen = []
    real = module.judge
    monkeypatch.setattr(module, "judge", lambda base, *a, **k: seen.append(len(base)) or real(base, *a, **k))
    out = tmp_path / "out"
    assert not killed(pair, out, writes=1 + 6 + 1 + 2)  # after the first look and one more round
    assert [one["processes"] for one in json.loads((out / FILE).read_text())["looks"]] == [3]
    found = go(pair, out)
    assert seen == [6, 12] and found.outcome == "undecided"
    ran = starts(tmp_path)
    again = go(pair, out)
    assert alike(again) == alike(found) and not (tmp_path / "starts").exists(), "nothing runs any more"
    assert seen == [6, 12, 12] and len(ran) == 24
    assert [one["processes"] for one in json.loads((out / FILE).read_text())["looks"]] == [3, 6, 12]


def test_breaks_are_told_and_too_many_within_rounds_end_the_check(tmp_path, both):
    pair = both(NOISY, 10.0)
    out = tmp_path / "out"
    killed(pair, out, writes=1 + 2)  # between rounds
    killed(pair, out, writes=1 + 1)  # its break, and base_02 or head_02
    found = json.loads((out / FILE).read_text())["breaks"]
    assert [(one["at"], one["cut"]) for one in found] == [("base/base_02.json", False)]
    assert not killed(pair, out, writes=2)
    state = json.loads((out / FILE).read_text())
    assert [one["cut"] for one in state["breaks"]] == [False, True]
    notes = go(pair, out).notes
    assert any(one.startswith("resumed before head/head_02.json after") for one in notes)
    assert any("between the two processes of a round" in one for one in notes)
    assert any("BASE and HEAD: no git commit" in one for one in notes)
    cut = [{"at": "base/base_01.json", "seconds": 9.0, "cut": True}]
    (out / FILE).write_text(json.dumps({**state, "breaks": [*state["breaks"], *cut], "looks": []}))
    with pytest.raises(UsageError, match="no longer interleaved"):
        go(pair, out)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.command.append("-v"), "command was a b, is a b -v"),
        (lambda s: s.base.update(commit="c2"), "BASE commit was c1, is c2"),
        (lambda s: s.head.update({"image id": "sha256:2"}), "HEAD image id was sha256:1, is sha256:2"),
        (lambda s: s.machine.update(gpus="B200"), "machine gpus was H200, is B200"),
        (lambda s: s.environment.pop("CUDA_X"), "environment CUDA_X was 1, is not set"),
        (lambda s: s.environment.update(PYTHONPATH="/x"), "environment PYTHONPATH was not set, is /x"),
        (lambda s: s.looks.append(24), "planned looks was 3 6 12, is 3 6 12 24"),
        (lambda s: setattr(s, "max_slowdown", 0.05), "--max-slowdown was 0.02, is 0.05"),
        (lambda s: setattr(s, "floors", False), "A/A floors was on, is off"),
    ],
)
def test_whatever_is_compared_in_another_way_is_refused_in_words(tmp_path, change, words):
    def asked():
        return Asked(
            command=["a", "b"],
            base={"commit": "c1"},
            head={"image": "x", "image id": "sha256:1"},
            machine={"gpus": "H200"},
            environment={"CUDA_X": "1"},
            looks=[3, 6, 12],
            max_slowdown=0.02,
            floors=True,
        )

    assert differing(asked(), asked()) == []
    Progress.begin(tmp_path, asked())
    other = asked()
    change(other)
    with pytest.raises(UsageError, match="compared something else") as caught:
        Progress.begin(tmp_path, other)
    assert words in caught.value.problem


def test_the_real_command_refuses_another_program_and_another_threshold(tmp_path, both):
    pair = both()
    out = tmp_path / "out"
    go(pair, out)
    with pytest.raises(UsageError, match=r"command was .*, is .* extra"):
        go(pair, out, command=[*COMMAND, "extra"])
    with pytest.raises(UsageError, match=r"--max-slowdown was 0\.02, is 0\.1"):
        go(pair, out, allowed=0.1)
    with pytest.raises(UsageError, match=r"HEAD folder was .*head, is .*base"):
        go((pair[0], Side("head", pair[0].folder)), out)


def test_a_side_is_its_commit_and_a_folder_what_git_knows_of_it(tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    (tmp_path / "x").write_bytes(b"caf\xe9")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    clean = described(Side("base", tmp_path))
    assert clean["changes"] == "none" and len(clean["commit"]) == 40
    (tmp_path / "x").write_bytes(b"caf\xe9\xff")
    dirty = described(Side("base", tmp_path))
    assert dirty["commit"] == clean["commit"] and dirty["changes"] != "none"
    monkeypatch.chdir(tmp_path)
    with sides("HEAD", "HEAD") as (base, _):
        assert described(base) == {"commit": clean["commit"]}, "the worktree's folder is another each time"


def test_a_folder_of_which_git_cannot_tell_the_changes_is_not_taken_for_a_clean_one(tmp_path):
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert described(Side("base", tmp_path))["changes"] == "none"
    (tmp_path / ".git" / "index").write_bytes(b"torn")
    with pytest.raises(BadDataError, match=r"git cannot say what is changed: .*index"):
        described(Side("base", tmp_path))


def test_recordings_that_were_changed_removed_or_of_no_check_are_refused(tmp_path, both):
    pair = both()
    out = tmp_path / "out"
    killed(pair, out, writes=4)
    recording = out / "base" / "base_01.json"
    text = recording.read_text()
    recording.write_text(text.replace("1", "2"))
    with pytest.raises(BadDataError, match="changed or removed"):
        go(pair, out)
    recording.unlink()
    with pytest.raises(BadDataError, match="changed or removed"):
        go(pair, out)
    recording.write_text(text)
    (out / FILE).unlink()
    with pytest.raises(BusyError, match="recordings of earlier processes"):
        go(pair, out)
    for wrong in ("{}", "not json", '{"asked": 1}', text):
        (out / FILE).write_text(wrong)
        with pytest.raises(BadDataError, match="not the progress of a check"):
            go(pair, out)


def test_a_process_that_failed_runs_again_and_the_verdict_tells_of_it(tmp_path, both):
    pair = both()
    out = tmp_path / "out"
    (tmp_path / "head" / "fail_once").touch()
    with pytest.raises(MissingError, match="once"):
        go(pair, out)
    found = go(pair, out)
    assert found.outcome == "regression"
    assert any("head, process 2, ended with 1: once; it was run again" in one for one in found.notes)
    (tmp_path / "head" / "times" / "head_01.json").write_text('{"steps": [1.0]}')
    with pytest.raises(LabError):
        go(pair, tmp_path / "unreadable")
    failed = json.loads((tmp_path / "unreadable" / FILE).read_text())
    assert "head" in failed["failed"][0] and "head/head_01.json" not in json.dumps(failed["ended"])


def shifted(share_cut, spread, pairs=6000):
    """(2, pairs, 12) factors of a machine that is another one after each break; breaks part rounds."""
    rng = np.random.default_rng(9)
    state, found = rng.normal(0, spread, pairs), np.zeros((2, pairs, LOOKS[-1]))
    for turn, name in schedule()[2:]:
        second = name == ("head" if turn % 2 == 0 else "base")
        cut = (rng.random(pairs) < share_cut) & second
        state = np.where(cut, rng.normal(0, spread, pairs), state)
        found[int(name == "head"), :, turn - 1] = state
    return np.exp(found)


@pytest.mark.parametrize("spread", [0.05, 0.2])
def test_breaks_that_part_few_rounds_keep_the_false_alarms_and_many_do_not(spread):
    level = 1 - (1 - LEVEL) / len(METRICS)
    assert MOST_CUT >= 0.3
    assert false_alarms(level, shifts=shifted(0.3, spread)) <= 0.0035 * 6000
    assert false_alarms(level, shifts=shifted(1.0, spread)) > 0.008 * 6000


def test_two_checks_in_one_folder_at_a_time_are_refused(tmp_path, both):
    pair = both()
    (tmp_path / "base" / "work.sh").write_text("sleep 600")
    words = f"""
from pathlib import Path
from lab.compare.check.repeat import repeat
from lab.compare.check.sides import Side
pair = Side("base", Path({str(pair[0].folder)!r})), Side("head", Path({str(pair[1].folder)!r}))
repeat(pair, {COMMAND!r}, Path({str(tmp_path / "out")!r}), 0.02, lambda _: None, with_floors=False)
"""
    first = subprocess.Popen([sys.executable, "-c", words])
    try:
        while not Path(tmp_path / "out" / "warm-up" / "base_00.log").exists():
            assert first.poll() is None
            time.sleep(0.05)
        with pytest.raises(BusyError, match="another lab check runs"):
            go(pair, tmp_path / "out")
    finally:
        first.kill()
        first.wait()
