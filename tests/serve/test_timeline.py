"""The columns of a page's timeline: every operation and call, on one clock, and who launched what."""

from __future__ import annotations

import io
import struct

import msgspec
import numpy as np
import pytest

from lab.errors import BadDataError
from lab.recordings.gantt.bars import Span
from lab.serve.timeline import MAGIC, Columns, _joint, columns_of, write_columns
from tests.tracegen import TraceWriter


def name_of(columns: Columns, bar: int) -> str:
    return columns.header["texts"][columns.header["kinds"]["name"][columns.kind[bar]]]


def start_us(columns: Columns, bar: int) -> float:
    return columns.start[bar] * columns.header["tickUs"]


def a_rank(rank: int = 0, late_us: float = 0.0, world_size: int = 2) -> TraceWriter:
    trace = TraceWriter(rank=rank, world_size=world_size)
    trace.gemm(64, 64, 32, 100 + late_us, 10)
    trace.gemm(64, 64, 32, 200 + late_us, 20)
    for at in range(8):
        trace.all_reduce(1024, 300 + 100 * at + late_us, 40)
    return trace


def test_every_kernel_and_call_is_a_bar_by_row_and_start(tmp_path):
    columns = columns_of([a_rank(world_size=1).write(tmp_path / "trace.json")])
    assert columns.header["count"] == len(columns.start) == 20, "ten kernels, ten launches"
    rows = ["GPU 0 stream 7 compute", "GPU 0 stream 28 communication", "CPU thread 4321 calls"]
    assert columns.header["rows"] == rows
    order = np.lexsort((columns.start, columns.row))
    assert (order == np.arange(20)).all()
    gemms = [bar for bar in range(20) if name_of(columns, bar) == "nvjet_gemm"]
    assert [start_us(columns, bar) for bar in gemms] == pytest.approx([5, 105]), "the first launch is at 0"
    assert [columns.dur[bar] * columns.header["tickUs"] for bar in gemms] == pytest.approx([10, 20])


def test_flows_lead_from_each_kernel_to_its_call_and_back(tmp_path):
    columns = columns_of([a_rank(world_size=1).write(tmp_path / "trace.json")])
    for bar in range(20):
        other = int(columns.flow[bar])
        assert int(columns.flow[other]) == bar
        call, kernel = sorted((bar, other), key=lambda one: start_us(columns, one))
        assert name_of(columns, call) == "cudaLaunchKernel" and name_of(columns, kernel) != "cudaLaunchKernel"
        assert start_us(columns, kernel) - start_us(columns, call) == pytest.approx(5)


def test_a_call_that_launched_nothing_and_a_kernel_without_a_call_have_no_flow(tmp_path):
    trace = TraceWriter()
    trace.gemm(64, 64, 32, 100, 10)
    trace.kernel("orphan", 150, 5)
    trace.event("cuda_runtime", "cudaDeviceSynchronize", 160, 3, args={"correlation": 999})
    columns = columns_of([trace.write(tmp_path / "trace.json")])
    flows = {name_of(columns, bar): int(columns.flow[bar]) for bar in range(len(columns.flow))}
    assert flows["orphan"] == flows["cudaDeviceSynchronize"] == -1 and flows["nvjet_gemm"] >= 0


def test_a_call_before_the_first_kernel_is_at_zero_and_marks_move_along(tmp_path):
    trace = a_rank(world_size=1)
    trace.event("cuda_runtime", "cudaMalloc", 10, 3, args={"correlation": 998})
    columns = columns_of([trace.write(tmp_path / "trace.json")])
    malloc = next(bar for bar in range(len(columns.start)) if name_of(columns, bar) == "cudaMalloc")
    gemm = next(bar for bar in range(len(columns.start)) if name_of(columns, bar) == "nvjet_gemm")
    assert start_us(columns, malloc) == 0 and start_us(columns, gemm) == pytest.approx(90)


def test_ranks_lie_under_each_other_on_the_clock_of_their_collectives(tmp_path):
    """Rank 1's clock is 5 ms late: its kernels are impossible as recorded, and are moved back."""
    paths = [
        a_rank(rank, late).write(tmp_path / f"rank{rank}.json") for rank, late in ((0, 0.0), (1, 5000.0))
    ]
    columns = columns_of(paths)
    rows = columns.header["rows"]
    assert all(row.startswith("rank 0 ") for row in rows[:3]) and all(
        row.startswith("rank 1 ") for row in rows[3:]
    )
    gemms = [bar for bar in range(len(columns.start)) if name_of(columns, bar) == "nvjet_gemm"]
    starts = [start_us(columns, bar) for bar in gemms]
    assert starts[0] == pytest.approx(starts[2], abs=1) and starts[1] == pytest.approx(starts[3], abs=1)
    assert any("by the ends of its collectives" in note for note in columns.header["notes"])
    assert {int(columns.flow[bar] >= 0) for bar in gemms} == {1}


