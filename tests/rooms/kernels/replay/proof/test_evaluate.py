"""A replay counts only with proof; its error, coverage and closure are those of the numbers."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs

from lab.errors import BadDataError
from lab.rooms.kernels.replay.args import Call, CallRun, Origin, Orphan
from lab.rooms.kernels.replay.calls.signatures import COLLECTIVE, why_orphan
from lab.rooms.kernels.replay.proof.evaluate import bars, evaluate, total_closure
from lab.rooms.kernels.replay.proof.rows import compare
from lab.rooms.kernels.replay.proof.summary import missing_sentences, status, terminal
from tests.rooms.kernels.replay.made import FILL, GEMM, REDUCE, a_plan, a_raw


def test_a_full_replay_covers_all_and_closes():
    result = evaluate(a_plan(), a_raw())
    assert result.coverage["kernel"].percent("same", "time_us") == 100.0
    assert [one.replay_sum_us for one in result.closure] == [13.0, 16.0]
    assert total_closure(result) == pytest.approx(100 * (29 / 27 - 1))
    gemm = next(row for row in result.rows if row.position == 0 and row.sig_id == "a")
    assert gemm.err_pct == pytest.approx(100 * (11.5 / 11.0 - 1), abs=1e-3)
    assert (gemm.count, gemm.n_ran, gemm.same_kernel) == (2, 4, "exact")
    assert result.bars == {"same_kernel_time": True, "median_error": True, "closure": False}


def test_another_kernel_does_not_count_however_close_its_time():
    result = evaluate(a_plan(), a_raw(launches=(GEMM, GEMM)))
    assert result.coverage["kernel"].percent("same", "time_us") == 0.0
    assert result.coverage["kernel"].percent("rebuilt", "launches") == 100.0
    assert result.rows[0].err_pct is None
    assert result.rows[1].launched == "gemm"
    assert status(result) == "warn"
    assert "NOT met" in terminal(result, a_plan())


def test_what_no_op_owns_lowers_the_coverage():
    plan = a_plan(orphans=(Orphan(GEMM, 26.0, "no op owns it"),))
    result = evaluate(plan, a_raw())
    assert result.coverage["kernel"].percent("same", "time_us") == pytest.approx(50.0)
    assert result.bars["same_kernel_time"] is False
    assert missing_sentences(result) == ["gemm: 1 launch (26.0 us) not replayed: no op owns it"]


def test_collectives_which_mostly_wait_are_said_apart_from_computation():
    allreduce = structs.replace(GEMM, name="ncclDevKernel_AllReduce_Sum_f16_RING_LL")
    plan = a_plan(orphans=(Orphan(allreduce, 2000.0, COLLECTIVE),) * 2)
    result = evaluate(plan, a_raw())
    assert result.coverage["kernel"].percent("same", "time_us") == 100.0
    assert (result.coverage["collective"].launches, result.coverage["collective"].time_us) == (2, 4000.0)
    text = terminal(result, plan)
    assert "100.00 % of computing time (4 of 4 launches) replays as the same kernel" in text
    assert "2 collectives (4.000 ms, waiting for other ranks included) not replayed" in text
    assert status(result) == "warn" and len(missing_sentences(result)) == 1  # not all was replayed


@pytest.mark.parametrize(
    "name",
    ["ncclKernel_AllGather", "void vllm::cross_device_reduce_1stage<half>", "multimem_all_reduce_kernel"],
)
def test_no_library_s_collective_is_replayed(name):
    assert why_orphan(name, None) == COLLECTIVE


def test_a_replay_on_the_cpu_proves_no_kernel():
    raw = a_raw(launches=(), times=((5.0,),), device="cpu")
    raw.calls = ()
    result = evaluate(a_plan(), raw)
    assert result.coverage["kernel"].rebuilt_launches == 4
    assert result.coverage["kernel"].same_launches == 0
    assert set(result.bars.values()) == {None}
    assert missing_sentences(result) == []


def test_times_of_another_gpu_are_not_held_against_the_bars():
    raw = a_raw()
    raw.device_name, raw.num_sms = "NVIDIA A100", 108
    result = evaluate(a_plan(), raw)
    assert set(result.bars.values()) == {None}
    assert any("not comparable" in note for note in result.notes)


@pytest.mark.parametrize(
    ("same_us", "median_pct", "expected"),
    [(98.0, 5.0, (True, True)), (97.9, 5.1, (False, False))],
)
def test_98_percent_of_the_time_and_a_median_error_of_5_percent_are_the_bars(same_us, median_pct, expected):
    result = evaluate(a_plan(), a_raw())
    result.coverage["kernel"].time_us, result.coverage["kernel"].same_time_us = 100.0, same_us
    result.error["median_abs_pct"] = median_pct
    reached = bars(result)
    assert (reached["same_kernel_time"], reached["median_error"]) == expected


def test_passes_that_launched_different_kernels_are_no_proof():
    raw = a_raw()
    raw.calls = (CallRun(0, -1, ((11.0, 2.0), (11.0, 2.0))), *raw.calls[1:])
    result = evaluate(a_plan(), raw)
    assert result.coverage["kernel"].same_launches == 2
    assert any("varied" in flag for row in result.rows for flag in row.flags)


def test_an_unresolved_call_is_a_row_with_its_reason_and_is_missing():
    raw = a_raw(status="unresolved")
    raw.signatures[0].reason = "the trace lost the argument 'indices'"
    raw.calls = raw.calls[2:]
    result = evaluate(a_plan(), raw)
    assert result.coverage["kernel"].rebuilt_launches == 0
    assert missing_sentences(result) == [
        "aten::mm: 4 launches (26.0 us) not replayed: the trace lost the argument 'indices'"
    ]


def test_files_of_two_runs_are_not_mixed(tmp_path):
    raw = a_raw()
    raw.signatures = raw.signatures[:1]
    with pytest.raises(BadDataError, match="different runs"):
        evaluate(a_plan(), raw)


def cpu_recording():
    """A plan without kernels and its replay: ops with their own times, ten times slower the second time."""
    plan, raw = a_plan(), a_raw(launches=(), device="cpu")
    plan = msgspec.structs.replace(
        plan,
        origin=Origin(has_kernels=False),
        signatures=tuple(msgspec.structs.replace(one, launches=()) for one in plan.signatures),
        calls=(Call(0, 0, (10.0,)), Call(0, 1, (12.0,)), Call(1, 1, (1.0,))),
    )
    raw.calls = tuple(CallRun(place, 0, ((100.0,), (100.0,))) for place in range(3))
    raw.launch_sets = ((),)
    return plan, raw


def test_ops_called_again_on_a_cpu_are_no_kernel_proof_and_their_times_are_not_compared():
    plan, raw = cpu_recording()
    result = evaluate(plan, raw)
    assert {row.same_kernel for row in result.rows} == {"op called again, no kernel"}
    assert {row.us["median"] for row in result.rows} == {100.0}
    assert {row.err_pct for row in result.rows} == {None}
    assert (result.coverage["cpu_op"].rebuilt_launches, result.coverage["cpu_op"].same_launches) == (3, 0)
    assert result.error["median_abs_pct"] is None
    text = terminal(result, plan)
    assert text.startswith("op replay, mode in-order")
    assert "not a kernel replay" in text
    assert "closure" not in text and "+900" not in text
    assert status(result) == "warn"


def test_nothing_tested_is_not_ok():
    raw = a_raw()
    raw.device_name = "NVIDIA A100"
    assert status(evaluate(a_plan(), raw)) == "warn"
    raw = a_raw()
    raw.calls = (CallRun(0, 0, ((10.0, 2.0),)), CallRun(1, 0, ((12.0, 2.0),)), CallRun(2, 1, ((1.0,),)))
    assert status(evaluate(a_plan(), raw)) == "ok"


def test_the_same_kernel_is_the_same_name_grid_block_and_shared_memory():
    assert compare([GEMM, REDUCE], [GEMM, REDUCE]) == "exact"
    assert compare([GEMM], [msgspec.structs.replace(GEMM, grid=(5, 1, 1))]) == "other geometry"
    assert compare([GEMM], [msgspec.structs.replace(GEMM, smem_bytes=0)]) == "other geometry"
    assert compare([GEMM], [REDUCE]) == "other kernel"
    assert compare([GEMM, REDUCE], [REDUCE, GEMM]) == "other kernel"
    assert compare([GEMM, REDUCE], [GEMM]) == "other kernel"
    assert compare([GEMM], []) == "nothing launched"


def test_copies_compare_by_kind_name_and_bytes():
    assert compare([FILL], [msgspec.structs.replace(FILL, bytes=8)]) == "other geometry"
    assert compare([FILL], [FILL]) == "exact"
