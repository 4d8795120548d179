"""Which op launched which kernel."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.recordings import views
from lab.recordings.kineto import read_kineto
from lab.recordings.owners import innermost
from lab.recordings.tables import Table
from tests.recordings.views.made import read, two_steps


def test_a_kernel_without_external_id_finds_its_op_by_correlation(tmp_path):
    trace = read(two_steps(), tmp_path)
    by_id = views.link_ops(trace)
    blind = replace(trace, ops=trace.ops.with_columns(external_id=np.full(len(trace.ops), -1)))
    assert views.link_ops(blind).tolist() == by_id.tolist()
    assert (by_id >= 0).sum() == 4


def test_a_recording_that_lost_every_gpu_row_is_not_one_of_a_cpu(tmp_path):
    trace = read(two_steps(), tmp_path)
    rowless = replace(trace, ops=trace.ops.part(len(trace.ops)), collectives=trace.collectives.part(10**6))
    assert views.device_of(rowless) == "gpu" and not len(views.gemm_instances(rowless))
    assert views.device_of(replace(rowless, api=trace.api.part(len(trace.api)))) == "cpu"


TREE = st.recursive(st.just([]), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=10)


def lay_out(tree: list, start: int, rows: list[tuple[int, int]]) -> int:
    """Nested spans from a tree; returns where the span ends."""
    at = start + 1
    mine = len(rows)
    rows.append((0, 0))
    for child in tree:
        at = lay_out(child, at, rows) + 1
    rows[mine] = (start, at)
    return at


@given(TREE, st.lists(st.integers(-1, 60), min_size=1, max_size=20))
def test_the_innermost_op_is_the_shortest_one_around(tree, asked):
    rows: list[tuple[int, int]] = []
    lay_out(tree, 0, rows)
    starts, ends = np.array(rows).T
    zero = np.zeros(len(rows), dtype=np.int64)
    ops = Table({"start_ns": starts, "end_ns": ends, "pid": zero, "tid": zero})
    at = np.array(asked)
    nothing = np.zeros(len(at), dtype=np.int64)
    plain = []
    for time in asked:
        around = [(end - start, row) for row, (start, end) in enumerate(rows) if start <= time <= end]
        plain.append(min(around)[0] if around else None)
    found = innermost(ops, nothing, nothing, at)
    assert [int(ends[row] - starts[row]) if row >= 0 else None for row in found] == plain
    assert (innermost(ops, nothing + 1, nothing, at) == -1).all()


H200 = {
    "256thread/nccl_28channels": (46.557, 144.618, 100.284, 2.735, 149.622, 30.030),
    "256thread/nccl_42channels": (48.911, 122.037, 75.884, 2.728, 127.568, 31.369),
    "512thread/nccl_28channels": (37.568, 54.953, 45.275, 47.760, 130.789, 21.667),
    "512thread/nccl_42channels": (34.754, 14.883, 14.883, 95.529, 145.336, 19.236),
}


@pytest.mark.data
def test_both_ways_to_link_agree_on_every_h200_kernel(shared_data):
    place = shared_data / "sweep_h200/256thread/nccl_28channels/torch_profiler/rank0/trace_step7.json.gz"
    trace = read_kineto(place)
    blind = replace(trace, ops=trace.ops.with_columns(external_id=np.full(len(trace.ops), -1)))
    assert views.link_ops(blind).tolist() == views.link_ops(trace).tolist()


def test_a_view_is_computed_once_per_trace_and_cannot_be_changed(tmp_path):
    trace = read(two_steps(), tmp_path)
    link = views.link_ops(trace)
    assert views.link_ops(trace) is link and not link.flags.writeable
    assert views.collective_instances(trace) is views.collective_instances(trace)
    other = replace(trace, ops=trace.ops.take(np.array([1, 0])))
    assert views.link_ops(other).tolist() == [link[1], link[0]]
    sent = pickle.loads(pickle.dumps(trace))
    assert views.link_ops(sent).tolist() == link.tolist()
