"""Steps import the lab that the manifest names: two checkouts, edits meanwhile, older runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from lab.core import manifest as manifests
from lab.core import snapshot
from lab.core.content import content_sha256
from lab.core.manifest import MANIFEST, ImageRecord, Lab
from lab.core.options import Options
from lab.core.plan import Plan
from lab.core.provenance import lab_with_content
from lab.core.run import IMPORTED, LAB, Run
from lab.core.snapshot import imports_lab, package_folder, step_env, take_snapshot
from lab.core.step import Outcome, Status, Step
from lab.driver.comparable import checked, same_images, same_lab
from lab.driver.drive import open_or_create, resume
from lab.errors import BusyError, StorageError, UsageError, storage_error
from tests.conftest import ROOT, small_disk
from tests.core.test_manifest import a_manifest
from tests.images.made import copy_tree

WHICH = ("python", "-m", "lab.core.content")  # prints which lab the step found
OURS = Lab(version="1", commit="a" * 40, dirty=False, sha256="1" * 64, origin="checkout", used="copy")

# A driver in its own process: python -c puts its folder first on sys.path, as `python -m lab` does.
DRIVER = """
    import sys
    from pathlib import Path
    from lab.core.options import Options
    from lab.core.plan import Experiment, Plan
    from lab.core.step import Step
    from lab.driver.drive import drive
    steps = [Step(name=f"s{i}", argv=eval(text), folder=f"s{i}") for i, text in enumerate(sys.argv[2:])]
    options = Options(engine="local", gpus="none", analysis="none", output_dir=Path(sys.argv[1]))
    drive(Experiment("semicrf", lambda site, root: Plan(steps=tuple(steps)), options))
"""


def drive_in(tree: Path, out: Path, *steps: tuple[str, ...], code: int = 0, **env: str) -> str:
    """Run these steps with the lab of `tree`, which is not installed; another one is."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(out), *map(repr, steps)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": "", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def another_checkout(folder: Path) -> Path:
    copy_tree(ROOT, folder)
    with (folder / "lab" / "core" / "words.py").open("a") as file:
        file.write("\n# edited\n")
    return folder


def imported(out: Path, step: str = "s0") -> str:
    """What the step printed; the lines before are runpy's, for a module that the check has loaded too."""
    return json.loads((out / step / "run_output.log").read_text().splitlines()[-1])["sha256"]


def test_steps_import_the_checkout_that_drives_them_and_not_the_installed_lab(tmp_path):
    tree = another_checkout(tmp_path / "tree")
    drive_in(tree, tmp_path / "run", WHICH)
    manifest, there = Run.open(tmp_path / "run").manifest, content_sha256(tree / "lab")
    assert there != content_sha256(package_folder())
    assert imported(tmp_path / "run") == manifest.lab.sha256 == manifest.steps[0].lab_sha256 == there
    assert (manifest.lab.origin, manifest.lab.used) == ("checkout", "copy")


def test_an_edit_while_the_run_goes_on_is_not_run(tmp_path):
    tree = another_checkout(tmp_path / "tree")
    before = content_sha256(tree / "lab")
    edit = f"open({str(tree / 'lab/core/words.py')!r}, 'a').write('raise SystemExit(3)')"
    drive_in(tree, tmp_path / "run", ("python", "-c", edit), WHICH)
    assert imported(tmp_path / "run", "s1") == before != content_sha256(tree / "lab")


def test_a_step_whose_copy_was_changed_does_not_run(tmp_path):
    tree = another_checkout(tmp_path / "tree")
    code = "import glob; open(glob.glob('.lab/*/lab/core/words.py')[0], 'a').write('# changed')"
    told = drive_in(tree, tmp_path / "run", ("python", "-c", code), WHICH, code=1)
    assert "imports another lab than the one that its run names" in told
    assert Run.open(tmp_path / "run").manifest.steps[1].outcome.status is Status.failed


def test_an_installed_lab_is_copied_with_its_images_and_names_no_commit(tmp_path):
    site = tmp_path / "site"
    shutil.copytree(ROOT / "lab", site / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "images", site / "lab" / "_images")
    drive_in(site, tmp_path / "run", WHICH, LAB_COMMIT="0" * 40)
    made = Run.open(tmp_path / "run").manifest.lab
    assert (made.origin, made.commit, made.dirty) == ("installed", None, None)
    assert made.sha256 == imported(tmp_path / "run") == content_sha256(ROOT / "lab")
    (copy,) = (tmp_path / "run" / LAB).iterdir()
    assert (copy / "lab" / "_images" / "cpu" / "image.toml").is_file()


