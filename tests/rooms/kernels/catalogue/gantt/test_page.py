"""The chart as a page of its own."""

from __future__ import annotations

from lab.rooms.kernels.catalogue.gantt.bars import bars_of
from lab.rooms.kernels.catalogue.gantt.page import write_gantt_page
from lab.rooms.kernels.catalogue.rank import read_rank
from lab.rooms.kernels.trails import Trail
from tests.tracegen import TraceWriter


def test_a_hostile_kernel_name_stays_text_on_the_page(tmp_path):
    writer = TraceWriter()
    writer.kernel('</div><script>alert("x")</script>', 10, 5)
    trace = writer.write(tmp_path / "t.json")
    bars = bars_of([read_rank(Trail(rank=0, trace=trace))])
    text = write_gantt_page(bars, tmp_path, [trace]).read_text()
    assert "<script>alert" not in text
