"""The page reads back the very bars."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from lab.rooms.kernels.catalogue.gantt.canvas import packed


def test_the_page_reads_back_the_very_bars(bars):
    data = packed(bars)
    start = np.frombuffer(base64.b64decode(data["start"]), "<u4") * data["tickUs"]
    dur = np.frombuffer(base64.b64decode(data["dur"]), "<u4") * data["tickUs"]
    assert start == pytest.approx(bars.start_us, abs=1e-3) and dur == pytest.approx(bars.dur_us, abs=1e-3)
    row = np.frombuffer(base64.b64decode(data["row"]), "<u2")
    assert row.tolist() == bars.row.tolist() == sorted(bars.row.tolist())
