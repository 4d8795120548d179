"""A run's folder says what has run, what is still to do, and what each step left there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.core import manifest as manifests
from lab.core import run as run_module
from lab.core.manifest import FileRecord, StepRecord
from lab.core.run import Run
from lab.core.run_folder import home_of, list_runs, new_root
from lab.core.step import Outcome, Status, Step, check_steps, utc_now
from lab.errors import BadDataError, BusyError, ConfigError, LabError, StorageError, UsageError
from tests.core.test_manifest import a_manifest, a_run

OK = Outcome(status=Status.ok, exit_code=0)


def a_step(name: str, **fields) -> Step:
    return Step(**{"name": name, "argv": ("true",), "folder": name, **fields})


def records(*names: str) -> list[StepRecord]:
    return [StepRecord(step=a_step(name), fingerprint="f") for name in names]


def on_disk(run: Run) -> list[StepRecord]:
    return manifests.load(run.root / "manifest.json").steps


def folders(synced: list[tuple[str, str]]) -> list[str]:
    return [path for what, path in synced if what == "sync" and os.path.isdir(path)]


# Making and opening


def test_a_new_run_holds_its_inputs_and_its_planned_steps(tmp_path):
    inputs = {"config.toml": "µ = 1\n", "inputs/cells.json": "[]"}
    run = Run.create(tmp_path / "r", a_manifest(a_step("a"), a_step("b")), inputs=inputs)
    for name, text in inputs.items():
        assert (tmp_path / "r" / name).read_bytes() == text.encode()
    assert [(r.step.name, r.attempts, r.outcome) for r in on_disk(run)] == [("a", 0, None), ("b", 0, None)]
    assert (run.root, run.manifest.id) == (tmp_path / "r", "r")


def test_a_run_in_the_way_is_named_with_the_flags_that_help(tmp_path):
    a_run(tmp_path / "r")
    with pytest.raises(UsageError) as caught:
        Run.create(tmp_path / "r", a_manifest(), inputs={"config.toml": "x"})
    assert caught.value.location == str(tmp_path / "r")
    assert f"--resume {tmp_path / 'r'}" in caught.value.fix and "--output-dir" in caught.value.fix
    assert not (tmp_path / "r" / "config.toml").exists()


@pytest.mark.parametrize(
    "twins, complaint",
    [
        ((a_step("a"), a_step("a", folder="b")), "name 'a'"),
        ((a_step("a"), a_step("b", folder="a")), "folder 'a'"),
    ],
)
def test_steps_that_would_overwrite_each_other_are_refused_before_anything_is_made(
    tmp_path, twins, complaint
):
    with pytest.raises(ConfigError, match=complaint):
        Run.create(tmp_path / "r", a_manifest(*twins))
    assert not (tmp_path / "r").exists()


def test_a_recorded_run_whose_steps_overwrite_each_other_is_bad_data(tmp_path):
    manifests.save(a_manifest(a_step("a"), a_step("a", folder="b")), tmp_path / "manifest.json")
    with pytest.raises(BadDataError, match="name 'a'") as caught:
        Run.open(tmp_path)
    assert caught.value.location == str(tmp_path / "manifest.json")


def test_the_first_of_several_shared_names_is_named():
    names = ("b", "c", "b", "c", "a")
    with pytest.raises(ConfigError, match="name 'b'"):
        check_steps([a_step(name, folder=f"f{n}") for n, name in enumerate(names)])
    check_steps([])
    check_steps([a_step("a"), a_step("b")])


# Extending


def extended(tmp_path: Path, inputs: dict[str, str], *names: str) -> Run:
    run = Run.create(tmp_path / "r", a_manifest(a_step("a")), inputs={"config.toml": "µ = 1"})
    run.begin(run.manifest.steps[0].step)
    run.extend(records(*names), inputs=inputs)
    return run


def test_an_extended_run_keeps_what_it_has_and_gains_the_rest(tmp_path):
    run = extended(tmp_path, {"config.toml": "µ = 1"}, "a", "b", "c")
    assert [(r.step.name, r.attempts) for r in on_disk(run)] == [("a", 1), ("b", 0), ("c", 0)]
    assert run.manifest.steps == on_disk(run)


@pytest.mark.parametrize("inputs", [{"config.toml": "µ = 2"}, {"other.toml": "x"}])
def test_a_run_of_other_inputs_is_not_extended(tmp_path, inputs):
    (name,) = inputs
    with pytest.raises(ConfigError, match=name) as caught:
        extended(tmp_path, inputs, "b")
    assert caught.value.location == str(tmp_path / "r" / name) and "--output-dir" in caught.value.fix
    assert [r.step.name for r in Run.open(tmp_path / "r").manifest.steps] == ["a"]


def test_a_new_step_in_the_folder_of_an_old_one_is_refused(tmp_path):
    run = a_run(tmp_path, a_step("a"))
    with pytest.raises(ConfigError, match="folder 'a'"):
        run.extend([StepRecord(step=a_step("b", folder="a"), fingerprint="f")], inputs={})
    assert [r.step.name for r in run.manifest.steps] == [r.step.name for r in on_disk(run)] == ["a"]


# The driver


def test_a_second_driver_is_told_which_run_is_busy(tmp_path):
    run = a_run(tmp_path)
    with run.locked(), pytest.raises(BusyError, match="another lab process") as caught, run.locked():
        pass
    assert Path(caught.value.location).parent == tmp_path and "Ctrl-C" in caught.value.fix


@pytest.fixture
def driver(monkeypatch):
    """A driver of pid 77 that ends `ends_after` half seconds after its signal, by a clock of its own."""
    state = SimpleNamespace(now=100.0, slept=[], killed=[], ends_after=None, manifest=None)

    def sleep(seconds):
        state.slept.append(seconds)
        state.now += 0.5

    def driver_pid(run):
        if state.ends_after is None or len(state.slept) >= state.ends_after:
            return None
        return 77

    clock = SimpleNamespace(monotonic=lambda: state.now, sleep=sleep)
    monkeypatch.setattr("lab.core.run.time", clock)
    monkeypatch.setattr(Run, "driver_pid", driver_pid)
    monkeypatch.setattr(os, "kill", lambda *args: state.killed.append(args))
    return state


def test_without_a_driver_nothing_is_signalled(tmp_path, driver):
    assert a_run(tmp_path).interrupt_driver() is None
    assert not driver.killed


@pytest.mark.parametrize("halves, wait", [(1, {}), (121, {}), (5, {"wait_s": 2.0})])
def test_a_driver_is_interrupted_and_waited_for(tmp_path, driver, halves, wait):
    """The longest waits end just within the limit: 60 s, or the one given."""
    run = a_run(tmp_path)
    driver.ends_after = halves
    other = Run.open(tmp_path)
    other.manifest.versions["torch"] = "of the driver"
    other.save()
    assert run.interrupt_driver(**wait) == 77
    assert driver.killed == [(77, signal.SIGINT)]
    assert len(driver.slept) == halves and all(0 < s <= 0.5 for s in driver.slept)
    assert run.manifest.versions == {"torch": "of the driver"}  # read again: the driver has written it


@pytest.mark.parametrize("halves, wait, limit", [(122, {}, "60 s"), (6, {"wait_s": 2.0}, "2 s")])
def test_a_driver_that_does_not_end_is_named(tmp_path, driver, halves, wait, limit):
    run = a_run(tmp_path)
    driver.ends_after = halves
    with pytest.raises(BusyError, match=f"pid 77.* {limit}") as caught:
        run.interrupt_driver(**wait)
    assert (caught.value.location, caught.value.fix) == (str(tmp_path), "kill 77")


def test_the_driver_of_another_user_is_named_and_the_run_left_alone(tmp_path, driver, monkeypatch):
    driver.ends_after = 1

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(BusyError, match=r"pid 77.* is another user's"):
        a_run(tmp_path).interrupt_driver()


def test_another_driver_that_takes_over_is_not_waited_for(tmp_path, driver, monkeypatch):
    pids = iter([77, 78, 78, 78])
    monkeypatch.setattr(Run, "driver_pid", lambda run: next(pids))
    assert a_run(tmp_path).interrupt_driver() == 77 and not driver.slept


# Steps


def test_steps_that_began_and_never_ended_are_open(tmp_path):
    steps = [a_step(name) for name in ("never", "open", "ended")]
    run = a_run(tmp_path, *steps)
    for step in steps[1:]:
        run.begin(step)
    run.finish(steps[2], OK)
    assert run.open_steps() == [steps[1]]


def test_a_step_that_begins_is_on_disk_as_begun_without_a_result(tmp_path):
    run, step = a_run(tmp_path, a_step("a")), a_step("a")
    for attempt in (1, 2):
        run.begin(step)
        (record,) = on_disk(run)
        assert (record.attempts, record.outcome, record.files) == (attempt, None, {})
        (run.folder(step) / "data").write_text("x")
        run.finish(step, OK)
        (record,) = on_disk(run)
        assert (record.attempts, record.outcome, list(record.files)) == (attempt, OK, ["a/data"])


def test_steps_that_began_and_ended_survive_a_power_cut(tmp_path, synced):
    run, step = a_run(tmp_path, a_step("a")), a_step("a")
    assert folders(synced) == [str(tmp_path)]
    run.begin(step)
    assert folders(synced) == [str(tmp_path)] * 2
    run.finish(step, OK)
    assert folders(synced) == [str(tmp_path)] * 3


def test_each_attempt_keeps_its_own_output(tmp_path):
    run, step = a_run(tmp_path, a_step("a")), a_step("a")
    for words in ("first", "second", "third"):
        run.begin(step)
        assert not run.log(step).exists()
        run.log(step).write_text(words)
    kept = {path.name: path.read_text() for path in run.folder(step).iterdir()}
    assert kept == {
        "run_output.attempt1.log": "first",
        "run_output.attempt2.log": "second",
        "run_output.log": "third",
    }


def test_output_that_was_there_before_the_first_attempt_is_not_one(tmp_path):
    run, step = a_run(tmp_path, a_step("a")), a_step("a")
    run.folder(step).mkdir()
    run.log(step).write_text("not ours")
    run.begin(step)
    assert [path.name for path in run.folder(step).iterdir()] == ["run_output.log"]


def test_an_attempt_without_output_leaves_none(tmp_path):
    run, step = a_run(tmp_path, a_step("a")), a_step("a")
    run.begin(step)
    run.begin(step)
    assert list(run.folder(step).iterdir()) == []


def test_output_that_cannot_be_kept_is_an_error_with_its_path(tmp_path):
    run, step = a_run(tmp_path, a_step("a")), a_step("a")
    run.begin(step)
    run.log(step).write_text("first")
    (run.folder(step) / "run_output.attempt1.log").mkdir()
    with pytest.raises(StorageError) as caught:
        run.begin(step)
    assert caught.value.location == str(run.log(step))


def test_files_of_a_step_are_recorded_with_size_and_digest(tmp_path):
    run, step = a_run(tmp_path, a_step("a")), a_step("a")
    run.begin(step)
    for name, text in {"b": "12", "a": "", "sub/c": "123"}.items():
        path = run.folder(step) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    run.finish(step, OK)
    recorded = run.manifest.steps[0].files
    assert list(recorded) == ["a/a", "a/b", "a/sub/c"]
    assert recorded["a/b"] == FileRecord(2, hashlib.sha256(b"12").hexdigest())
    assert [file.size_bytes for file in recorded.values()] == [0, 2, 3]


def test_what_is_not_a_result_of_the_step_is_not_recorded(tmp_path):
    root, inner = a_step("root", folder="."), a_step("inner", folder="x/inner")
    run = a_run(tmp_path, root, inner)
    for name in (
        ".hidden",
        "manifest.json",
        "link",
        "tables/t.csv",
        "figures/f.png",
        "x/inner/data",
        "x/mine",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "link":
            path.symlink_to(tmp_path / "manifest.json")
        elif name != "manifest.json":
            path.write_text("x")
    os.mkfifo(tmp_path / "pipe")
    run.finish(root, OK)
    run.finish(inner, OK)
    assert [list(record.files) for record in run.manifest.steps] == [["x/mine"], ["x/inner/data"]]


def test_expected_files_count_only_with_content(tmp_path):
    patterns = ("full*.json", "empty.json", "folder", "none.json", "*/deep.json")
    step = a_step("a", folder=".", expects=patterns)
    run = a_run(tmp_path, step)
    (tmp_path / "full_0.json").write_text("")
    (tmp_path / "full_1.json").write_text("x")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "deep.json").write_text("{}")
    assert run.missing(step) == ["empty.json", "folder", "none.json"]
    assert run.missing(a_step("a")) == []


@pytest.mark.parametrize("status", Status)
def test_only_an_ok_or_skipped_step_is_done(tmp_path, status):
    run, step = a_run(tmp_path, a_step("a")), a_step("a")
    run.record(step).outcome = Outcome(status=status)
    assert run.pending() == ([] if status in (Status.ok, Status.skipped) else [step])


@pytest.mark.parametrize("damage", ["shrunk", "grown", "gone"])
def test_a_step_whose_file_changed_in_size_runs_again(tmp_path, damage):
    run, step = a_run(tmp_path, a_step("a")), a_step("a")
    run.begin(step)
    files = [run.folder(step) / name for name in ("one", "two")]
    for path in files:
        path.write_text("12")
    run.finish(step, OK)
    assert run.pending() == []
    if damage == "gone":
        files[1].unlink()
    else:
        files[1].write_text("1" if damage == "shrunk" else "123")
    assert run.pending() == [step]


# Names and lists


def test_a_new_run_is_named_by_room_and_time():
    root = new_root("sweep", Path("experiments"), datetime(2026, 1, 2, 3, 4, 5))
    assert root == Path("experiments/sweep_20260102_030405")


def test_without_a_time_it_is_the_present_one(tmp_path):
    stamp = datetime.strptime(new_root("nsys", tmp_path).name, "nsys_%Y%m%d_%H%M%S")
    assert abs(datetime.now() - stamp) < timedelta(hours=1)


def test_runs_of_one_second_are_numbered(tmp_path):
    now, names = datetime(2026, 1, 2, 3, 4, 5), []
    for _ in range(100):
        root = new_root("r", tmp_path, now)
        root.mkdir(exist_ok=True)
        names.append(root.name.removeprefix("r_20260102_030405"))
    assert names == ["", *(f"_{n}" for n in range(2, 100)), "_99"]  # the hundredth is refused as a run


def test_runs_are_listed_by_name_and_other_folders_are_not(tmp_path):
    for name in ("b", "a", "c"):
        a_run(tmp_path / name)
    (tmp_path / "no_run").mkdir()
    (tmp_path / "c" / "manifest.json").write_text("{")
    found = list_runs(tmp_path)
    assert [path.name for path, _ in found] == ["a", "b", "c"]
    assert found[0][1] == Run.open(tmp_path / "a").manifest
    assert isinstance(found[2][1], BadDataError)
    assert list_runs(tmp_path / "none") == []


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path):
    for name in ("a", "deep", "folder", "leaves", "ok"):
        a_run(tmp_path / name)
    manifest = (tmp_path / "a" / "manifest.json").read_text()
    (tmp_path / "a" / "manifest.json").write_bytes(b"")
    nested = "[" * 100_000 + "]" * 100_000
    (tmp_path / "deep" / "manifest.json").write_text(manifest.replace("{", f'{{"x": {nested},', 1))
    (tmp_path / "folder" / "manifest.json").unlink()
    (tmp_path / "folder" / "manifest.json").mkdir()
    whole = json.loads(manifest)
    whole["steps"][0]["step"]["folder"] = "../../etc"
    (tmp_path / "leaves" / "manifest.json").write_text(json.dumps(whole))
    found = {path.name: one for path, one in list_runs(tmp_path)}
    assert [name for name, one in found.items() if isinstance(one, LabError)] == [
        "a",
        "deep",
        "folder",
        "leaves",
    ]
    assert "path '../../etc' leaves the run folder" in found["leaves"].problem
    assert isinstance(found["leaves"], BadDataError) and isinstance(found["deep"], BadDataError)


def test_times_are_utc_with_milliseconds():
    text = utc_now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", text)
    assert abs(datetime.now(timezone.utc) - datetime.fromisoformat(text)) < timedelta(minutes=10)


def test_an_analysis_stays_in_a_run_and_leaves_other_folders_alone(tmp_path, monkeypatch):
    a_run(tmp_path / "r")
    assert home_of(tmp_path / "r") == tmp_path / "r"
    assert home_of(tmp_path / "recording") == Path("experiments/recording_analysis")
    monkeypatch.chdir(tmp_path)
    assert home_of(Path(".")) == Path(f"experiments/{tmp_path.name}_analysis")


def test_a_folder_that_is_not_labs_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "people" / "me"))
    (tmp_path / "people" / "me").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.txt").write_text("mine")
    for folder, words in (
        ("/", "not the root folder"),
        (tmp_path / "people" / "me", "whole home"),
        (tmp_path / "people", "whole home"),
        (tmp_path / "data", "files that no run of lab made"),
    ):
        before = sorted(Path(folder).iterdir())
        with pytest.raises(UsageError, match=words):
            Run.create(Path(folder), a_manifest(), inputs={"config.yaml": "x"})
        assert sorted(Path(folder).iterdir()) == before
    (tmp_path / "empty").mkdir()
    assert Run.create(tmp_path / "empty", a_manifest()).root.is_dir()


def ended(tmp_path, **files):
    """A run whose step left these files, a minute ago."""
    run = a_run(tmp_path / "r")
    step = run.manifest.steps[0].step
    run.begin(step)
    for name, text in files.items():
        (run.folder(step) / name).write_text(text)
    before = datetime.now(timezone.utc) - timedelta(seconds=61)
    run.finish(step, Outcome(status=Status.ok, seconds=1.0, started_utc=before.isoformat()))
    return Run.open(tmp_path / "r")


def test_a_file_that_is_not_as_its_step_left_it_is_named(tmp_path):
    run = ended(tmp_path, same="a", touched="b", longer="c", other="d", gone="e", linked="f")
    folder = tmp_path / "r" / "a"
    (folder / "touched").write_text("b")
    (folder / "longer").write_text("cc")
    (folder / "other").write_text("x")
    (folder / "gone").unlink()
    (folder / "linked").unlink()
    (tmp_path / "outside").write_text("f")
    (folder / "linked").symlink_to(tmp_path / "outside")
    assert run.changed() == ["a/linked", "a/longer", "a/other"]


def test_names_that_lead_out_of_a_run_are_not_as_recorded(tmp_path):
    run = ended(tmp_path, same="a")
    (tmp_path / "outside").write_text("secret")
    run.manifest.steps[0].files = {name: FileRecord(1, "0" * 64) for name in ("../outside", "/etc/passwd")}
    assert run.changed() == ["../outside", "/etc/passwd"]


def test_of_two_that_make_a_run_in_one_folder_at_once_one_is_refused(tmp_path, monkeypatch):
    """Each has seen an empty folder before the other writes its manifest."""
    root, second = tmp_path / "run", a_manifest()
    second.room = "nan"
    make_folder = run_module.make_folder

    def made_by_two(path):
        monkeypatch.setattr(run_module, "make_folder", make_folder)
        make_folder(path)
        Run.create(root, second, inputs={"train.yaml": "second"})

    monkeypatch.setattr(run_module, "make_folder", made_by_two)
    with pytest.raises(UsageError, match="already holds a run"):
        Run.create(root, a_manifest(), inputs={"train.yaml": "first"})
    assert Run.open(root).manifest.room == "nan" and (root / "train.yaml").read_text() == "second"
