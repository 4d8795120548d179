"""Which op owns a launch, which forward it belongs to, and what happens to broken recordings."""

from __future__ import annotations

import pytest

from lab.errors import BadDataError
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.replay.calls.source import read_plan
from lab.rooms.kernels.trails import Trail
from tests.rooms.kernels.replay.recordings import (
    copy,
    event,
    kernel,
    mark,
    mul_node,
    mul_op,
    op,
    write_nodes,
    write_trace,
)


def plan_of(tmp_path, events, nodes=None):
    trace = write_trace(tmp_path / "trace.json.gz", events)
    return read_plan(trace, write_nodes(tmp_path / "et.json", nodes) if nodes else None)


def test_equal_calls_share_a_signature_and_every_launch_is_a_call(tmp_path):
    events = [mul_op(10.0, 1), kernel("mul_k", 12.0, 1.5, 1), mul_op(20.0, 2), kernel("mul_k", 22.0, 1.7, 2)]
    plan = plan_of(tmp_path, events, [mul_node(1), mul_node(2, 3, 2, 4)])
    assert [call.dur_us for call in plan.calls] == [(1.5,), (1.7,)]
    (only,) = plan.signatures
    assert (only.op, only.overload, only.outs) == ("aten::mul", "Tensor", ((2, 4),))
    assert only.origin == "execution_trace"
    assert plan.calls[1].ins == ((3, 0), (2, 0)) and plan.calls[1].outs == ((4, 0),)
    assert plan.origin.device_name == "NVIDIA H200" and plan.origin.num_sms == 132


def test_an_op_that_launches_owns_what_its_inner_ops_launch(tmp_path):
    outer = op("aten::baddbmm", 10.0, 20.0, 1, [[2]], ["float"], [[1]], [""])
    inner = op("aten::copy_", 12.0, 3.0, 2, [[2]], ["float"], [[1]], [""])
    plan = plan_of(tmp_path, [outer, inner, kernel("copy_k", 13.0, 1.0, 2), kernel("gemm_k", 15.0, 2.0, 1)])
    (only,) = plan.signatures
    assert only.op == "aten::baddbmm"
    assert [launch.name for launch in only.launches] == ["copy_k", "gemm_k"]


def test_a_wrapper_that_launches_nothing_itself_is_not_replayed_in_place_of_the_op(tmp_path):
    outer = op("aten::to", 10.0, 20.0, 1, [[2]], ["float"], [[1]], [""])
    plan = plan_of(
        tmp_path,
        [outer, op("aten::copy_", 12.0, 3.0, 2, [[2]], ["float"], [[1]], [""]), kernel("k", 13.0, 1.0, 2)],
    )
    assert [s.op for s in plan.signatures] == ["aten::copy_"]


def test_without_an_external_id_the_runtime_call_leads_to_the_op(tmp_path):
    call = event("Runtime", "cudaLaunchKernel", 12.0, 1.0, {"correlation": 9}, pid=1, tid=1)
    launch = kernel("k", 30.0, 1.0, -1, correlation=9, cat="Kernel")
    assert plan_of(tmp_path, [mul_op(10.0, 1), call, launch]).signatures[0].op == "aten::mul"


def test_collectives_and_launches_without_op_are_counted_as_uncovered(tmp_path):
    plan = plan_of(
        tmp_path, [mul_op(), kernel("ncclDevKernel_AllReduce", 12.0, 9.0, 1), kernel("lost", 40.0, 2.0, 77)]
    )
    assert {orphan.reason for orphan in plan.orphans} == {
        "a collective: it needs the other ranks, and a replay is one process",
        "no op owns it",
    }
    assert sum(orphan.dur_us for orphan in plan.orphans) == 11.0


