"""Perfetto files of torch.profiler, rocprofv3 and lab's own merge fill the tables of a capture."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("perfetto")

from lab.errors import BadDataError
from lab.recordings.capture import KERNEL, MEMCPY, OP, PUSH_POP
from lab.recordings.load import format_of, load_capture
from lab.recordings.merge.pftrace.merge import merge_pftrace
from lab.recordings.processes import process_captures
from lab.recordings.views import gemm_flops, link_ops
from tests.recordings.pftrace.made import Writer, staged_trace, torch_trace
from tests.tracegen import TraceWriter, training_step


def durations(table):
    return (table.end_ns - table.start_ns).tolist()


@pytest.mark.parametrize("form", ["plain", "gz", "compressed", "inline", "cleared"])
def test_torch_s_own_file_reads_the_same_in_every_form(tmp_path, form):
    made = torch_trace(intern=form != "inline", clear=form == "cleared")
    data = made.compressed() if form == "compressed" else made.data()
    path = tmp_path / "recording"
    path.write_bytes(gzip.compress(data) if form == "gz" else data)
    capture = load_capture(path)
    assert (capture.collector, capture.info["writer"]) == ("pftrace", "torch.profiler")
    ops, api, ranges = capture.ops, capture.api, capture.ranges
    names = capture.text(ops.name_id).tolist()
    assert names == ["first", "second", "Memcpy HtoD (Pageable -> Device)"]
    assert ops.start_ns.tolist() == [3000, 3100, 3300] and durations(ops) == [100, 150, 50]
    assert ops.kind.tolist() == [KERNEL, KERNEL, MEMCPY]
    assert ops.corr.tolist() == [31, 32, 33]  # from the flow where the argument was left out
    assert ops.device.tolist() == [0, 0, 0] and ops.stream.tolist() == [7, 7, 7]
    assert [ops.grid_x[0], ops.grid_y[0], ops.grid_z[0], ops.block_x[0]] == [8, 2, 1, 256]
    assert ops.copy_kind.tolist() == [-1, -1, 1] and ops.bytes.tolist() == [-1, -1, 64]
    assert ops.external_id.tolist() == [5, 5, -1] and ops.pid.tolist() == [20, 20, 20]
    assert api.corr.tolist() == [31, 32, 33] and durations(api) == [100, 100, 100]
    assert ranges.kind.tolist() == [PUSH_POP, OP] and durations(ranges) == [1200, 1000]
    assert (ranges.pid.tolist(), ranges.tid.tolist()) == ([20, 20], [21, 21])
    assert capture.text(ranges.dims_id).tolist() == ["", "[[2,3],[3,4]]"]
    assert capture.text(ranges.types_id).tolist() == ["", '["float","float"]'], "texts interned in lists"
    assert gemm_flops(capture).tolist() == [-1, 2 * 2 * 3 * 4], "as in a JSON trace"
    assert capture.processes[0].pid == 20 and capture.lacks == () and capture.problems == []


def test_a_flushed_id_has_its_new_meaning_afterwards(tmp_path):
    made = Writer()
    made.thread(1, 0, 7)
    made.slice(1, 10, 20, "kernel", "before")
    made.clear_names()
    made.slice(1, 30, 40, "kernel", "after")
    assert made.packets[1].track_event.name_iid == made.packets[3].track_event.name_iid == 1
    capture = load_capture(made.write(tmp_path / "a"))
    assert capture.text(capture.ops.name_id).tolist() == ["before", "after"]


def test_rocprofv3_s_file_is_refused_with_the_way_out(tmp_path):
    made = Writer()
    made.slice(1, 100, 150, "hip_api", "hipLaunchKernel", corr_id=9)
    made.slice(1, 200, 300, "kernel_dispatch", "gemm.kd", corr_id=9)
    with pytest.raises(BadDataError, match="of rocprofv3: it cuts kernels that overlap") as caught:
        load_capture(made.write(tmp_path / "a.pftrace"))
    assert "--output-format json or rocpd" in caught.value.fix


def test_what_perfetto_counted_as_lost_makes_the_recording_lossy(tmp_path):
    made = torch_trace()
    made.packets[-1].previous_packet_dropped = 1
    stats = made.packet().trace_stats
    stats.chunks_discarded = 7
    capture = load_capture(made.write(tmp_path / "a"))
    assert capture.verdict == "lossy"
    assert [(lack.rule, lack.place, lack.n) for lack in capture.lacks] == [
        ("packets", "hole", 1),
        ("buffer", "hole", 7),
    ]


def test_slices_without_an_end_are_counted_not_invented(tmp_path):
    made = torch_trace()
    made.begin(4, 9000, "kernel", "cut off")
    capture = load_capture(made.write(tmp_path / "a"))
    assert "cut off" not in capture.text(capture.ops.name_id)
    assert capture.problems == ["1 slice without an end left out"]
    assert [(lack.rule, lack.n) for lack in capture.lacks] == [("pairs", 1)]


@pytest.mark.parametrize("form", ["plain", "gz", "compressed", "cleared"])
def test_render_stages_are_the_operations_that_slices_would_be(tmp_path, form):
    made = staged_trace(clear=form == "cleared")
    data = made.compressed() if form == "compressed" else made.data()
    path = tmp_path / "staged"
    path.write_bytes(gzip.compress(data) if form == "gz" else data)
    capture, slices = load_capture(path), load_capture(torch_trace().write(tmp_path / "slices"))
    assert capture.text(capture.ops.name_id).tolist() == ["first", "second", "Memcpy"]
    other = {"name_id", "copy_kind", "src_kind", "dst_kind", "external_id", "regs", "dynamic_smem_bytes"}
    for name in set(capture.ops) - other:
        assert getattr(capture.ops, name).tolist() == getattr(slices.ops, name).tolist(), name
    assert capture.ops.regs.tolist() == [40, 40, -1]
    assert capture.ops.dynamic_smem_bytes.tolist() == [512, 512, -1]
    for name in ("start_ns", "end_ns", "corr", "tid"):
        assert getattr(capture.api, name).tolist() == getattr(slices.api, name).tolist()
    assert capture.lacks == ()
    cut, samples = capture.problems
    assert cut.startswith("1 operation of 3 end exactly where the next one of the stream begins: torch cuts")
    assert samples == "1 sample of GPU counters left out"


def test_a_kernel_that_was_launched_from_a_stage_has_its_op(tmp_path):
    (trace,) = process_captures(load_capture(staged_trace().write(tmp_path / "a")))
    owners = link_ops(trace)
    assert trace.text(trace.operators.name_id[owners]).tolist() == ["aten::mm"] * 3


def test_render_stages_of_unknown_kinds_are_a_hole(tmp_path):
    made = torch_trace()
    made.packet().gpu_render_stage_event.duration = 5
    packet = made.packet()
    packet.interned_data.gpu_specifications.add(iid=9, name="Binning")
    packet.gpu_render_stage_event.stage_iid = 9
    capture = load_capture(made.write(tmp_path / "a"))
    assert [(lack.rule, lack.place, lack.n) for lack in capture.lacks] == [("stages", "hole", 2)]
    assert "GPU render stages of kinds that lab does not know: ? (1), Binning (1)" in capture.problems


def test_a_file_of_a_graphics_driver_alone_is_refused(tmp_path):
    made = Writer()
    packet = made.packet()
    packet.interned_data.gpu_specifications.add(iid=9, name="Binning")
    packet.gpu_render_stage_event.stage_iid = 9
    with pytest.raises(BadDataError, match=r"no profiler that lab knows|without slices"):
        load_capture(made.write(tmp_path / "a"))


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_render_stages_with_damaged_bytes_are_errors_never_crashes(tmp_path, cut):
    data = bytearray(staged_trace().data())
    place = len(data) * cut // 40
    data[place : place + 3] = b"\xff\xff\x7f"
    (tmp_path / "a").write_bytes(data)
    try:
        load_capture(tmp_path / "a")
    except BadDataError as error:
        assert str(tmp_path / "a") in str(error.location)


def test_gpu_rows_of_two_processes_join_the_one_that_launched_them(tmp_path):
    made = Writer()
    for pid in (20, 30):
        made.thread(pid, pid, pid + 1)
    made.thread(4, 0, 7)
    for pid, corr in ((20, 1), (30, 2), (20, 3), (30, 3)):
        made.slice(pid, 100 * corr, 100 * corr + 9, "cuda_runtime", "cudaLaunchKernel", correlation=corr)
    for corr in (1, 2, 3):
        made.slice(4, 1000 * corr, 1000 * corr + 9, "kernel", "k", correlation=corr)
    capture = load_capture(made.write(tmp_path / "a"))
    assert [one.pid for one in capture.processes] == [20, 30, None]
    assert capture.ops.process.tolist() == [0, 1, 2], "both launched correlation 3"


def test_a_merged_file_reads_back_as_its_ranks_and_says_so(tmp_path):
    sources = []
    for rank in (0, 3):
        writer = TraceWriter(rank=rank, world_size=4)
        for number in range(3):
            training_step(writer, number, 1000 + 50 * number)
        sources.append((rank, writer.write(tmp_path / f"rank{rank}.json")))
    target = tmp_path / "merged.pftrace.gz"
    merge_pftrace(sources, target, load=load_capture)
    merged = load_capture(target)
    assert format_of(target).name == "pftrace" and merged.info["writer"] == "lab"
    assert [one.rank for one in merged.processes] == [0, 3]
    assert "a file that lab merged from the traces of 2 ranks (0, 3)" in merged.problems[0]
    for index, (_, path) in enumerate(sources):
        own = load_capture(path)
        for name in ("ops", "api", "ranges"):
            mine, its = getattr(own, name), getattr(merged, name)
            its = its.where(its.process == index)
            assert len(mine) == len(its) > 0
            rows = [np.lexsort((one.end_ns, one.start_ns)) for one in (mine, its)]
            for column in {
                "start_ns",
                "end_ns",
                "corr",
                "device",
                "stream",
                "external_id",
                "pid",
                "kind",
                "bytes",
            }:
                if column in set(mine):
                    a, b = getattr(mine, column)[rows[0]], getattr(its, column)[rows[1]]
                    if column in ("corr", "external_id"):  # equal in both ranks: renumbered
                        a, b = (np.unique(ids, return_inverse=True)[1] for ids in (a, b))
                    assert np.array_equal(a, b), (name, column)
            assert sorted(own.text(mine.name_id)) == sorted(merged.text(its.name_id))


def test_a_perfetto_file_of_something_else_is_named(tmp_path):
    made = Writer()
    made.slice(1, 10, 20, "gfx", "doFrame")
    with pytest.raises(BadDataError, match="of no profiler that lab knows \\(categories: gfx\\)"):
        load_capture(made.write(tmp_path / "a"))


def test_every_truncation_is_an_error_that_names_the_file(tmp_path):
    data, path = torch_trace().data(), tmp_path / "a.pftrace"
    whole = len(data)
    ends = {0}
    at = 0
    while at < whole:  # packets of this file are shorter than 16 KiB: lengths of one or two bytes
        length, size = (
            (data[at + 1], 2) if data[at + 1] < 128 else (data[at + 1] & 127 | data[at + 2] << 7, 3)
        )
        at += size + length
        ends.add(at)
    for keep in [*range(1, 40), *range(whole - 60, whole)]:
        path.write_bytes(data[:keep])
        if keep in ends:
            continue
        with pytest.raises(BadDataError) as caught:
            load_capture(path)
        assert caught.value.location == str(path), keep


def test_damaged_bytes_never_end_in_a_traceback(tmp_path):
    data, path = torch_trace().data(), Path(tmp_path / "a.pftrace")
    for at in range(0, len(data), 8):
        for value in (0x00, 0xFF):
            path.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
            try:
                load_capture(path)
            except BadDataError:
                pass


def test_a_compressed_packet_that_inflates_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.recordings.pftrace.packets.MOST_BYTES", 1 << 16)
    made = Writer(intern=False)
    made.slice(1, 10, 20, "kernel", "k" * (1 << 17))
    (tmp_path / "a").write_bytes(made.compressed())
    with pytest.raises(BadDataError, match="cut, or larger than lab reads"):
        load_capture(tmp_path / "a")


@pytest.mark.parametrize("grid", ["[", "[" * 50_000, "[1", "[true, null]", '["a"]', "{}", ""])
def test_a_grid_that_is_no_list_of_sizes_counts_as_not_recorded(tmp_path, grid):
    made = Writer(intern=False)
    made.thread(1, 0, 7)
    made.slice(1, 10, 20, "kernel", "k", grid=grid)
    ops = load_capture(made.write(tmp_path / "a")).ops
    assert len(ops) == 1 and ops.grid_y[0] == -1
    assert ops.grid_x[0] == -1


def test_lists_nested_without_end_are_an_error_not_a_crash(tmp_path):
    made = Writer(intern=False)
    made.begin(1, 10, "kernel", "k", grid=[1])
    one = made.packets[-1].track_event.debug_annotations[0]
    for _ in range(40):
        one = one.array_values.add()
    made.end(1, 20)
    with pytest.raises(BadDataError, match="is damaged"):
        load_capture(made.write(tmp_path / "a"))


def test_numbers_that_no_column_holds_count_as_not_recorded(tmp_path):
    made = Writer()
    made.thread(1, 0, 7)
    huge = {"stream": -(2**63), "bytes": "9" * 30, "grid": [2**40, 1], "correlation": 1e30}
    made.slice(1, 10, 20, "kernel", "k", **huge)
    ops = load_capture(made.write(tmp_path / "a")).ops
    assert (ops.stream[0], ops.bytes[0], ops.grid_x[0], ops.grid_y[0], ops.corr[0]) == (7, -1, -1, -1, -1)


def test_a_stage_of_impossible_length_is_left_out_and_said(tmp_path):
    made = staged_trace()
    for packet in made.packets:
        if packet.HasField("gpu_render_stage_event"):
            packet.gpu_render_stage_event.duration = 2**63 - 1
    capture = load_capture(made.write(tmp_path / "a"))
    assert len(capture.ops) == 0 and capture.verdict == "lossy"
