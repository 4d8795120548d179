"""The names of report files."""

from __future__ import annotations

from pathlib import Path

from lab.rooms.sweep.gemm.naming import report_name
from lab.rooms.sweep.knobs import Key


def test_report_names_leave_out_what_nobody_said():
    assert report_name("individual", Key(256, 28), "rank0") == Path(
        "256thread/individual_reports/perf_28ch_rank0.xlsx"
    )
    assert report_name("collective", Key(repeat=2), "") == Path("collective_reports/collective_repeat2.xlsx")
    named = report_name("collective", Key(256, 28, "nvls_tree", "simple", 2), "")
    assert named == Path("256thread/collective_reports/collective_28ch_nvls_tree_simple_repeat2.xlsx")
