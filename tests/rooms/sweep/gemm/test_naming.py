"""The names of report files."""

from __future__ import annotations

from pathlib import Path

from lab.rooms.sweep.gemm.naming import report_name


def test_report_names_leave_out_what_nobody_said():
    assert report_name("individual", (256, 28, 1), "rank0") == Path(
        "256thread/individual_reports/perf_28ch_rank0.xlsx"
    )
    assert report_name("collective", (0, 0, 2), "") == Path("collective_reports/collective_repeat2.xlsx")
