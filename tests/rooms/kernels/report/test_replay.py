"""The replay section."""

from __future__ import annotations

from lab.rooms.kernels.report.replay import replay_section
from tests.rooms.kernels.report.made import replayed


def test_the_replay_section_tells_same_kernels_from_others():
    (section,) = replay_section(replayed())
    chart = next(block for block in section.blocks if block.kind == "chart")
    assert [series.name for series in chart.series] == [
        "same kernel",
        "other kernel or none",
    ] and chart.diagonal
    assert replay_section(None) == []
