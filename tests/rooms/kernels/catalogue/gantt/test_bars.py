"""Rows by stream and group, forwards and overlap."""

from __future__ import annotations

from lab.rooms.kernels.catalogue.gantt.bars import bars_of
from lab.rooms.kernels.catalogue.rank import read_rank
from lab.rooms.kernels.trails import trails
from tests.rooms.kernels.made import profile_folder


def test_compute_communication_and_copies_have_rows_of_their_own(bars):
    assert bars.rows == ["GPU 0 stream 7 compute", "GPU 0 stream 7 copies", "GPU 0 stream 28 communication"]
    assert len(bars.row) == 15


def test_ranks_stand_on_rows_of_their_own_on_one_time(tmp_path):
    folder = profile_folder(tmp_path, world_size=2)
    both = bars_of([read_rank(trail) for trail in trails(folder)])
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
