"""Pixels go to the family with most time in them."""

from __future__ import annotations

import pytest

from lab.errors import MissingError
from lab.recordings.gantt.bars import FAMILIES, folded, packed
from lab.rooms.kernels.catalogue.gantt.bars import bars_of
from lab.rooms.kernels.catalogue.gantt.picture import MOST_ROWS, draw, merged, window
from lab.rooms.kernels.catalogue.rank import read_rank
from lab.rooms.kernels.trails import Trail
from tests.tracegen import TraceWriter


def test_a_pixel_belongs_to_the_family_with_most_time_in_it(tmp_path):
    writer = TraceWriter()
    writer.gemm(8, 8, 8, 10, 90)
    writer.kernel("void at::native::vectorized_elementwise_kernel<4, F>(int)", 100, 10)
    shown = bars_of([read_rank(Trail(rank=0, trace=writer.write(tmp_path / "t.json")))])
    (one,) = merged(shown, 0.0, 200.0, pixels=1).to_dict("records")
    assert FAMILIES[int(one["family"])][0] == "matrix products"
    assert one["busy"] == 0.5, "half of the pixel is idle, and it shows"
    two = merged(shown, 0.0, 100.0, pixels=100)
    assert two["dur_us"].tolist() == [90.0, 10.0]


def test_a_picture_of_many_launches_holds_few_bars_and_no_time_is_lost(tmp_path):
    writer = TraceWriter()
    for at in range(3000):
        writer.kernel("nvjet_gemm", 10 * at, 10)
    many = bars_of([read_rank(Trail(rank=0, trace=writer.write(tmp_path / "t.json")))])
    shown = merged(many, 0.0, many.end_us)
    assert len(shown) == 1 and shown["dur_us"].item() == pytest.approx(30_000)
    assert packed(many)["count"] == 3000, "the page keeps every bar"


def test_a_zoom_shows_a_forward_and_an_unknown_one_is_an_error(bars):
    low, high = window(bars, "decode_1")
    assert low < bars.marks[1].start_us < bars.marks[1].end_us < high
    with pytest.raises(MissingError, match="decode_9") as caught:
        window(bars, "decode_9")
    assert "prefill" in caught.value.fix


def test_many_streams_of_little_time_are_one_row_that_counts_them(tmp_path):
    writer = TraceWriter()
    for stream in range(100):
        writer.kernel("nvjet_gemm", 10 * stream, 9 if stream in (13, 77) else 1, stream=stream)
    every = bars_of([read_rank(Trail(rank=0, trace=writer.write(tmp_path / "t.json")))])
    few = folded(every, 3)
    assert few.rows[:2] == ["GPU 0 stream 13 compute", "GPU 0 stream 77 compute"]
    assert few.rows[2] == "98 more rows, 84.5% of the time"
    assert [int((few.row == row).sum()) for row in range(3)] == [1, 1, 98]
    assert float(few.dur_us.sum()) == float(every.dur_us.sum())
    assert len(draw(every).axes[0].get_yticks()) == MOST_ROWS
    assert folded(few, 3) is few
