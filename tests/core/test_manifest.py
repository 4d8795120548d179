from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lab.core import manifest as manifests
from lab.core.files import write_atomic
from lab.core.manifest import Lab, Manifest, StepRecord
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step
from lab.errors import BadDataError, ConfigError, MissingError, StorageError, UsageError
from tests.conftest import small_disk


def a_manifest(*steps: Step) -> Manifest:
    return Manifest(
        id="r",
        room="sweep",
        created_utc="2026-01-01T00:00:00+00:00",
        lab=Lab(version="0"),
        command=("lab",),
        engine="local",
        host={"name": "h"},
        steps=[StepRecord(step=s, fingerprint="f") for s in steps],
    )


def a_run(root: Path, *steps: Step) -> Run:
    return Run.create(root, a_manifest(*(steps or (Step(name="a", argv=("true",), folder="a"),))))


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    run = a_run(tmp_path / "r")
    step = run.manifest.steps[0].step
    run.begin(step)
    (run.folder(step) / "trace.json").write_text("{}")
    run.finish(step, Outcome(status=Status.ok, exit_code=0, seconds=1.5))
    assert Run.open(tmp_path / "r").manifest == run.manifest
    assert list(run.manifest.steps[0].files) == ["a/trace.json"]


@pytest.mark.parametrize(
    "damage, complaint",
    [
        (lambda m: m.pop("schema_version"), "schema_version"),
        (lambda m: m.update(surprise=1), "unknown field `surprise`"),
        (lambda m: m["steps"][0]["step"].update(num_gpus=-1), "num_gpus"),
        (lambda m: m["steps"][0]["step"].update(folder="../../etc"), "leaves the run folder"),
        (lambda m: m["steps"][0]["step"].update(name="a b"), "step name"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_with_the_field(tmp_path, damage, complaint):
    a_run(tmp_path / "r")
    path = tmp_path / "r" / "manifest.json"
    document = json.loads(path.read_text())
    damage(document)
    path.write_text(json.dumps(document))
    with pytest.raises((BadDataError, ConfigError), match=complaint):
        Run.open(tmp_path / "r")


def test_a_manifest_cut_anywhere_is_a_clear_error_and_never_a_traceback(tmp_path):
    a_run(tmp_path / "r")
    path = tmp_path / "r" / "manifest.json"
    whole = path.read_bytes()
    for size in range(0, len(whole) - 2, 37):
        path.write_bytes(whole[:size])
        with pytest.raises(BadDataError):
            manifests.load(path)


def test_writing_is_all_or_nothing_under_sigkill(tmp_path):
    """A process that rewrites a file as fast as it can is killed at 12 arbitrary moments."""
    target = tmp_path / "manifest.json"
    write_atomic(target, "0" * 50_000)
    program = textwrap.dedent("""
        import sys, itertools
        from pathlib import Path
        from lab.core.files import write_atomic
        for i in itertools.count():
            write_atomic(Path(sys.argv[1]), str(i % 10) * 50_000)
            if i == 0: print("go", flush=True)
    """)
    for moment in range(12):
        writer = subprocess.Popen([sys.executable, "-c", program, str(target)], stdout=subprocess.PIPE)
        assert writer.stdout and writer.stdout.readline() == b"go\n"
        time.sleep(0.0014 * moment)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        text = target.read_text()
        assert len(text) == 50_000 and len(set(text)) == 1


@pytest.mark.root
def test_a_full_disk_keeps_the_old_manifest_and_says_what_to_do(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        run = a_run(disk / "r")
        before = (disk / "r" / "manifest.json").read_bytes()
        filler = os.open(disk / "filler", os.O_CREAT | os.O_WRONLY)
        with pytest.raises(OSError, match="No space"):
            while True:
                os.write(filler, b"x" * 4096)
        os.close(filler)
        run.manifest.versions["torch"] = "x" * 8000
        with pytest.raises(StorageError, match="no space left") as caught:
            run.save()
        assert "--resume" in str(caught.value)
        assert (disk / "r" / "manifest.json").read_bytes() == before
        assert not list((disk / "r").glob(".manifest*"))


def test_a_folder_whose_name_is_no_text_is_refused_in_words(tmp_path):
    with pytest.raises(UsageError, match="not UTF-8"):
        a_run(tmp_path / os.fsdecode(b"caf\xe9"))
    assert not list(tmp_path.iterdir())


def test_the_documented_schema_is_the_one_that_is_read():
    root = Path(__file__).parents[2]
    made = subprocess.run(
        [sys.executable, root / "scripts/schema.py"], cwd=root, capture_output=True, text=True, check=True
    )
    assert json.loads((root / "docs/manifest.schema.json").read_text()) == json.loads(made.stdout)


def test_files_keep_the_users_umask(tmp_path):
    old = os.umask(0o027)
    try:
        write_atomic(tmp_path / "f", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


def test_a_manifest_is_a_file_that_people_can_read(tmp_path):
    manifests.save(a_manifest(), tmp_path / "m.json")
    lines = (tmp_path / "m.json").read_text().split("\n")
    assert lines[:2] == ["{", ' "schema_version": 1,'] and lines[-2:] == ["}", ""]


@pytest.mark.parametrize("place", ["none/manifest.json", "file/manifest.json"])
def test_no_manifest_is_an_error_that_names_the_place(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingError, match="not the folder of a run") as caught:
        manifests.load(tmp_path / place)
    assert caught.value.location == str(tmp_path / place) and "lab runs list" in caught.value.fix


def test_a_manifest_that_cannot_be_read_says_why(tmp_path):
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(MissingError, match="s a directory") as caught:
        manifests.load(tmp_path / "manifest.json")
    assert caught.value.location == str(tmp_path / "manifest.json")


@pytest.mark.parametrize(
    "change, complaint, fix",
    [
        ({"schema_version": 2}, "version 2.* 1", "that wrote it"),
        ({"schema_version": 0}, "version 0.* 1", "that wrote it"),
        ({"schema_version": "1"}, "schema_version", None),
        ({"room": 5}, "room", None),
    ],
)
def test_a_manifest_of_another_form_is_bad_data_at_its_path(tmp_path, change, complaint, fix):
    path = tmp_path / "manifest.json"
    manifests.save(a_manifest(), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BadDataError, match=complaint) as caught:
        manifests.load(path)
    assert caught.value.location == str(path)
    assert fix in caught.value.fix if fix else caught.value.fix is None
