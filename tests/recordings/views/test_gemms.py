"""Which GEMMs ran."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from lab.perfmodel.products import is_product
from lab.recordings import views
from lab.recordings.kineto import read_kineto
from lab.recordings.views import launches
from tests.recordings.views.made import read, two_steps
from tests.tracegen import BASE_NS


def test_gemms_carry_shape_step_and_the_union_of_their_kernels_without_fills(tmp_path):
    writer = two_steps()
    op = writer.gemm(4, 5, 6, 2000, 10)
    writer.kernel("splitk_reduce", 2005, 10, op=op, call_us=1997)
    lone = writer.op("aten::mm", 10, 5)
    for owner, ts, dur in ((op, 1900, 50), (op, 2010, 7), (lone, 1800, 5)):
        fill = {"External id": owner, "device": 0, "stream": 7, "correlation": 4242}
        writer.event("gpu_memset", "Memset", ts, dur, args=fill, pid=0, tid=7)
    table = views.gemm_instances(read(writer, tmp_path))
    assert table.dur_ns.tolist() == [10_000, 10_000, 15_000]
    assert table.step.tolist() == [5, 6, -1]
    assert (table.M[2], table.N[2], table.K[2], table.B[2], table.transpose[2]) == (4, 5, 6, 1, "NN")
    assert table.kernels[2] == "nvjet_gemm ; splitk_reduce"
    assert table.ts_ns[2] == BASE_NS + 2_000_000 and table.correlation[2] not in (-1, 4242)


def test_flops_follow_the_type_of_each_product(tmp_path):
    writer = two_steps()
    sizes = {"Concrete Inputs": ["", ""], "Input Dims": [[4, 6], [6, 5]], "Input Strides": [[6, 1], [5, 1]]}
    for index, dtype in enumerate(("c10::complex<float>", "float")):
        types = {"Input type": [dtype, dtype]}
        op = writer.op("aten::mm", 1994 + 100 * index, 4, **sizes, **types)
        writer.kernel("cgemm", 2000 + 100 * index, 10, op=op)
    trace = read(writer, tmp_path)
    table = views.gemm_instances(trace)
    flops = views.gemm_flops(trace)[trace.operator_rows[table.op_row]]
    assert flops[-2:].tolist() == [8 * 4 * 5 * 6, 2 * 4 * 5 * 6]


SHAPES = [
    ("aten::mm", "[[4,6],[6,5]]", "[[1,4],[5,1]]", (4, 5, 6, 1, False, "TN")),
    ("aten::addmm", "[[5],[4,6],[6,5],[],[]]", "[[1],[6,1],[1,6],[],[]]", (4, 5, 6, 1, True, "NT")),
    ("aten::bmm", "[[3,4,6],[3,6,5]]", "[[24,6,1],[30,5,1]]", (4, 5, 6, 3, False, "NN")),
    ("aten::baddbmm", "[[3,4,5],[3,4,6],[3,6,5],[],[]]", "[[],[24,6,1],[30,5,1]]", (4, 5, 6, 3, True, "NN")),
    ("aten::linear", "[[2,4,6],[5,6],[5]]", "[[24,6,1],[6,1],[1]]", (8, 5, 6, 1, True, "NN")),
    ("aten::linear", "[[2,4,6],[5,6],[]]", "[[24,6,1],[6,1],[]]", (8, 5, 6, 1, False, "NN")),
    ("aten::matmul", "[[2,4,6],[6,5]]", "[[24,6,1],[5,1]]", (8, 5, 6, 1, False, "NN")),
    ("aten::matmul", "[[2,3,4,6],[2,3,6,5]]", "", (4, 5, 6, 6, False, "??")),
    ("aten::mm", "[[4,6],[7,5]]", "", (-1, -1, -1, -1, False, "??")),
    ("aten::mm", "", "", (-1, -1, -1, -1, False, "??")),
    ("aten::mm", '[null,"x"]', "[3]", (-1, -1, -1, -1, False, "??")),
]


@pytest.mark.parametrize(("op", "dims", "strides", "expected"), SHAPES)
def test_gemm_sizes_are_read_from_the_arguments(op, dims, strides, expected):
    shape = launches._gemm_shape(op, dims, '["float","float","float"]', strides)
    assert tuple(shape[name] for name in ("M", "N", "K", "B", "bias", "transpose")) == expected


@pytest.mark.data
def test_the_mi300_gemms_equal_tracelens(shared_data):
    gemm = views.gemm_instances(read_kineto(shared_data / "rocm/mi300_qwen1.5_0.5b.json.gz"))
    with (shared_data / "rocm/mi300_qwen1.5_0.5b_reference/GEMM.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if is_product(row["name"])]
    assert rows
    for row in rows:
        sizes = [int(row[f"param: {name}"]) for name in ("B", "M", "N", "K")]
        mask = (gemm.op == row["name"]) & (np.stack([gemm.B, gemm.M, gemm.N, gemm.K], 1) == sizes).all(axis=1)
        strides = row["param: stride_A"] + " " + row["param: stride_B"]
        mask &= gemm.strides == strides
        assert mask.sum() == int(row["name_count"])
        mean_us = gemm.dur_ns[mask].mean() / 1000
        assert mean_us == pytest.approx(float(row["Kernel Time (µs)_mean"]), rel=1e-3)