def test_launches_belong_to_the_forward_that_their_op_ran_in(tmp_path):
    events = [
        mark("prefill", 0.0, 15.0),
        mul_op(10.0, 1),
        kernel("k", 40.0, 2.0, 1),
        mark("decode_1", 19.0, 10.0),
        mul_op(20.0, 2),
        kernel("k", 43.0, 3.0, 2),
        mul_op(60.0, 3),
        kernel("k", 61.0, 1.0, 3),
    ]
    plan = plan_of(tmp_path, events)
    assert [(f.name, f.phase, f.busy_us) for f in plan.forwards] == [
        ("prefill", "prefill", 2.0),
        ("decode_1", "decode", 3.0),
        ("between", "between", 1.0),
    ]


def test_copies_keep_their_bytes(tmp_path):
    plan = plan_of(
        tmp_path,
        [
            op("aten::copy_", 1.0, 5.0, 1, [[2]], ["float"], [[1]], [""]),
            copy("Memcpy HtoD (Pageable -> Device)", 2.0, 1.0, 1, 64),
        ],
    )
    assert (plan.signatures[0].launches[0].kind, plan.signatures[0].launches[0].bytes) == ("memcpy", 64)


def test_without_a_gpu_the_ops_that_work_stand_in_for_launches(tmp_path):
    view = op("aten::view", 30.0, 1.0, 3, [[2, 4]], ["float"], [[4, 1]], [""])
    plan = plan_of(tmp_path, [mul_op(10.0, 1), view])
    assert [s.op for s in plan.signatures] == ["aten::mul"] and not plan.origin.has_kernels
    assert plan.calls[0].dur_us == (5.0,)


def test_an_execution_trace_of_another_run_is_refused(tmp_path):
    with pytest.raises(BadDataError, match="different runs"):
        plan_of(tmp_path, [mul_op(10.0, 1), kernel("k", 12.0, 1.0, 1)], [mul_node(999)])


BROKEN = [b"", b"{", b'{"a": 1}', b"\x1f\x8b\x08\x00broken", b'{"traceEvents": []}']


@pytest.mark.parametrize("content", [*BROKEN, b'{"traceEvents": [{"ph": 3}]}'])
def test_a_broken_trace_is_an_error_in_words(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(BadDataError) as caught:
        read_plan(path)
    assert str(caught.value.location).startswith(str(path))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"schema": "1", "nodes": []}', b'{"schema": "1", "nodes": [{"id": 1']
)
def test_a_broken_execution_trace_is_an_error_in_words(tmp_path, content):
    trace = write_trace(tmp_path / "trace.json", [mul_op(), kernel("k", 12.0, 1.0, 1)])
    (tmp_path / "et.json").write_bytes(content)
    with pytest.raises(BadDataError) as caught:
        read_plan(trace, tmp_path / "et.json")
    assert caught.value.location == str(tmp_path / "et.json")


@pytest.mark.data
def test_every_launch_of_the_bloom_recording_has_an_owner_and_exact_arguments(shared_data):
    folder = shared_data / "kernels_h200"
    plan = read_plan(folder / "bloom560m_generate.json.gz", folder / "bloom560m_et.json.gz")
    assert not plan.orphans
    assert sum(len(call.dur_us) for call in plan.calls) == 2655 + 108 + 8
    assert {s.origin for s in plan.signatures} == {"execution_trace"}
    assert all(s.args is not None for s in plan.signatures)


def test_on_a_cpu_a_profile_and_its_replay_count_the_same_ops(tmp_path):
    ops = [
        op("aten::linear", 0.0, 50.0, 1),
        op("aten::t", 1.0, 2.0, 2),
        op("aten::addmm", 10.0, 30.0, 3),
        op("aten::copy_", 12.0, 3.0, 4),
        op("aten::to", 60.0, 20.0, 5),
        op("aten::_to_copy", 61.0, 18.0, 6),
        op("aten::copy_", 65.0, 5.0, 7),
    ]
    plan = plan_of(tmp_path, ops)
    assert [s.op for s in plan.signatures] == ["aten::addmm", "aten::copy_"]
    catalogue = read_catalogue([Trail(rank=0, trace=tmp_path / "trace.json.gz")])
    assert len(catalogue.launches) == len(plan.calls)
