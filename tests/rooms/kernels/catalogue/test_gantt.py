"""Who ran when: rows by stream and group, forwards, overlap; pixels of the picture; the page."""

from __future__ import annotations

import numpy as np
import pytest

from lab.errors import MissingError
from lab.recordings.gantt.bars import FAMILIES, busy_table, folded, packed
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.gantt import (
    MOST_ROWS,
    bar_table,
    bars_of,
    draw,
    merged,
    window,
    write_gantt,
    write_gantt_page,
)
from lab.rooms.kernels.trails import trails
from tests.rooms.kernels.made import catalogue_of, generation, profile_folder
from tests.tracegen import TraceWriter


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    path = generation(forwards=3, comm=True).write(tmp_path_factory.mktemp("gantt") / "trace_rank0.json")
    return bars_of(catalogue_of(path))


def test_compute_communication_and_copies_have_rows_of_their_own(bars):
    assert bars.rows == ["GPU 0 stream 7 compute", "GPU 0 stream 7 copies", "GPU 0 stream 28 communication"]
    assert len(bars.row) == 15


def test_ranks_stand_on_rows_of_their_own_on_one_time(tmp_path):
    folder = profile_folder(tmp_path, world_size=2)
    both = bars_of(read_catalogue(trails(folder)))
    assert both.rows == [
        f"rank {rank} GPU 0 stream 7 {what}" for rank in (0, 1) for what in ("compute", "copies")
    ]
    assert both.start_us[both.row == 0].min() == both.start_us[both.row == 2].min() == 0.0


def test_forwards_reach_from_their_first_launch_to_the_end_of_their_last(bars):
    assert [mark.name for mark in bars.marks] == ["prefill", "decode_1", "decode_2"]
    first = bars.marks[0]
    assert (first.start_us, first.end_us) == (
        0.0,
        381.0,
    )  # the copy: at 440, 1 us long; the first kernel: at 60


def test_a_pixel_belongs_to_the_family_with_most_time_in_it(tmp_path):
    writer = TraceWriter()
    writer.gemm(8, 8, 8, 10, 90)
    writer.kernel("void at::native::vectorized_elementwise_kernel<4, F>(int)", 100, 10)
    shown = bars_of(catalogue_of(writer.write(tmp_path / "t.json")))
    (one,) = merged(shown, 0.0, 200.0, pixels=1).to_dict("records")
    assert FAMILIES[int(one["family"])][0] == "matrix products"
    assert one["busy"] == 0.5, "half of the pixel is idle, and it shows"
    two = merged(shown, 0.0, 100.0, pixels=100)
    assert two["dur_us"].tolist() == [90.0, 10.0]


def test_a_picture_of_many_launches_holds_few_bars_and_no_time_is_lost(tmp_path):
    writer = TraceWriter()
    for at in range(3000):
        writer.kernel("nvjet_gemm", 10 * at, 10)
    many = bars_of(catalogue_of(writer.write(tmp_path / "t.json")))
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
    every = bars_of(catalogue_of(writer.write(tmp_path / "t.json")))
    few = folded(every, 3)
    assert few.rows[:2] == ["GPU 0 stream 13 compute", "GPU 0 stream 77 compute"]
    assert few.rows[2] == "98 more rows, 84.5% of the time"
    assert [int((few.row == row).sum()) for row in range(3)] == [1, 1, 98]
    assert float(few.dur_us.sum()) == float(every.dur_us.sum())
    assert len(draw(every).axes[0].get_yticks()) == MOST_ROWS
    assert folded(few, 3) is few


def test_the_table_is_that_of_the_original_scripts(bars, tmp_path):
    table = bar_table(bars)
    assert table.columns.tolist()[:6] == ["name", "start_ms", "dur_ms", "device", "stream", "category"]
    assert table["dur_ms"].sum() == pytest.approx(bars.dur_us.sum() / 1000)
    png = write_gantt(bars, tmp_path)[1].read_bytes()
    assert png.startswith(b"\x89PNG")


def test_overlap_is_where_compute_runs_beside_communication(bars):
    # The first mm runs from 60 to 70, the all-reduce from 62 to 70, once a forward.
    pieces = bars.overlap[0, 0]
    assert np.diff(pieces, axis=1).ravel().tolist() == [8.0, 8.0, 8.0]
    (row,) = busy_table(bars).to_dict("records")
    assert row["overlap_ms"] == pytest.approx(0.024)
    assert row["busy_ms"] + row["idle_ms"] == pytest.approx(row["span_ms"])


def test_a_hostile_kernel_name_stays_text_on_the_page(tmp_path):
    writer = TraceWriter()
    writer.kernel('</div><script>alert("x")</script>', 10, 5)
    catalogue = catalogue_of(writer.write(tmp_path / "t.json"))
    text = write_gantt_page(bars_of(catalogue), catalogue, tmp_path).read_text()
    assert "<script>alert" not in text
