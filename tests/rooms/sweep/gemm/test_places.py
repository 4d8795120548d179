"""Where the pipeline reads and writes, and the names of its reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import MissingError
from lab.rooms.sweep.gemm import places, report_name
from lab.rooms.sweep.knobs import Key


def test_there_must_be_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such sweep"):
        places(tmp_path / "nowhere")


def test_report_names_leave_out_what_was_not_recorded() -> None:
    assert report_name("individual", Key(256, 28), "rank0") == Path(
        "256thread/individual_reports/perf_28ch_rank0.xlsx"
    )
    assert report_name("collective", Key(repeat=2), "") == Path("collective_reports/collective_repeat2.xlsx")
    named = report_name("collective", Key(256, 28, "nvls_tree", "simple", 2), "")
    assert named == Path("256thread/collective_reports/collective_28ch_nvls_tree_simple_repeat2.xlsx")
