"""A folder with the files of one job is one recording, in which every process stays itself."""

from __future__ import annotations

import pytest

from lab.errors import BadDataError, MissingError
from lab.recordings.load import format_of, is_recording, load_capture
from tests.recordings.rocpdgen import Process, two, write
from tests.recordings.sdkgen import Element
from tests.recordings.sdkgen import write as write_json


@pytest.fixture
def job(tmp_path):
    """Two processes with one pid, on two hosts, as rocprofv3 lays them out; other files lie beside."""
    for host, process in zip(("host0", "host1"), two(), strict=True):
        folder = tmp_path / "job" / host
        folder.mkdir(parents=True)
        write(folder / "28_results.db", process)
        write_json(folder / "28_results.json", Element())
        (folder / "notes.db.txt").write_text("no recording")
    return tmp_path / "job"


def test_the_files_of_one_job_are_one_recording_of_several_processes(job, tmp_path):
    capture = load_capture(job)
    together = load_capture(write(tmp_path / "one.db", *two()))
    assert capture.source == job and capture.collector == "rocpd"
    assert capture.ops.process.tolist() == together.ops.process.tolist() == [0] * 4 + [1] * 4
    assert capture.text(capture.ops.name_id).tolist() == together.text(together.ops.name_id).tolist()
    assert capture.ops.corr.tolist() == together.ops.corr.tolist()
    assert [one.process for one in capture.devices] == [0, 0, 1, 1]
    assert capture.verdict == "complete"


def test_a_process_that_two_files_hold_counts_once(job):
    (job / "copy.db").write_bytes((job / "host0" / "28_results.db").read_bytes())
    capture = load_capture(job)
    assert len(capture.ops) == 8
    assert any("holds the same process" in one for one in capture.problems)


def test_what_one_file_lacks_stays_with_its_process(tmp_path):
    one, other = two()
    del other.rows["kernel_dispatch"][1:3]
    (tmp_path / "job").mkdir()
    for name, process in (("a", one), ("b", other)):
        write(tmp_path / "job" / f"{name}.db", process)
    lacks = load_capture(tmp_path / "job").lacks
    assert {(lack.rule, lack.process) for lack in lacks} == {("D", 1), ("G", 1)}
    assert len(lacks) == 2


def test_a_cut_file_in_the_folder_is_an_error_not_a_smaller_job(job):
    path = job / "host1" / "28_results.db"
    path.write_bytes(path.read_bytes()[:5_000])
    with pytest.raises(BadDataError, match="truncated") as caught:
        load_capture(job)
    assert caught.value.location == str(path)


def test_a_job_in_json_is_read_where_nothing_better_is_there(tmp_path):
    for pid in (7, 8):
        element = Element(pid)
        element.call("hipLaunchKernel", (0, 5), 1)
        element.kernel(pid - 6, (10, 20), 1, 1)
        write_json(tmp_path / f"{pid}_results.json", element)
    capture = load_capture(tmp_path)
    assert [one.pid for one in capture.processes] == [7, 8]
    assert capture.text(capture.ops.name_id).tolist() == ["alpha", "beta"]


def test_other_folders_are_none(tmp_path):
    (tmp_path / "trace_rank0.json").write_text("{}")
    assert not is_recording(tmp_path)
    with pytest.raises(MissingError, match="folder"):
        format_of(tmp_path)


def test_one_process_without_rows_keeps_its_place(tmp_path):
    (tmp_path / "job").mkdir()
    write(tmp_path / "job" / "a.db", Process("0000000f-aaaa-7000-8000-000000000001", 1))
    write(tmp_path / "job" / "b.db", two()[0])
    capture = load_capture(tmp_path / "job")
    assert [one.pid for one in capture.processes] == [1, 28] and set(capture.ops.process.tolist()) == {1}
