"""What is a sample of `lab check`, and what never ends with an all-clear."""

from __future__ import annotations

import json
import random
import shutil

import pytest
from click.testing import CliRunner

from lab.compare.check.samples import processes
from lab.compare.cli import check
from lab.errors import BadDataError, MissingError
from tests.compare.made import layer, trace


def side(folder, count=3, steps=3, **more):
    random.seed(folder.name)
    for number in range(count):
        trace(folder / f"p{number}.json", [layer(random.uniform(0.998, 1.002)) for _ in range(steps)], **more)
    return folder


def run(*words):
    return CliRunner().invoke(check, [*map(str, words), "--json"])


def doubted(tmp_path, head):
    """The doubts of a check of equal programs; its exit code is 3."""
    base = tmp_path / "base"
    base = base if base.is_dir() else side(base)
    found = run(base, head)
    assert found.exit_code == 3, found.output
    (doubt,) = json.loads(found.stdout)["doubts"]
    return doubt


def test_equal_processes_are_excluded_without_a_doubt(tmp_path):
    found = run(side(tmp_path / "base"), side(tmp_path / "head"))
    assert found.exit_code == 0 and json.loads(found.stdout)["doubts"] == []


def test_one_step_per_process_is_no_all_clear(tmp_path):
    side(tmp_path / "base", steps=1)
    assert "one step per process" in doubted(tmp_path, side(tmp_path / "head", steps=1))


def test_other_numbers_of_steps_are_no_all_clear(tmp_path):
    assert "3 on BASE, 5 on HEAD" in doubted(tmp_path, side(tmp_path / "more", steps=5))
    mixed = side(tmp_path / "mixed")
    trace(mixed / "p1.json", [layer(1.0007)] * 2)
    assert "3 on BASE, 2 or 3 on HEAD" in doubted(tmp_path, mixed)


def test_steps_without_gpu_work_are_no_all_clear(tmp_path):
    head = side(tmp_path / "head", steps=3)
    trace(head / "p2.json", [layer(1.0007), layer(), [], layer()])
    assert "1 of 3 processes have steps that launched no GPU work" in doubted(tmp_path, head)


def test_unequal_numbers_of_processes_are_no_all_clear_but_a_proof_stands(tmp_path):
    base, half = side(tmp_path / "base", 6), side(tmp_path / "half", 3)
    assert "BASE has 6 and HEAD 3 processes" in doubted(tmp_path, half)
    slow = tmp_path / "slow"
    for number in range(3):
        trace(slow / f"p{number}.json", [layer(1.5 + number / 1000)] * 3)
    assert run(base, slow).exit_code == 1


def test_a_process_that_left_only_its_log_is_an_error(tmp_path):
    base = side(tmp_path / "base", 6)
    for number in range(6):
        (base / f"p{number}.log").write_text("started")
    assert len(processes(base)) == 6
    for number in (1, 3, 5):
        (base / f"p{number}.json").unlink()
    caught = run(base, side(tmp_path / "head")).exception
    assert isinstance(caught, MissingError) and "3 of the processes here left a log" in caught.problem


def test_logs_of_something_else_are_no_processes(tmp_path):
    base = side(tmp_path / "base")
    (base / "driver.log").write_text("words")
    assert len(processes(base)) == 3


def test_a_recording_whose_steps_launched_nothing_is_no_sample(tmp_path):
    base = side(tmp_path / "base")
    whole = json.loads((base / "p0.json").read_text())
    for event in whole["traceEvents"]:
        if event["cat"] != "user_annotation":
            event["ts"] += 1e6
    (base / "p0.json").write_text(json.dumps(whole))
    with pytest.raises(BadDataError, match="no step of this recording launched GPU work"):
        processes(base)


def test_a_truncated_and_an_empty_recording_are_errors(tmp_path):
    base = side(tmp_path / "base")
    text = (base / "p0.json").read_text()
    for content in (text[: len(text) // 2], ""):
        (base / "p0.json").write_text(content)
        assert run(base, base).exception.exit_code == 5


def test_the_ranks_of_one_run_are_one_sample_and_the_slowest_has_its_time(tmp_path):
    for number in range(3):
        for rank, scale in ((0, 1.0), (1, 1.2)):
            trace(tmp_path / "a" / f"p{number}_rank{rank}.json", [layer(scale)] * 3, rank=rank)
            trace(tmp_path / "b" / f"p{number}" / f"rank{rank}" / "t.json", [layer(scale)] * 3, rank=rank)
    for name in "ab":
        found = processes(tmp_path / name)
        assert len(found) == 3 and found[0].steps_ns["kernel time"].tolist() == pytest.approx(
            [55_000 * 1.2] * 3
        )
        assert found[0].counts["gemm_128"] == 2 and found[0].counts["cudaLaunchKernel"] == 8
        gemm = next(ns for key, ns in found[0].signatures_ns.items() if key[3] == "gemm_128")
        assert gemm == pytest.approx(48_000)


def test_ranks_whose_run_is_unknown_are_refused(tmp_path):
    for rank in range(4):
        trace(tmp_path / "a" / f"host_{rank}77.json", [layer()] * 3, rank=rank)
    with pytest.raises(BadDataError, match="ranks 0, 1, 2, 3, and nothing says which belong to one run"):
        processes(tmp_path / "a")
    for number in range(3):  # one rank of each run is a sample as any other
        shutil.copy(tmp_path / "a" / "host_177.json", tmp_path / f"only{number}.json")
    shutil.rmtree(tmp_path / "a")
    assert len(processes(tmp_path)) == 3


def test_copies_of_one_recording_are_no_further_samples(tmp_path):
    base = side(tmp_path / "base")
    assert "3 processes have the times of another to the last digit" in doubted(tmp_path, base)
    for number in (1, 2):
        shutil.copy(base / "p0.json", base / f"p{number}.json")
    assert "2 processes have the times of another" in doubted(tmp_path, side(tmp_path / "head"))


def test_a_clock_too_coarse_to_tell_processes_apart_is_no_all_clear(tmp_path):
    for name in ("base", "head"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.json").write_text('{"step_ms": [12, 12, 12]}')
    assert "5 processes have the times of another" in doubted(tmp_path, tmp_path / "head")
