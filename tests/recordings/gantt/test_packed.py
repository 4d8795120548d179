"""The page reads back the very bars, and a hostile capture makes no bar that is not there."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest

from lab.recordings.gantt import bars_of_capture
from lab.recordings.gantt.bars import FAMILIES, assemble, packed
from lab.recordings.load import load_capture
from lab.recordings.projection import project
from tests.tracegen import TraceWriter


def unpacked(data, name, kind):
    return np.frombuffer(zlib.decompress(base64.b64decode(data[name])), kind)


def bars_of(tmp_path, writer):
    return bars_of_capture(project(load_capture(writer.write(tmp_path / "t.json"))))


@pytest.fixture
def bars(tmp_path):
    """A forward with a matrix product in a module, a loose kernel on another stream, and a copy."""
    writer = TraceWriter()
    writer.event("user_annotation", "ProfilerStep#0", 0, 500)
    writer.event("user_annotation", "forward", 1, 300)
    writer.event("user_annotation", "nn.Module: Linear_0", 2, 200)
    writer.gemm(2, 4, 3, 20, 8)
    name = "Memcpy HtoD (Pageable -> Device)"
    writer.event("gpu_memcpy", name, 30, 4, args={"device": 0, "stream": 7}, pid=0, tid=7)
    writer.kernel("=cmd|'/C calc'!A0 <script>", 60.5, 0.25, stream=9)
    return bars_of(tmp_path, writer)


def test_the_page_reads_back_the_very_bars(bars):
    data = packed(bars)
    start = np.cumsum(unpacked(data, "start", "<i4")) * data["tickUs"]
    dur = unpacked(data, "dur", "<u4") * data["tickUs"]
    assert start == pytest.approx(bars.start_us, abs=1e-3) and dur == pytest.approx(bars.dur_us, abs=1e-3)
    row = unpacked(data, "row", "<u4")
    assert row.tolist() == bars.row.tolist() == sorted(bars.row.tolist())
    kind = unpacked(data, "kind", "<u4")
    names = [data["texts"][data["kinds"]["name"][one]] for one in kind.tolist()]
    assert names == [bars.names[one] for one in bars.name.tolist()]
    families = [data["kinds"]["family"][one] for one in kind.tolist()]
    assert families == bars.family.tolist()


def test_a_bar_says_its_operator_shapes_module_and_phase(bars):
    assert bars.rows == ["GPU 0 stream 7 compute", "GPU 0 stream 7 copies", "GPU 0 stream 9 compute"]
    assert [FAMILIES[one][0] for one in bars.family.tolist()][:2] == ["matrix products", "copies and fills"]

    def text(label, bar):
        index = bars.labels[label][bar]
        return bars.texts[index] if index >= 0 else None

    assert text("op", 0) == "aten::mm" and text("shapes", 0) == "[[2,3],[3,4]]"
    assert text("module", 0) == "nn.Module: Linear_0" and text("phase", 0) == "forward"
    assert [text(label, 2) for label in ("op", "shapes", "module", "phase")] == [None] * 4
    assert [mark.name for mark in bars.marks] == ["ProfilerStep#0"]


def test_many_launches_of_few_kinds_pack_small_and_exactly():
    import pandas as pd

    count = 20_000
    frame = pd.DataFrame(
        {
            "rank": 0,
            "device": 0,
            "stream": np.arange(count) % 3,
            "start_us": np.arange(count) * 2.0,
            "dur_us": 1.5,
            "family": np.int8(0),
            "name": [f"k{index % 5}" for index in range(count)],
            "op": [f"op{index % 2}" if index % 7 else "" for index in range(count)],
        }
    )
    data = packed(assemble(frame, []))
    assert len(data["kinds"]["name"]) == 5 * 3, "names and ops, and no op at all"
    assert np.cumsum(unpacked(data, "start", "<i4"))[:2].tolist() == [0, 6000]
    assert sum(len(data[name]) for name in ("start", "dur", "row", "kind")) < 3 * count


def test_times_far_apart_still_fit_the_page_s_32_bits():
    import pandas as pd

    year_us = 365 * 24 * 3600 * 1e6
    frame = pd.DataFrame(
        {
            "rank": 0,
            "device": 0,
            "stream": 0,
            "start_us": [0.0, year_us],
            "dur_us": 10.0,
            "family": np.int8(0),
            "name": "k",
        }
    )
    data = packed(assemble(frame, []))
    start = np.cumsum(unpacked(data, "start", "<i4").astype(np.int64)) * data["tickUs"]
    assert start == pytest.approx([0, year_us], rel=1e-6)


def test_rows_say_what_is_not_recorded():
    import pandas as pd

    frame = pd.DataFrame(
        {"rank": [0, 1], "device": -2, "stream": -1, "start_us": 0.0, "dur_us": 1.0, "family": 0, "name": "k"}
    )
    assert assemble(frame, [], {0: "process 12", 1: "rank 4"}).rows == [
        "process 12 GPU of unknown number unknown stream compute",
        "rank 4 GPU of unknown number unknown stream compute",
    ]
