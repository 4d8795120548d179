"""Whatever is drawn, lab's commands print the truth or say that they may not. Examples: what draws showed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from tests import command
from tests.simulator import faults
from tests.simulator.draws import Draw, merged, recordings
from tests.simulator.figures import lab
from tests.simulator.kineto import write_kineto
from tests.simulator.program import Bare, Collective, Copy, Merge, Op, Pause, Program, Replay, Sync, step
from tests.simulator.ranks import RanksDraw, jobs

TWO_GRAPHS = Program((Replay((13_727, 1_007, 2_047)), Replay((1_000, 1_353))))
STEP = step(3, Op(), Bare(), Op((9_000, 2_000), (512, 256, 1024)))


def assert_told(drawn: Draw | RanksDraw) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _, sentences = drawn.outcome(Path(folder))
    assert not sentences


@settings(max_examples=300)
@given(recordings())
@example(Draw(Program((Op(),)), "rpd", (faults.Nameless(),)))
@example(Draw(Program((STEP,)), "kineto", (faults.Twice(), faults.Lost("calls", every=True))))
@example(Draw(Program((Op(), step(0, Op(), Copy()))), "rocpd", (faults.Lost("rows", "end"),)))
@example(Draw(TWO_GRAPHS, "kineto_rocm", (faults.Lost("rows", "start"),)))
@example(Draw(TWO_GRAPHS, "kineto", (faults.Lost("rows", "middle", 2),)))
@example(Draw(Program((Op(),)), "kineto", (faults.Lost("calls", every=True), faults.Lost("rows"))))
def test_no_figure_is_silently_different_from_the_truth(drawn: Draw):
    assert_told(drawn)


@settings(max_examples=60)
@given(merged())
@example(Draw(Program((Op(),)), "kineto", (faults.TooLong(),), Merge()))
@example(Draw(Program((Op(), Op((60_000,)))), "kineto", (), Merge(12_000, labels=True, one_gpu=True)))
def test_no_figure_of_two_processes_in_a_file_is_silently_different(drawn: Draw):
    assert_told(drawn)


@settings(max_examples=60)
@given(jobs())
def test_no_wait_of_a_rank_is_silently_different_from_the_truth(drawn: RanksDraw):
    assert_told(drawn)


def ranks_of(tmp_path: Path, *actions: Op | Pause | Collective, slow: tuple[int, ...], offset_ns: int = 0):
    program = Program(tuple(step(number, *actions, Sync()) for number in range(2, 6)), slow)
    return RanksDraw(program, (offset_ns, 0)).outcome(tmp_path)[1]


def test_a_receiver_waits_for_a_late_sender(tmp_path):
    assert not ranks_of(tmp_path, Op(), Collective(pair=True), Collective(), slow=(30, 0))


@pytest.mark.xfail(reason="clocks that are 50 us apart count as equal", strict=False)
def test_a_clock_that_is_off_by_less_than_a_collective_lasts_is_said(tmp_path):
    assert not ranks_of(tmp_path, Op(), Collective(), slow=(0, 30), offset_ns=40_000)


def test_idle_time_of_two_processes_is_not_that_of_one_gpu(tmp_path):
    path = write_kineto(Merge().play(Program((STEP,))), tmp_path / "trace.json")
    lab("gemm report -q -w 1 -o", tmp_path / "gemm", path)
    header, *rows = (line.split(",") for line in (tmp_path / "gemm/timeline.csv").read_text().splitlines())
    assert len(rows) == 2
    assert all(float(row[header.index("idle_time_ms")]) < 1 for row in rows)


def test_a_step_that_two_processes_of_a_file_have_is_read_twice(tmp_path):
    actions = (step(3, Op(), Copy(), Collective()), step(4, Op(), Collective()))
    path = write_kineto(Merge(500).play(Program(actions)), tmp_path / "trace.json")
    assert lab("gemm report -q -w 1 -o", tmp_path / "gemm", path).code in (0, 1)


def test_the_command_line_answers_as_its_functions_do(tmp_path):
    drawn = Draw(Program((STEP, Copy())), "nsys")
    asked, _ = drawn.outcome(tmp_path)
    process = command.lab("inspect", "--json", tmp_path / "profile.sqlite")
    assert process.returncode == 0 and json.loads(process.stdout) == asked.answers[0].json()
