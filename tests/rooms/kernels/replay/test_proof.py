"""A replay counts only with proof; its error, coverage and closure are those of the numbers."""

from __future__ import annotations

import json

import msgspec
import pytest

from lab.errors import BadDataError
from lab.rooms.kernels.replay.args import (
    Call,
    CallRun,
    Forward,
    Launch,
    Origin,
    Orphan,
    RawReplay,
    ReplayPlan,
    Signature,
    SignatureRun,
)
from lab.rooms.kernels.replay.proof import (
    analyse_replay,
    compare,
    judge,
    lacking,
    status,
    terminal,
    total_closure,
)

GEMM = Launch("gemm", grid=(4, 1, 1), block=(128, 1, 1), smem_bytes=1024)
REDUCE = Launch("splitKreduce", grid=(2, 1, 1), block=(64, 1, 1))
FILL = Launch("Memset (Device)", "memset", bytes=4)


def a_plan(**more):
    signatures = (
        Signature(sig_id="a", op="aten::mm", launches=(GEMM, REDUCE)),
        Signature(sig_id="b", op="aten::zero_", launches=(FILL,)),
    )
    calls = (
        Call(0, 0, (10.0, 2.0), (0.0, 10.0)),
        Call(0, 1, (12.0, 2.0), (20.0, 32.0)),
        Call(1, 1, (1.0,), (40.0,)),
    )
    forwards = (Forward("prefill", "prefill", 100.0, 12.0), Forward("decode_1", "decode", 90.0, 15.0))
    origin = Origin(device_name="NVIDIA H200", num_sms=132)
    return ReplayPlan(origin=origin, forwards=forwards, signatures=signatures, calls=calls, **more)


def a_raw(launches=(GEMM, REDUCE), times=((11.0, 2.0), (13.0, 2.0)), device="cuda", status="ran"):
    runs = (
        SignatureRun(sig_id="a", status=status, launches=launches, dur_us=times),
        SignatureRun(sig_id="b", status="ran", launches=(FILL,), dur_us=((1.0,),)),
    )
    calls = (
        CallRun(0, 0, ((11.0, 2.0), (11.0, 2.0))),
        CallRun(1, 0, ((12.0, 3.0), (14.0, 1.0))),
        CallRun(2, 1, ((1.0,), (1.0,))),
    )
    return RawReplay(
        mode="in-order",
        device=device,
        device_name="NVIDIA H200",
        num_sms=132,
        repeats=2,
        signatures=runs,
        calls=calls,
        launch_sets=(launches, (FILL,)),
    )


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


def test_a_full_replay_covers_all_and_closes():
    result = judge(a_plan(), a_raw())
    assert result.coverage["kernel"].percent("same", "time_us") == 100.0
    assert [one.replay_sum_us for one in result.closure] == [13.0, 16.0]
    assert total_closure(result) == pytest.approx(100 * (29 / 27 - 1))
    gemm = next(row for row in result.rows if row.position == 0 and row.sig_id == "a")
    assert gemm.err_pct == pytest.approx(100 * (11.5 / 11.0 - 1), abs=1e-3)
    assert (gemm.count, gemm.n_ran, gemm.same_kernel) == (2, 4, "exact")
    assert result.bars == {"same_kernel_time": True, "median_error": True, "closure": False}


def test_another_kernel_does_not_count_however_close_its_time():
    result = judge(a_plan(), a_raw(launches=(GEMM, GEMM)))
    assert result.coverage["kernel"].percent("same", "time_us") == 0.0
    assert result.coverage["kernel"].percent("rebuilt", "launches") == 100.0
    assert result.rows[0].err_pct is None
    assert result.rows[1].launched == "gemm"
    assert status(result) == "warn"
    assert "NOT met" in terminal(result, a_plan())


def test_what_no_op_owns_lowers_the_coverage():
    plan = a_plan(orphans=(Orphan(GEMM, 26.0, "no op owns it"),))
    result = judge(plan, a_raw())
    assert result.coverage["kernel"].percent("same", "time_us") == pytest.approx(50.0)
    assert result.bars["same_kernel_time"] is False
    assert lacking(result) == ["gemm: 1 launches (26.0 us) not replayed: no op owns it"]


def test_a_replay_on_the_cpu_proves_no_kernel():
    raw = a_raw(launches=(), times=((5.0,),), device="cpu")
    raw.calls = ()
    result = judge(a_plan(), raw)
    assert result.coverage["kernel"].rebuilt_launches == 4
    assert result.coverage["kernel"].same_launches == 0
    assert set(result.bars.values()) == {None}
    assert lacking(result) == []


def test_times_of_another_gpu_are_not_held_against_the_bars():
    raw = a_raw()
    raw.device_name, raw.num_sms = "NVIDIA A100", 108
    result = judge(a_plan(), raw)
    assert set(result.bars.values()) == {None}
    assert any("not comparable" in note for note in result.notes)


def test_passes_that_launched_different_kernels_are_no_proof():
    raw = a_raw()
    raw.calls = (CallRun(0, -1, ((11.0, 2.0), (11.0, 2.0))), *raw.calls[1:])
    result = judge(a_plan(), raw)
    assert result.coverage["kernel"].same_launches == 2
    assert any("varied" in flag for row in result.rows for flag in row.flags)


def test_an_unresolved_call_is_a_row_with_its_reason_and_is_lacking():
    raw = a_raw(status="unresolved")
    raw.signatures[0].reason = "the trace lost the argument 'indices'"
    raw.calls = raw.calls[2:]
    result = judge(a_plan(), raw)
    assert result.coverage["kernel"].rebuilt_launches == 0
    assert lacking(result) == [
        "aten::mm: 4 launches (26.0 us) not replayed: the trace lost the argument 'indices'"
    ]


def test_files_of_two_runs_are_not_mixed(tmp_path):
    raw = a_raw()
    raw.signatures = raw.signatures[:1]
    with pytest.raises(BadDataError, match="different runs"):
        judge(a_plan(), raw)


def test_the_analysis_writes_its_rows_and_a_failed_step_is_told(tmp_path):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay_plan.json").write_bytes(msgspec.json.encode(a_plan()))
    assert analyse_replay(tmp_path, tmp_path).status == "fail"
    (tmp_path / "replay/replay_raw.json").write_bytes(msgspec.json.encode(a_raw()))
    found = analyse_replay(tmp_path, tmp_path / "out")
    rows = json.loads((tmp_path / "out/replay.json").read_text())["rows"]
    assert {(row["sig_id"], row["position"]) for row in rows} == {("a", 0), ("a", 1), ("b", 0)}
    assert len((tmp_path / "out/tables/replay.csv").read_text().splitlines()) == 4
    assert "100.00 % of kernel time" in found.terminal


def test_a_torn_result_is_an_error_in_words(tmp_path):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay_plan.json").write_bytes(msgspec.json.encode(a_plan()))
    (tmp_path / "replay/replay_raw.json").write_bytes(msgspec.json.encode(a_raw())[:-20])
    with pytest.raises(BadDataError, match="replay_raw"):
        analyse_replay(tmp_path, tmp_path)
