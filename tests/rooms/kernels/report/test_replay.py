"""The replay section."""

from __future__ import annotations

import msgspec

from lab.rooms.kernels.replay.proof.result import OP_ONLY
from lab.rooms.kernels.report.sections import replay_section
from tests.rooms.kernels.report.made import replayed


def test_the_replay_section_tells_same_kernels_from_others():
    (section,) = replay_section(replayed())
    chart = next(block for block in section.blocks if block.kind == "chart")
    assert [series.name for series in chart.series] == [
        "same kernel",
        "other kernel or none",
    ] and chart.diagonal


def test_an_op_replay_on_a_cpu_shows_no_share_of_same_kernels_and_no_sums():
    one = replayed()
    one.device, one.device_name = "cpu", "x86_64"
    one.rows = [msgspec.structs.replace(row, same_kernel=OP_ONLY, err_pct=None) for row in one.rows]
    one.closure[0].compared_us = one.closure[0].replay_sum_us = 0.0
    (section,) = replay_section(one)
    tables = [block for block in section.blocks if block.kind == "table"]
    assert section.title == "Op replay"
    assert [table.caption for table in tables] == ["Coverage"]
    assert tables[0].frame["same_kernel"].tolist() == ["not looked at (CPU)"]
    assert "same_of_time_percent" not in tables[0].frame
    charts = [block for block in section.blocks if block.kind == "chart"]
    assert [[series.name for series in chart.series] for chart in charts] == [["op on the CPU, no kernel"]]
