"""The table of bars, and the times of each device."""

from __future__ import annotations

import numpy as np
import pytest

from lab.recordings.gantt.bars import busy_table
from lab.rooms.kernels.catalogue.gantt.tables import bar_table, write_gantt


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
