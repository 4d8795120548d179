"""Kinds of collectives and their bandwidth factors."""

from __future__ import annotations

import pytest

from lab.recordings.pairing.rows import bus_factor, kind_of


@pytest.mark.parametrize(
    ("collective", "kernel", "kind", "factor"),
    [
        ("allreduce", "", "all_reduce", 1.75),
        ("_allgather_base", "", "all_gather", 0.875),
        ("_reduce_scatter_base", "", "reduce_scatter", 0.875),
        ("all_to_all", "", "all_to_all", 0.875),
        ("broadcast", "", "broadcast", 1.0),
        ("", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", "reduce_scatter", 0.875),
        ("", "ncclDevKernel_SendRecv(x)", "p2p", 1.0),
        ("", "ncclKernel_Reduce_RING_LL_Sum_float", "reduce", 1.0),
    ],
)
def test_bandwidth_factors_are_those_of_nccl_tests(collective, kernel, kind, factor):
    assert kind_of(collective, kernel) == kind and bus_factor(kind, 8) == factor