def test_a_variable_of_the_user_for_other_modules_still_counts(tmp_path):
    (tmp_path / "mine.py").write_text("print('mine')")
    drive_in(ROOT, tmp_path / "run", ("python", "-c", "import mine, lab"), PYTHONPATH=str(tmp_path))
    assert (tmp_path / "run/s0/run_output.log").read_text() == "mine\n"


def test_a_folder_named_lab_in_the_run_folder_is_noticed(tmp_path):
    """`python -m` puts the run folder before everything else."""
    code = (
        "import os; os.mkdir('lab'); open('lab/__init__.py', 'w'); open('lab/work.py', 'w').write('print(1)')"
    )
    told = drive_in(ROOT, tmp_path / "run", ("python", "-c", code), ("python", "-m", "lab.work"), code=1)
    assert "did not report which lab it imported" in told


def test_a_run_is_not_continued_by_another_lab(tmp_path):
    tree, run = another_checkout(tmp_path / "tree"), tmp_path / "run"
    drive_in(tree, run, WHICH, ("python", "-c", "raise SystemExit(1)"), code=1)
    with pytest.raises(UsageError, match="began with another lab"):
        resume(run, Options(analysis="none", quiet=True))
    assert Run.open(run).manifest.steps[1].attempts == 1


def test_a_run_that_only_another_lab_planned_gets_no_steps_from_this_one(tmp_path):
    other = msgspec.structs.replace(OURS, sha256="2" * 64)
    run = Run.create(tmp_path / "run", msgspec.structs.replace(a_manifest(), lab=OURS))
    same_lab(run, OURS)
    with pytest.raises(UsageError) as caught:
        same_lab(run, other)
    assert "content 111111111111 then" in str(caught.value) and "content 222222222222 now" in str(
        caught.value
    )


def test_steps_of_another_lab_are_not_added_to_a_run(tmp_path):
    planned = Run.create(tmp_path / "run", msgspec.structs.replace(a_manifest(), lab=OURS))
    options = Options(skip_existing=True)
    more = msgspec.structs.replace(
        a_manifest(Step(name="s", argv=WHICH)), lab=msgspec.structs.replace(OURS, sha256="2" * 64)
    )
    with pytest.raises(UsageError, match="began with another lab"):
        open_or_create(planned.root, more, Plan(steps=()), options)
    assert Run.open(planned.root).manifest.steps == []
    more.lab = OURS
    assert len(open_or_create(planned.root, more, Plan(steps=()), options).manifest.steps) == 1


def test_a_run_folder_from_which_python_cannot_import_is_refused_before_it_is_made(tmp_path):
    told = drive_in(ROOT, tmp_path / "a:b", WHICH, code=1)
    assert "holds a colon" in told and not (tmp_path / "a:b").exists()


# Runs of before lab's content was recorded


def an_old_run(folder: Path, **lab: object) -> Run:
    """A manifest as it was written then: without any of the new fields."""
    step = Step(name="s0", argv=WHICH, folder="s0")
    run = Run.create(folder, a_manifest(step))
    text = json.loads((folder / MANIFEST).read_bytes())
    text["lab"] = {"version": "0.1.0", "commit": None, "dirty": None, **lab}
    del text["engine_version"], text["analysis_image"], text["steps"][0]["lab_sha256"]
    (folder / MANIFEST).write_text(json.dumps(text))
    return Run.open(run.root)


def test_a_manifest_of_before_is_read_and_says_unknown(tmp_path):
    run = an_old_run(tmp_path / "run", commit="a" * 40, dirty=False)
    assert (run.manifest.lab.sha256, run.manifest.lab.used, run.manifest.steps[0].lab_sha256) == (None,) * 3
    assert manifests.load(run.root / MANIFEST).analysis_image is None
    assert step_env(run, run.manifest.steps[0].step, "/out") == {}


def test_a_run_of_before_the_content_was_recorded_is_not_continued(tmp_path):
    run = an_old_run(tmp_path / "run", commit="a" * 40, dirty=False)
    with pytest.raises(UsageError, match="began with another lab"):
        same_lab(run, OURS)


# What a step says of itself


