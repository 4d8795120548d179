"""The index of runs: every folder with a manifest is a row, whatever is wrong with it."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from lab.core import findings, manifest
from lab.core.findings import FINDINGS
from lab.core.run import LOCK, MANIFEST
from lab.errors import MissingError
from lab.serve import index as index_module
from lab.serve.index import ANALYSING, ELSEWHERE, LEFT, RUNNING, Index, activity, key_of, live_tail
from lab.serve.walk import inside, opened, walk
from tests.serve.made import DAY, write_run, write_runs


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def looked(root) -> dict:
    return {row.folder: row for row in Index(root, rest_s=0).refresh()}


def test_a_row_says_what_manifest_and_findings_say(tmp_path):
    root = tmp_path / "runs"
    write_run(root, "sweep_1", step_ms=12.5, config={"model": "gpt"}, driver="580.2")
    row = looked(root)["sweep_1"]
    assert (row.room, row.state, row.verdict, row.lead) == ("sweep", "done", "ok", "28 channels are fastest.")
    assert (row.gpus, row.gpu_count, row.driver) == ("1 × NVIDIA H200", 1, "580.2")
    assert (row.model, row.image, row.image_id, row.host) == ("gpt", "cuda", "sha256:abc", "node1")
    assert [(one.label, one.value, one.unit) for one in row.figures] == [("Step", 12.5, "ms")]
    assert (row.steps_done, row.steps_total, row.integrity) == (2, 2, "complete, as analysed")
    assert [one.file for one in row.tables] == ["tables/configs.csv"]
    assert row.ended_utc == "2026-11-01T12:00:12.000+00:00", "the second step began after 7 s and took 5"


def test_several_models_of_a_run_are_listed_as_words(tmp_path):
    write_run(tmp_path, "semicrf_1", room="semicrf", config={"model": ["linear", "semicrf"]})
    write_run(tmp_path, "sweep_1", config={"model": {"layers": 2}})
    models = {name: row.model for name, row in looked(tmp_path).items()}
    assert models == {"semicrf_1": "linear, semicrf", "sweep_1": '{"layers":2}'}


def test_what_is_missing_stands_in_the_row_and_never_reads_as_complete(tmp_path):
    root = tmp_path / "runs"
    write_run(root, "failed", statuses=("ok", "oom"))
    write_run(root, "unanalysed", verdict=None)
    write_run(root, "lacking", lacking=("rank 3 has no trace",))
    stale = write_run(root, "stale")
    old = findings.load(stale / FINDINGS)
    findings.save(msgspec.structs.replace(old, written_utc="2026-11-01T12:00:03.000+00:00"), stale / FINDINGS)
    unfinished = write_run(root, "unfinished")
    findings.save(msgspec.structs.replace(old, lacking=None), unfinished / FINDINGS)
    torn = write_run(root, "torn")
    (torn / FINDINGS).write_text((torn / FINDINGS).read_text()[:100])
    rows = looked(root)
    assert rows["failed"].state == "failed" and "1 of 2 steps without a result" in rows["failed"].integrity
    assert "no findings" in rows["unanalysed"].integrity and rows["unanalysed"].verdict == ""
    assert rows["lacking"].integrity == "the analysis lacks 1 thing"
    assert rows["lacking"].lacking == ("rank 3 has no trace",)
    assert rows["stale"].integrity == "analysed before its last step ended"
    assert rows["unfinished"].integrity == "the analysis was not finished"
    assert "findings unreadable" in rows["torn"].integrity and rows["torn"].verdict == ""


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "cannot read the manifest"),
        ('{"schema_version": 1', "cannot read the manifest"),
        ('{"schema_version": 9}', "schema version 9"),
        ('{"schema_version": 1, "id": 3}', "cannot read the manifest"),
        ('{"schema_version":1,"config":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}", ""),
    ],
)
def test_a_broken_manifest_is_a_row_with_its_reason(tmp_path, text, reason):
    folder = write_run(tmp_path / "runs", "broken")
    (folder / MANIFEST).write_text(text)
    row = looked(tmp_path / "runs")["broken"]
    assert row.state == "unreadable" and reason in row.error and row.error


def test_a_manifest_beyond_the_limit_is_not_read(tmp_path, monkeypatch):
    write_run(tmp_path / "runs", "big")
    monkeypatch.setattr(index_module, "MOST_MANIFEST_BYTES", 100)
    row = looked(tmp_path / "runs")["big"]
    assert row.state == "unreadable" and "more than 100" in row.error


def test_an_analysis_without_a_run_is_a_row_too(tmp_path):
    folder = write_run(tmp_path / "runs", "trace.json_analysis")
    (folder / MANIFEST).unlink()
    row = looked(tmp_path / "runs")["trace.json_analysis"]
    assert (row.state, row.verdict, row.integrity) == ("analysis", "ok", "complete, as analysed")


def test_a_change_is_seen_and_only_that_run_is_read_again(tmp_path, monkeypatch):
    root = write_runs(tmp_path / "runs", 5)
    index = Index(root, rest_s=0)
    before = {row.folder: row for row in index.refresh()}
    version = index.version
    index.refresh()
    assert index.version == version, "nothing changed"
    read = []
    real = index_module.read_row
    monkeypatch.setattr(
        index_module, "read_row", lambda root, seen: (read.append(seen.folder), real(root, seen))[1]
    )
    folder = root / "nan_00001"
    changed = manifest.load(folder / MANIFEST)
    changed.steps.pop()
    manifest.save(changed, folder / MANIFEST)
    after = {row.folder: row for row in index.refresh()}
    assert read == ["nan_00001"] and index.version == version + 1
    assert after["nan_00001"].steps_total == 1 and after["sweep_00000"] is before["sweep_00000"]
    write_run(root, "new_one")
    assert len(index.refresh()) == 6 and read[-1] == "new_one"


def test_a_second_start_reads_the_cache_and_not_the_manifests(tmp_path, monkeypatch):
    root = write_runs(tmp_path / "runs", 60)
    first = Index(root, rest_s=0).refresh()
    monkeypatch.setattr(index_module, "read_row", lambda *_: pytest.fail("read again"))
    assert Index(root, rest_s=0).refresh() == first
    assert sum(row.state == "unreadable" for row in first) == 1


def test_a_damaged_cache_is_as_good_as_none(tmp_path):
    root = write_runs(tmp_path / "runs", 3)
    first = Index(root, rest_s=0).refresh()
    (cache,) = (tmp_path / "cache" / "lab" / "index").iterdir()
    cache.write_text(cache.read_text()[:500])
    assert Index(root, rest_s=0).refresh() == first


def test_runs_are_found_below_but_links_and_hidden_folders_are_not_entered(tmp_path):
    root = tmp_path / "runs"
    write_run(root / "team" / "a", "deep")
    write_run(root / ".hidden", "no")
    elsewhere = write_run(tmp_path / "elsewhere", "other")
    (root / "linked").symlink_to(elsewhere)
    write_run(root, "linked_manifest")
    (root / "linked_manifest" / MANIFEST).unlink()
    (root / "linked_manifest" / MANIFEST).symlink_to(elsewhere / MANIFEST)
    rows = looked(root)
    assert set(rows) == {"team/a/deep", "linked_manifest"}
    assert rows["linked_manifest"].state == "unreadable", "its manifest is a link and not read"


def test_what_was_not_looked_at_is_said(tmp_path, monkeypatch):
    root = tmp_path / "runs"
    write_run(root / "1/2/3/4/5/6/7", "too_deep")
    found = walk(root)
    assert not found.runs and "deeper than 6 levels" in found.unseen[0]
    monkeypatch.setattr("lab.serve.walk.MOST_FOLDERS", 3)
    for index in range(5):
        (root / f"folder{index}").mkdir()
    assert any("more than 3 folders" in text for text in walk(root).unseen)


def test_runs_are_newest_first_and_found_by_folder_name_or_key(tmp_path):
    root = tmp_path / "runs"
    write_run(root / "x", "one")
    write_run(root / "y", "two", at=DAY + timedelta(days=1))
    write_run(root / "y", "one")
    index = Index(root, rest_s=0)
    assert index.refresh()[0].folder == "y/two"
    assert index.find("two").folder == "y/two" and index.find("x/one").folder == "x/one"
    assert index.by_key(key_of(index.find("y/one"))).folder == "y/one"
    with pytest.raises(MissingError, match="several runs are named 'one'"):
        index.find("one")
    with pytest.raises(MissingError, match="no run is named 'three'"):
        index.find("three")


def test_a_running_run_is_told_from_one_that_its_driver_left(tmp_path):
    here = socket.gethostname()
    folder = write_run(tmp_path / "runs", "live", statuses=("ok", None), host=here)
    row = looked(tmp_path / "runs")["live"]
    assert row.state == "open" and activity(folder, row) == LEFT
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys\nlock = open(sys.argv[1], 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
            "print('held', flush=True)\nsys.stdin.read()",
            str(folder / LOCK),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"held\n"
    assert activity(folder, row) == RUNNING
    holder.communicate()
    assert activity(folder, row) == LEFT
    assert live_tail(folder, row) == {"step1": ["loss 0.7", "loss 0.6"]}
    away = write_run(tmp_path / "runs", "away", statuses=(None,), host="node9")
    assert activity(away, looked(tmp_path / "runs")["away"]) == ELSEWHERE


def test_a_run_that_ends_between_two_looks_is_never_said_to_be_left_by_its_driver(tmp_path):
    """Its row is as old as the locks: its outcome and the end of its driver are seen together."""
    folder = write_run(tmp_path / "runs", "live", statuses=("ok", None), host=socket.gethostname())
    index = Index(tmp_path / "runs", cache=False, rest_s=3600)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        index.refresh()
    (row,) = index.refresh()
    assert activity(folder, row) == LEFT, "as one would say who looks at the lock alone"
    assert activity(folder, row, index.locks) == RUNNING


def test_no_name_leads_out_of_a_folder(tmp_path):
    folder = write_run(tmp_path / "runs", "a")
    secret = tmp_path / "runs" / "secret"
    secret.write_text("secret")
    (tmp_path / "runs" / "a_sibling").mkdir()
    (tmp_path / "runs" / "a_sibling" / "x").write_text("secret")
    (folder / "link").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path / "runs")
    (folder / LOCK).write_text("1")
    os.mkfifo(folder / "pipe")
    for name in (
        *("../secret", "steps/../../secret", "/etc/passwd", "//etc/passwd", "..", ".", "", "a\0b"),
        *("link", "linked/secret", ".lock", "steps/.hidden", "..\\secret", "../a_sibling/x", "x" * 5000),
        "absent",
    ):
        with pytest.raises(MissingError, match="no such file in this run"):
            opened(folder, name)
    for name in ("pipe", "steps"):
        with pytest.raises(MissingError):
            opened(folder, name)
    with opened(folder, "tables/configs.csv") as file:
        assert file.read().startswith(b"channels,")
    assert inside(folder, "tables").is_dir()


def test_a_link_out_of_the_folder_is_said_and_one_inside_is_not(tmp_path):
    write_run(tmp_path / "runs", "a")
    write_run(tmp_path / "elsewhere", "b")
    (tmp_path / "runs" / "latest").symlink_to(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "shared").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "file").symlink_to(tmp_path / "elsewhere" / "b" / MANIFEST)
    (tmp_path / "runs" / "nowhere").symlink_to(tmp_path / "absent")
    found = walk(tmp_path / "runs")
    assert [one.folder for one in found.runs] == ["a"]
    assert found.unseen == ("1 link out of this folder: shared",)


@pytest.mark.parametrize("odd", ["folder", "link"])
def test_a_manifest_that_is_no_file_makes_no_complete_analysis(tmp_path, odd):
    folder = write_run(tmp_path / "runs", "a")
    (folder / MANIFEST).rename(tmp_path / "moved.json")
    if odd == "link":
        (folder / MANIFEST).symlink_to(tmp_path / "moved.json")
    else:
        (folder / MANIFEST).mkdir()
    (row,) = Index(tmp_path / "runs", cache=False).refresh()
    assert row.state == "unreadable" and "is a link, or no file at all" in row.error


def test_findings_behind_a_link_are_not_called_absent(tmp_path):
    folder = write_run(tmp_path / "runs", "a")
    (folder / FINDINGS).rename(tmp_path / "moved.json")
    (folder / FINDINGS).symlink_to(tmp_path / "moved.json")
    (row,) = Index(tmp_path / "runs", cache=False).refresh()
    assert row.integrity.startswith("findings unreadable: findings.json is a link")


def test_an_analysis_or_a_strange_manifest_above_runs_hides_none(tmp_path):
    write_run(tmp_path / "runs", "a")
    write_run(tmp_path / "runs" / "gate", "b")
    (write_run(tmp_path / "other", "x") / FINDINGS).rename(tmp_path / "runs" / "gate" / FINDINGS)
    (tmp_path / "runs" / MANIFEST).write_text('{"name": "an app"}')
    rows = {row.folder: row.state for row in Index(tmp_path / "runs", cache=False).refresh()}
    assert rows == {"": "unreadable", "a": "done", "gate": "analysis", "gate/b": "done"}


def test_texts_of_findings_are_printable_and_bounded_and_numbers_can_be_added(tmp_path):
    figures = [("\x1b[2J\u202e" + "T" * 9000, "1e308 ms", 1e308, "ms\x1b", "n" * 9000)]
    write_run(tmp_path / "runs", "a", figures=figures)
    (row,) = Index(tmp_path / "runs", cache=False).refresh()
    (figure,) = row.figures
    assert figure.label.startswith("\\x1b[2J\\u202eTTT") and len(figure.label) < 2100 and figure.value is None
    assert (figure.text, figure.unit, len(figure.note) < 2100) == ("1e308 ms", "ms\\x1b", True)
    assert row.findings[1].title == figure.label and row.findings[1].value is None


def test_a_run_whose_steps_have_ended_and_whose_driver_lives_is_being_analysed(tmp_path):
    folder = write_run(tmp_path / "runs", "a", verdict=None)
    index = Index(tmp_path / "runs", cache=False, rest_s=0)
    (row,) = index.refresh()
    (folder / LOCK).write_text("1")
    at = os.stat(folder / LOCK)
    locks = {(at.st_dev, at.st_ino)}
    assert (
        row.state == "done"
        and activity(folder, row, set()) == ""
        and activity(folder, row, locks) == ANALYSING
    )
    write_run(tmp_path / "runs", "b")
    assert activity(folder, index.find("b"), locks) == "", "it has its verdict"


def test_a_recording_whose_name_is_no_text_is_counted_and_not_listed(tmp_path):
    (tmp_path / "trace_a.json").write_text("{}")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/trace_\xff.json")).write_text("{}")
    found = walk(tmp_path)
    assert found.recordings == ("trace_a.json",)
    assert found.unseen == ("1 recording with a name that is not UTF-8",)