def test_a_step_of_all_ranks_is_one_mark_and_steps_of_one_name_are_several(tmp_path):
    paths = []
    for rank in range(2):
        trace = a_rank(rank)
        for number, at in ((4, 90), (5, 400)):
            trace.step(number, at, 200)
            trace.gemm(64, 64, 32, at + 20 + rank, 10)
        paths.append(trace.write(tmp_path / f"rank{rank}.json"))
    assert [name for name, *_ in columns_of(paths).header["marks"]] == ["ProfilerStep#4", "ProfilerStep#5"]
    spans = [Span("step", 0, 10), Span("step", 20, 30), Span("step", 5, 12), Span("other", 6, 7)]
    assert _joint(spans) == [Span("step", 0, 12), Span("other", 6, 7), Span("step", 20, 30)]


def test_ranks_without_a_collective_are_said_to_be_on_their_own_clocks(tmp_path):
    paths = []
    for rank in range(2):
        trace = TraceWriter(rank=rank, world_size=2)
        trace.gemm(64, 64, 32, 100, 10)
        paths.append(trace.write(tmp_path / f"rank{rank}.json"))
    (note,) = columns_of(paths).header["notes"]
    assert note.startswith("rank 1: clock as recorded, no collective")


def test_a_rank_that_cannot_be_read_is_said(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    columns = columns_of([a_rank().write(tmp_path / "good.json"), tmp_path / "bad.json"])
    assert any("bad.json is left out" in note for note in columns.header["notes"])
    with pytest.raises(BadDataError):
        columns_of([tmp_path / "bad.json"])
    with pytest.raises(BadDataError, match="none of the recordings"):
        columns_of([tmp_path / "bad.json", tmp_path / "bad.json"])


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(BadDataError, match="no GPU operation, host call or range"):
        columns_of([TraceWriter().write(tmp_path / "empty.json")])


def test_more_bars_than_a_page_can_hold_are_refused_with_what_to_do(tmp_path, monkeypatch):
    path = a_rank(world_size=1).write(tmp_path / "trace.json")
    monkeypatch.setattr("lab.serve.timeline.MOST_BARS", 5)
    with pytest.raises(BadDataError, match="more than 5") as error:
        columns_of([path])
    assert "lab export" in (error.value.fix or "")


def test_the_file_is_a_header_and_columns_that_a_browser_can_view_in_place(tmp_path):
    columns = columns_of([a_rank(world_size=1).write(tmp_path / "trace.json")])
    file = io.BytesIO()
    write_columns(columns, file)
    data = file.getvalue()
    (size,) = struct.unpack("<Q", data[8:16])
    assert data[:8] == MAGIC and size % 8 == 0
    assert msgspec.json.decode(data[16 : 16 + size])["count"] == 20
    arrays = np.frombuffer(data[16 + size :], dtype="<u4").reshape(5, 20)
    for stored, column in zip(arrays, (columns.start, columns.dur, columns.row, columns.kind), strict=False):
        assert (stored == column).all()
    assert (arrays[4].view("<i4") == columns.flow).all()


def test_on_a_cpu_operators_are_drawn_by_depth(tmp_path):
    trace = TraceWriter(vendor="none")
    trace.op("aten::linear", 100, 50)
    trace.op("aten::addmm", 110, 30)
    trace.op("aten::relu", 200, 10)
    columns = columns_of([trace.write(tmp_path / "trace.json")])
    rows = columns.header["rows"]
    placed = {name_of(columns, bar): (rows[columns.row[bar]], start_us(columns, bar)) for bar in range(3)}
    assert placed["aten::linear"] == ("CPU thread 4321 level 0", 0.0)
    assert placed["aten::addmm"] == ("CPU thread 4321 level 1", pytest.approx(10))
    assert placed["aten::relu"] == ("CPU thread 4321 level 0", pytest.approx(100))
    assert any("no GPU operation" in note for note in columns.header["notes"])