@pytest.mark.parametrize(
    ("argv", "does"),
    [
        (("python", "-m", "lab.rooms.x"), True),
        (("python", "-m", "lab", "analyze"), True),
        (("python", "-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "lab.rooms.x"), True),
        (("python", "-m", "laboratory"), False),
        (("python", "-c", "print(1)"), False),
        (("sh", "lab.sh"), False),
    ],
)
def test_a_step_that_runs_a_module_of_lab_must_report_it(argv, does):
    assert imports_lab(Step(name="s", argv=argv)) is does


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        (OURS.sha256, Status.ok, ""),
        ("2" * 64, Status.failed, "imported another lab: content 222222222222; the run names 1, commit aaaa"),
        (None, Status.failed, "did not report"),
    ],
)
def test_a_good_step_with_another_lab_is_a_failure_that_names_both(tmp_path, said, status, reason):
    step = Step(name="s", argv=WHICH, folder="s")
    run = Run.create(tmp_path / "run", msgspec.structs.replace(a_manifest(step), lab=OURS))
    run.begin(step)
    if said:
        (run.folder(step) / IMPORTED).write_text(said)
    outcome = checked(run, step, Outcome(status=Status.ok))
    assert outcome.status is status and reason in outcome.reason
    crashed = Outcome(status=Status.oom, reason="memory")
    assert checked(run, step, crashed) is crashed


def test_a_report_of_an_earlier_attempt_is_not_taken_for_this_one(tmp_path):
    step = Step(name="s", argv=WHICH, folder="s")
    run = Run.create(tmp_path / "run", msgspec.structs.replace(a_manifest(step), lab=OURS))
    run.begin(step)
    (run.folder(step) / IMPORTED).write_text(str(OURS.sha256))
    run.finish(step, Outcome(status=Status.ok))
    assert Run.open(run.root).manifest.steps[0].lab_sha256 == OURS.sha256
    run.begin(step)
    assert run.imported(step) is None and run.record(step).lab_sha256 is None


def test_the_copy_has_the_compiled_libraries_of_the_wheel_and_the_same_hash(tmp_path, monkeypatch):
    (tmp_path / "_native").mkdir()
    (tmp_path / "_native" / "scan-1.so").write_bytes(b"library")
    monkeypatch.setattr(snapshot, "PACKAGED", tmp_path / "_native")
    ours = lab_with_content()
    take_snapshot(tmp_path, ours)
    (copy,) = (tmp_path / LAB).glob("*/lab")
    assert (copy / "_native" / "scan-1.so").read_bytes() == b"library"
    assert content_sha256(copy) == ours.sha256


def test_an_edit_while_the_copy_is_made_is_an_error_and_leaves_no_copy(tmp_path):
    with pytest.raises(BusyError, match="edited while this run began"):
        take_snapshot(tmp_path, OURS)
    assert list((tmp_path / LAB).iterdir()) == []


@pytest.mark.root
def test_a_disk_that_is_full_before_the_copy_is_whole_is_told_in_one_line(tmp_path):
    """copytree goes on after each of the hundreds of files that it cannot write."""
    with small_disk(tmp_path, "400k"), pytest.raises(StorageError) as caught:
        take_snapshot(tmp_path, lab_with_content())
    assert caught.value.problem == "no space left on the disk" and caught.value.location == str(
        tmp_path / LAB
    )


@pytest.mark.parametrize(
    "texts, what",
    [
        (["[Errno 28] No space left on device: 'a' -> 'b'"] * 300, "no space left on the disk"),
        (["[Errno 13] Permission denied: 'b'", "[Errno 28] No space left"], "not allowed to write here"),
        (["[Errno 5] Input/output error: 'a'"], "cannot write: Input/output error"),
        (["'a' is a named pipe"], "cannot write: 'a' is a named pipe"),
    ],
)
def test_of_many_errors_of_a_copy_the_first_is_told(tmp_path, texts, what):
    error = storage_error(shutil.Error([("a", "b", text) for text in texts]), tmp_path)
    assert (error.problem, error.location) == (what, str(tmp_path))
    assert storage_error(shutil.Error("a and b are the same file"), tmp_path).problem.endswith(
        "the same file"
    )


def test_a_step_that_writes_into_the_run_folder_itself_leaves_no_lab_among_its_files(tmp_path):
    step = Step(name="s", argv=WHICH)
    run = Run.create(tmp_path / "run", a_manifest(step))
    take_snapshot(run.root, lab_with_content())
    run.begin(step)
    (run.root / "result.json").write_text("{}")
    run.finish(step, Outcome(status=Status.ok))
    assert list(run.manifest.steps[0].files) == ["result.json"]


def test_a_run_whose_image_only_its_nodes_know_goes_on_with_the_same_name_alone(tmp_path):
    """On Slurm the plan knows a reference, the record its content, which nodes compare."""
    manifest = a_manifest()
    manifest.image = ImageRecord(name="x/y:1", ref="x/y:1", id="sha256:one")
    run = Run.create(tmp_path / "r", manifest)
    same_images(run, ImageRecord(name="x/y:1", ref="x/y:1"), ())
    for present in (ImageRecord(name="x/y:2", ref="x/y:2"), msgspec.structs.replace(manifest.image, id="z")):
        with pytest.raises(UsageError, match="another image"):
            same_images(run, present, ())
