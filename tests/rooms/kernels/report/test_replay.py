"""The replay section."""

from __future__ import annotations

import msgspec

from lab.rooms.kernels.replay.proof.evaluate import evaluate
from lab.rooms.kernels.replay.proof.rows import OTHER
from lab.rooms.kernels.report.sections import replay_section
from tests.rooms.kernels.replay.made import a_plan, a_raw
from tests.rooms.kernels.replay.proof.test_evaluate import cpu_recording


def test_the_replay_section_tells_same_kernels_from_others():
    result = evaluate(a_plan(), a_raw())
    result.rows[0] = msgspec.structs.replace(result.rows[0], same_kernel=OTHER)
    (section,) = replay_section(result)
    chart = next(block for block in section.blocks if block.kind == "chart")
    names = [series.name for series in chart.series]
    assert names == ["same kernel", "other kernel or none"] and chart.diagonal


def test_an_op_replay_on_a_cpu_shows_no_share_of_same_kernels_and_no_sums():
    (section,) = replay_section(evaluate(*cpu_recording()))
    tables = [block for block in section.blocks if block.kind == "table"]
    assert section.title == "Op replay"
    assert [table.caption for table in tables] == ["Coverage"]
    assert tables[0].frame["same_kernel"].tolist() == ["not looked at (CPU)"]
    assert "same_of_time_percent" not in tables[0].frame
    charts = [block for block in section.blocks if block.kind == "chart"]
    assert [[series.name for series in chart.series] for chart in charts] == [["op on the CPU, no kernel"]]
