"""Which process launched what in a trace of several processes."""

from __future__ import annotations

import json

import pytest

from lab.recordings.load import load_capture
from lab.recordings.merge import merge_captures
from lab.recordings.processes import single_processes
from lab.recordings.projection import project
from tests.tracegen import TraceWriter, training_step


def write(path, events):
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def launch(corr, ts, *, pid, row):
    """A call of process `pid`, and its kernel of 10 us in this row of the file."""
    args = {"correlation": corr}
    call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": pid, "tid": pid, "ts": ts, "dur": 2}
    kernel = {"cat": "kernel", "name": f"k{pid}", "pid": row, "tid": 7, "ts": ts + 5, "dur": 10}
    return [
        {"ph": "X", **call, "args": args},
        {"ph": "X", **kernel, "args": args | {"device": 0, "stream": 7}},
    ]


def owned(capture):
    return [capture.processes[index].pid for index in capture.ops.process]


def test_kernels_belong_to_the_process_that_called_not_to_the_busiest(tmp_path):
    events = [event for i in range(5) for event in launch(i + 1, 100 * i, pid=10, row=0)]
    events += launch(77, 50, pid=20, row=1)
    capture = load_capture(write(tmp_path / "t.json", events))
    assert owned(capture) == [10] * 5 + [20]
    assert [capture.text(capture.ops.name_id)[-1], capture.ops.pid[-1]] == ["k20", 20]
    assert not capture.problems


def test_numbers_that_repeat_are_told_apart_by_the_row_in_the_file(tmp_path):
    """Both processes call their GPU 0 and count from 1; a number of its own each tells the rows."""
    events = [event for i in range(3) for event in launch(i + 1, 100 * i, pid=10, row=0)]
    events += [event for i in range(3) for event in launch(i + 1, 100 * i + 1, pid=20, row=9)]
    events += launch(50, 400, pid=10, row=0) + launch(60, 500, pid=20, row=9)
    capture = load_capture(write(tmp_path / "t.json", events))
    assert owned(capture) == [10] * 3 + [20] * 3 + [10, 20]
    assert (project(capture).ops.api >= 0).all()


def test_what_two_processes_may_have_launched_is_attributed_to_none(tmp_path):
    events = [event for i in range(3) for event in launch(i + 1, 100 * i, pid=10, row=0)]
    events += [event for i in range(3) for event in launch(i + 1, 100 * i + 1, pid=20, row=0)]
    capture = load_capture(write(tmp_path / "t.json", events))
    assert owned(capture) == [None] * 6
    assert "6 operations of the GPU could be of several" in capture.problems[0]
    assert (project(capture).ops.api < 0).all(), "a false partner is worse than none"


def test_a_copy_that_ran_later_is_of_the_process_that_is_left(tmp_path):
    """The earlier process called every number, too: before is not enough, once each has one."""
    events = [event for i in range(3) for event in launch(i + 1, 100 * i, pid=10, row=0)]
    events += [event for i in range(3) for event in launch(i + 1, 10_000 + 100 * i, pid=20, row=0)]
    capture = load_capture(write(tmp_path / "t.json", events))
    assert owned(capture) == [10] * 3 + [20] * 3
    assert capture.text(capture.ops.name_id).tolist() == ["k10"] * 3 + ["k20"] * 3
    assert not capture.problems


def test_a_row_with_a_number_twice_is_no_proof_of_its_owner(tmp_path):
    """A third row of one number, after both calls: whose it is cannot be known."""
    events = launch(1, 0, pid=10, row=0) + launch(1, 10_000, pid=20, row=0)
    events += [*launch(5, 20_000, pid=10, row=0), {**launch(1, 30_000, pid=20, row=0)[1], "name": "odd"}]
    capture = load_capture(write(tmp_path / "t.json", events))
    assert owned(capture)[-1] is None and owned(capture)[0] == 10
    assert "attributed to none" in capture.problems[0]


def test_a_process_without_gpu_work_changes_nothing(tmp_path):
    events = launch(1, 0, pid=10, row=0)
    events.append(
        {"ph": "X", "cat": "user_annotation", "name": "load", "pid": 11, "tid": 1, "ts": 0, "dur": 9}
    )
    capture = load_capture(write(tmp_path / "t.json", events))
    assert owned(capture) == [10] and len(single_processes(capture)) == 2


@pytest.mark.parametrize("ranks", [2, 3])
def test_labs_own_merged_file_is_read_rank_by_rank_as_the_single_files(tmp_path, ranks):
    paths = []
    for rank in range(ranks):
        writer = TraceWriter(rank=rank, world_size=ranks)
        for step in range(rank + 1):
            training_step(writer, step, 100.0 * step)
        paths.append(writer.write(tmp_path / f"rank{rank}.json"))
    target = tmp_path / "merged.json.gz"
    merge_captures({rank: load_capture(path) for rank, path in enumerate(paths)}, target)
    parts = list(single_processes(load_capture(target)).values())
    assert [part.processes[0].rank for part in parts] == list(range(ranks))
    for part, path in zip(parts, paths, strict=True):
        single = load_capture(path)
        durations = [(one.ops.end_ns - one.ops.start_ns).tolist() for one in (part, single)]
        assert sorted(durations[0]) == sorted(durations[1])
        assert (project(part).ops.rule == project(single).ops.rule).all()
