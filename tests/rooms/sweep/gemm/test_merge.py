"""Merging the ranks of a configuration."""

from __future__ import annotations

from pathlib import Path

from lab.rooms.sweep.gemm import within
from lab.rooms.sweep.gemm.merge import MergeOptions, merge_ranks


def test_nothing_to_merge_fails_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "t.pt.trace.json").write_text("{")
    report = merge_ranks(within(tmp_path, tmp_path / "out"), MergeOptions(workers=1))
    assert report.files == [] and "cut before its first event" in report.missing[0]
