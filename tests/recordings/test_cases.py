"""Small recordings with known truth (shared data, cases/recordings): every command's path gives the truth.

truth.json was made by a script that shares no code with lab; figures that stand only in the README are
repeated here.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict

import numpy as np
import pytest

from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import bound
from lab.recordings.lacks import holes
from lab.recordings.load import load_capture
from lab.recordings.processes import rank_captures
from lab.recordings.projection import project
from tests.conftest import SHARED

pytestmark = pytest.mark.data
CASES = SHARED / "cases" / "recordings"
TRUTH = json.loads((CASES / "truth.json").read_text()) if CASES.is_dir() else {}


def capture_of(name: str) -> Capture:
    path = next(path for path in CASES.glob(f"{name}.*"))
    return load_capture(path)


def rule(capture: Capture, letter: str):
    return [lack for lack in capture.lacks if lack.rule == letter]


@pytest.mark.parametrize(
    "name", ["overrun_kineto_cuda", "overrun_kineto_rocm", "overrun_rocprofv3", "overrun_rocpd"]
)
def test_a_row_that_outlasts_its_successor_makes_times_a_bound(name):
    capture, truth = capture_of(name), TRUTH["overrun"][name]
    (lack,) = rule(capture, "P")
    assert lack.n == truth["rows_that_outlast_the_next"]
    assert capture.verdict == "unknown" and holes(capture.lacks) == [lack]
    assert bound(capture.lacks, "gpu") == "at most"
    assert np.sum(capture.ops.end_ns - capture.ops.start_ns) / 1e6 >= truth["kernel_ms_true"]


@pytest.mark.parametrize(
    "name",
    [
        "healthy_kineto_cuda",
        "healthy_kineto_rocm",
        "healthy_kineto_early_successors",
        "healthy_kineto_side_stream",
        "healthy_rocprofv3",
        "healthy_rocpd",
        "healthy_nsys_unified_memory",
        "healthy_nsys_harmless_words",
        "healthy_outside_ops",
        "healthy_steps",
    ],
)
def test_whole_recordings_stay_complete(name):
    assert capture_of(name).verdict == "complete"


@pytest.mark.parametrize(
    ("name", "letter", "count"),
    [
        ("no_calls_rocprofv3_12_of_90_at_zero", "Z", 12),
        ("no_calls_rocprofv3_10_rows_twice", "W", 10),
        ("no_calls_rocprofv3_no_names", "U", 90),
        ("no_calls_kineto_8_at_zero_5_twice", "Z", 8),
        ("no_calls_kineto_8_at_zero_5_twice", "W", 5),
    ],
)
def test_processes_without_calls_are_looked_at(name, letter, count):
    capture = capture_of(name)
    (lack,) = rule(capture, letter)
    assert lack.n == count and lack in holes(capture.lacks)
    span_ms = (capture.ops.end_ns.max() - capture.ops.start_ns.min()) / 1e6
    assert span_ms < 2.9


def test_kernels_alone_are_unknown_and_no_more():
    capture = capture_of("healthy_rocprofv3_kernels_only")
    assert capture.verdict == "unknown" and not holes(capture.lacks)


@pytest.mark.parametrize("name", ["said_not_all_cuda", "said_not_started", "said_cupti_missing"])
def test_what_nsys_says_of_a_loss_is_heard_at_any_severity(name):
    capture = capture_of(name)
    assert capture.verdict == "unknown"
    assert "nsys says" in rule(capture, "N")[0].text


def launches_by_op(name: str):
    trace = load_capture(next(CASES.glob(f"{name}.*")))
    op, dur_us = views.link_ops(trace), trace.ops.dur_ns / 1000
    names = np.append(trace.text(trace.operators.name_id), "")[op]
    counts, times = Counter(names), defaultdict(float)
    for op_name, us in zip(names, dur_us, strict=True):
        times[op_name] += us
    return {op_name: (counts[op_name], round(times[op_name], 3)) for op_name in counts}


@pytest.mark.parametrize(
    "name", ["two_processes_apart", "two_processes_interleaved", "two_processes_one_gpu"]
)
def test_equal_ids_of_two_processes_are_told_apart_by_time(name):
    assert launches_by_op(name) == {
        "aten::mm": (50, 225),
        "aten::relu": (50, 100),
        "aten::bmm": (50, 200),
        "aten::add": (50, 75),
    }


def test_equal_ids_at_equal_times_are_guessed_by_no_path():
    capture = capture_of("two_processes_same_times")
    assert launches_by_op("two_processes_same_times") == {"": (200, 600)}
    assert (project(capture).ops.api < 0).all() and len(capture.ops) == 200
    assert capture.verdict == "unknown"


def test_a_lost_call_among_equal_ids_is_a_loss_and_not_a_doubt(tmp_path):
    with gzip.open(CASES / "two_processes_one_gpu.json.gz") as file:
        document = json.load(file)
    lost = {101, 102}  # in both processes
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if event.get("cat") != "cuda_runtime" or event["args"]["correlation"] not in lost
    ]
    (tmp_path / "lost.json").write_text(json.dumps(document))
    trace = load_capture(tmp_path / "lost.json")
    assert sum(lack.n for lack in trace.lacks) == 4 and holes(trace.lacks)
    assert trace.verdict == "lossy"


@pytest.mark.parametrize("name", ["outside_ops_old_kineto", "healthy_outside_ops"])
def test_a_kernels_own_number_is_no_operator(name):
    assert launches_by_op(name) == {
        "": (80, 2240),
        "aten::mm": (40, 800),
        "aten::add": (40, 120),
        "aten::copy_": (40, 160),
    }


@pytest.mark.parametrize("name", TRUTH.get("steps", ["none"]))
def test_steps_that_overlap_keep_their_kernels(name):
    truth = TRUTH["steps"][name]
    projection = project(capture_of(name))
    owners = projection.owners(projection.steps)
    counts = np.unique(owners[owners >= 0], return_counts=True)[1]
    assert counts.tolist() == truth["kernels_per_step"]
    trace = load_capture(next(CASES.glob(f"{name}.*")))
    steps = views.kernel_steps(trace)
    assert np.unique(steps[steps >= 0], return_counts=True)[1].tolist() == truth["kernels_per_step"]


def test_ranks_merged_into_one_file_are_ranks_again():
    ranks = rank_captures(load_capture(CASES / "ranks_merged_as_sglang_does.json.gz"))
    assert [trace.meta.rank for trace in ranks] == [0, 1]
    for rank, trace in enumerate(ranks):
        single = load_capture(CASES / f"ranks/rank{rank}.json.gz")
        assert trace.ops.dur_ns.tolist() == single.ops.dur_ns.tolist()
        assert trace.text(trace.operators.name_id).tolist() == single.text(single.operators.name_id).tolist()
        assert views.link_ops(trace).tolist() == views.link_ops(single).tolist()
        assert views.kernel_steps(trace).tolist() == views.kernel_steps(single).tolist()


def test_rocprofv3s_csv_is_read():
    capture = load_capture(CASES / "form_kernel_trace.csv")
    assert capture.collector == "rocprofv3" and len(capture.ops) == 20
    assert int((capture.ops.end_ns - capture.ops.start_ns).sum()) == 60_000
    assert capture.ops.grid_x.tolist() == [256] * 20 and capture.ops.block_x.tolist() == [256] * 20
