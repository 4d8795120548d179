"""The simulator itself: what it plays is possible, its truth is what hands count, and its judge notices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.simulator import faults
from tests.simulator.draws import Draw, programs
from tests.simulator.faults import damaged
from tests.simulator.judge import silent
from tests.simulator.program import Bare, Collective, Copy, Op, Pause, Program, Replay, step
from tests.simulator.truth import Step, truth_of, waits_ms
from tests.simulator.writers import FORMATS

PROGRAM = Program((step(3, Op((9_000, 2_000), (512, 256, 1024)), Bare()), Copy(), Op((50_000,), stream=1)))


@settings(max_examples=100)
@given(programs())
def test_a_stream_runs_one_row_at_a_time_and_no_row_before_its_call(program: Program):
    (process,) = program.play()
    calls = {call.corr: call for call in process.calls}
    assert len(calls) == len(process.calls)
    ends_ns: dict[int, int] = {}
    for row in process.rows:
        assert max(ends_ns.get(row.stream, 0), calls[row.corr].start_ns) < row.start_ns <= row.end_ns
        ends_ns[row.stream] = row.end_ns
    assert process.calls[-1].end_ns > max(row.end_ns for row in process.rows)  # the wait at the end


def test_the_truth_is_what_hands_count():
    (process,) = PROGRAM.play()
    truth = truth_of(process)
    assert (truth.rows, truth.kernels, truth.row_ms, truth.kernel_ms) == (5, 4, 0.07, 0.066)
    # The copy and the last kernel run beside each other, on two streams.
    starts_ns = [row.start_ns - process.rows[0].start_ns for row in process.rows]
    assert starts_ns == [0, 9_800, 12_600, 18_400, 21_200]
    assert (truth.busy_ms, truth.idle_ms, truth.span_ms) == pytest.approx((0.0688, 0.0024, 0.0712))
    (span,) = process.ranges
    host_ms = (span.end_ns - span.start_ns) / 1e6
    assert truth.steps == {3: Step(3, 0.016, 0.016, 0.0176, host_ms, 2 * 512 * 256 * 1024 / 1e12)}
    owners = {(op, name[:12]): count for (op, name), (count, _) in truth.by_owner.items()}
    assert owners == {
        ("aten::mm", "sm90_xmma_ge"): 1,
        ("aten::mm", "void cublasL"): 1,
        ("", "void my_exte"): 1,
        ("aten::relu", "void at::nat"): 1,
    }


def test_a_rank_waits_for_the_slowest_one():
    job = Program((Op((10_000,)), Collective(30_000), Pause(), Collective()), (0, 50, 20)).play()
    assert waits_ms(job) == pytest.approx({0: 0.005, 1: 0.0, 2: 0.003})
    for process in job:
        first, _ = (row for row in process.rows if row.message)
        assert first.end_ns == max(one.rows[1].start_ns for one in job) + 30_000


def test_a_graph_is_captured_once_and_replayed_whole():
    (process,) = Program((Replay(), Replay(), Replay((1_000, 2_000)))).play()
    names = [call.name for call in process.calls]
    assert names.count("cudaGraphLaunch") == 3 and names.count("cudaStreamEndCapture") == 2
    assert [row.node for row in process.rows] == [1, 2, 3, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("name", FORMATS)
def test_the_judge_notices_each_figure_that_is_wrong(name, tmp_path):
    drawn = Draw(PROGRAM, name, pages=True)
    asked, sentences = drawn.outcome(tmp_path)
    assert not sentences and asked.verdict in ("complete", "unknown")
    (process,) = PROGRAM.play(amd=FORMATS[name].amd)
    truths = {process.pid: truth_of(process)}
    for index, figure in enumerate(asked.figures):
        if figure.name[0] == "op":
            continue
        wrong = replace(asked, figures=[*asked.figures])
        wrong.figures[index] = replace(figure, value=figure.value + 1)
        sentences = silent(wrong, truths, whole=True, operators=FORMATS[name].operators)
        assert len(sentences) == (figure.name[0] != "owner" or FORMATS[name].operators), figure


def test_a_fault_leaves_the_truth_alone():
    job = PROGRAM.play()
    recorded, true = damaged(job, (faults.Lost("rows", "start", 2), faults.TooLong()))
    assert true == job and len(recorded[0].rows) == 3
    assert recorded[0].rows[1].end_ns == job[0].rows[3].end_ns + 2_000_000
