"""FLOPs are known for at least as much of a recording's time as in TraceLens' published tables."""

from __future__ import annotations

import pytest

from bench.flops_coverage import coverage, reference_coverage

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("recording", "tables"),
    [
        ("rocm/mi300_qwen1.5_0.5b.json.gz", "rocm/mi300_qwen1.5_0.5b_reference"),
        ("public/traces/h100_qwen.json.gz", "public/traces/h100_qwen_reference"),
        (
            "captures/graphs/torch_compile_triton/trace.json.gz",
            "captures/graphs/torch_compile_triton/trace_perf_report_csvs",
        ),
    ],
)
def test_coverage_is_ahead_of_tracelens(shared_data, recording, tables):
    known, computing, _ = coverage(shared_data / recording)
    reference = reference_coverage(shared_data / tables)
    assert known >= reference - 1e-6 and computing >= reference - 0.05
