"""Exports and reports of nsys as captures."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lab.errors import BadDataError, MissingError
from lab.recordings.capture import GRAPH, MEMCPY, PUSH_POP, START_END
from lab.recordings.load import load_capture
from tests.recordings.sqlgen import PREFIX, Export, global_tid, training_step
from tests.recordings.sqlgen import START_END as START_END_EVENT


def test_kernels_calls_and_ranges_come_with_their_process_thread_and_name(tmp_path, export):
    capture = load_capture(training_step(export).write(tmp_path / "a.sqlite"))
    assert (capture.collector, capture.version, capture.schema) == ("nsys", "2025.3.2.0", "3.20.3")
    assert len(capture.ops) == 3 * 8
    assert set(capture.text(capture.ops.name_id)) == {"gemm_forward", "fill", "gemm_backward", "adam"}
    assert set(capture.ops.pid.tolist()) == {1}
    assert set(capture.api.tid.tolist()) == {1, 2}
    assert capture.text(capture.ranges.name_id[:2]).tolist() == ["warmup", "forward"]
    assert capture.ranges.row.tolist() == list(range(1, 13))
    assert capture.problems == []


def test_range_names_lose_operator_numbers_and_keep_the_sequence(tmp_path, export):
    export.range("aten::mm, seq = 12, op_id = 345, sizes = [[2, 3], [3, 4]]", (1, 1), 0, 10)
    export.range("aten::view, op_id = 7", (1, 1), 20, 30)
    export.range("a, b", (1, 1), 40, 50)
    ranges = (capture := load_capture(export.write(tmp_path / "a.sqlite"))).ranges
    assert capture.text(ranges.name_id).tolist() == ["aten::mm", "aten::view", "a, b"]
    assert ranges.seq.tolist() == [12, -1, -1]
    assert capture.text(ranges.text_id)[0].endswith("[3, 4]]")


def test_texts_by_id_inline_texts_and_domains_all_get_their_names(tmp_path, export):
    export.add("NVTX_EVENTS", start=1, eventType=75, text="NCCL", globalTid=global_tid(1, 1), domainId=3)
    export.range("ncclAllReduce", (1, 1), 10, 20, domain=3, registered=True)
    export.range("forward", (1, 1), 5, 30)
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    assert capture.text(capture.ranges.name_id).tolist() == ["ncclAllReduce", "forward"]
    assert capture.text(capture.ranges.domain).tolist() == ["NCCL", ""]


def test_the_same_domain_number_of_two_processes_is_two_domains(tmp_path, export):
    for pid, name in ((1, "one"), (2, "two")):
        export.add("NVTX_EVENTS", start=1, eventType=75, text=name, globalTid=global_tid(pid, 1), domainId=1)
        export.range("r", (pid, 1), 10, 20, domain=1)
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    assert capture.text(capture.ranges.domain).tolist() == ["one", "two"]


def test_marks_are_no_ranges_and_unfinished_ranges_last_until_the_end(tmp_path, export):
    export.range("mark", (1, 1), 5, None, kind=34)
    export.range("open", (1, 1), 10, None)
    export.range("handed over", (1, 1), 10, 400, kind=START_END_EVENT, end_at=(1, 9))
    export.launch("k", (1, 1), (20, 30), (500, 700))
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    assert capture.ranges.end_ns.tolist() == [700, 400]
    assert capture.ranges.kind.tolist() == [PUSH_POP, START_END]
    assert capture.ranges.end_tid.tolist() == [-1, 9]
    assert any("1 range still open" in said for said in capture.problems)


def lost_pops(export, tmp_path):
    return [one for one in load_capture(export.write(tmp_path / "a.sqlite")).lacks if one.rule == "O"]


def test_ranges_whose_pop_was_lost_are_named_and_counted(tmp_path, export):
    export.range("epoch", (1, 1), 0, None)
    for step in range(4):
        export.range(f"step_{step}", (1, 1), 10 + 100 * step, None if step == 1 else 90 + 100 * step)
        export.range("forward", (1, 1), 20 + 100 * step, 50 + 100 * step)
    (lack,) = lost_pops(export, tmp_path)
    assert (lack.axis, lack.place, lack.n, lack.of) == ("ops", "hole", 1, 9) and "'step_1'" in lack.text


@pytest.mark.parametrize("elsewhere", [{"thread": (1, 2)}, {"domain": 3}, {"kind": START_END_EVENT}])
def test_an_open_range_is_judged_by_its_own_thread_domain_and_kind(tmp_path, export, elsewhere):
    thread = elsewhere.pop("thread", (1, 1))
    export.range("step_0", (1, 1), 10, None, **({"kind": START_END_EVENT} if "kind" in elsewhere else {}))
    export.range("step_1", thread, 100, 190, **elsewhere)
    assert lost_pops(export, tmp_path) == []


def test_ranges_cut_off_by_the_end_and_recursions_lost_nothing(tmp_path, export):
    export.range("step_0", (1, 1), 10, 90)
    export.range("step_1", (1, 1), 100, None)
    export.range("block", (1, 1), 110, 130)
    export.range("block", (1, 1), 115, 120)
    export.range("block", (1, 1), 140, None)
    export.range("block", (1, 1), 145, None)
    assert lost_pops(export, tmp_path) == []


def test_copies_are_named_by_their_direction_and_whole_graph_replays_are_warned_of(tmp_path, export):
    export.copy((1, 1), (0, 5), (10, 20), size=1024, kind=8)
    export.call("cudaGraphLaunch_v10000", (1, 1), (30, 40), corr=77)
    export.add(
        PREFIX + "GRAPH_TRACE",
        start=50,
        end=90,
        deviceId=0,
        contextId=1,
        streamId=7,
        correlationId=77,
        globalPid=global_tid(1),
        graphId=1,
    )
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    assert capture.ops.kind.tolist() == [MEMCPY, GRAPH]
    assert capture.text(capture.ops.name_id).tolist() == ["[CUDA memcpy Device-to-Device]", "[CUDA graph]"]
    assert any("--cuda-graph-trace=node" in said for said in capture.problems)


def test_an_export_without_kernels_or_ranges_says_so(tmp_path, export):
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    assert len(capture.ops) == len(capture.ranges) == len(capture.api) == 0
    assert capture.problems == ["no kernels were recorded", "no NVTX ranges were recorded"]


def test_rows_that_nsys_counted_and_the_export_lacks_are_noticed(tmp_path, export):
    training_step(export)
    export.add("DIAGNOSTIC_EVENT", text="Number of NVTX events collected: \t12.")
    export.add("DIAGNOSTIC_EVENT", text="Number of CUDA events collected: \t60.")
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    (lack,) = capture.lacks
    assert (lack.rule, lack.axis, lack.place, lack.n, lack.of, lack.share) == (
        "N",
        "gpu",
        "hole",
        12,
        60,
        0.2,
    )
    assert lack.text == "nsys collected 60 CUDA events, but this export has 48"


def test_gpus_are_found_by_process_and_cuda_device(tmp_path, export):
    for number, name in enumerate(("H100", "H200")):
        export.add(
            "TARGET_INFO_GPU",
            id=number,
            name=name,
            memoryBandwidth=4_814_304_000_000,
            smCount=132,
            clockRate=1_980_000_000,
            totalMemory=1,
            computeMajor=9,
            computeMinor=0,
        )
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=number, cudaId=0, pid=number + 1)
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    assert [(one.pid, one.device, one.name, one.compute) for one in capture.devices] == [
        (1, 0, "H100", (9, 0)),
        (2, 0, "H200", (9, 0)),
    ]


def test_a_gzipped_export_reads_as_the_plain_one_and_a_cut_one_is_refused(tmp_path, export):
    plain = training_step(export).write(tmp_path / "a.sqlite")
    packed = tmp_path / "a.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    one, other = load_capture(plain), load_capture(packed)
    assert one.ops.start_ns.tolist() == other.ops.start_ns.tolist()
    assert other.source == packed
    packed.write_bytes(packed.read_bytes()[:-200])
    with pytest.raises(BadDataError, match="the gzip stream ends before its end mark") as caught:
        load_capture(packed)
    assert caught.value.location == str(packed)
    packed.write_bytes(gzip.compress(plain.read_bytes()[:5000]))
    with pytest.raises(BadDataError, match="truncated: 5000 of") as caught:
        load_capture(packed)
    assert caught.value.location == str(packed)


def test_rows_without_a_sound_end_last_no_time_and_are_counted(tmp_path, export):
    export.range("forward", (1, 1), 100, 50)
    export.launch("k", (1, 1), (10, 20), (300, 200))
    export.launch("k", (1, 1), (30, 40), (300, None))
    export.launch("k", (1, 1), (50, 60), (300, (1 << 63) - 1))
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    assert capture.ops.end_ns.tolist() == [300, 300, 300]
    assert capture.ranges.end_ns.tolist() == [100]
    assert sum("0 ns long" in said for said in capture.problems) == 2


def test_a_report_needs_nsys_and_says_what_to_do_without(tmp_path, monkeypatch):
    path = tmp_path / "a.nsys-rep"
    path.write_bytes(b"\x1a\x00QUADD")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="nsys is not on PATH"):
        load_capture(path)


def test_a_report_is_exported_by_nsys_and_the_export_deleted(tmp_path, monkeypatch, export):
    made = training_step(export).write(tmp_path / "made.sqlite")
    tool = tmp_path / "bin" / "nsys"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\n'
        f'/bin/cp {made} "$2"\necho "$2" > {tmp_path}/where\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    path = tmp_path / "a.nsys-rep"
    path.write_bytes(b"\x1a\x00QUADD")
    capture = load_capture(path)
    assert (capture.source, len(capture.ops)) == (path, 24)
    assert not Path((tmp_path / "where").read_text().strip()).exists()


def test_a_failing_export_shows_the_last_words_of_nsys(tmp_path, monkeypatch):
    tool = tmp_path / "nsys"
    tool.write_text("#!/bin/sh\necho 'bad report' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "a.nsys-rep").write_bytes(b"x")
    with pytest.raises(BadDataError, match="bad report"):
        load_capture(tmp_path / "a.nsys-rep")


@pytest.mark.data
def test_the_recorded_captures_read_whole(unpacked):
    capture = load_capture(unpacked("nsys_h200/transformer_2layer.sqlite.gz"))
    assert (len(capture.ops), len(capture.api), len(capture.ranges), len(capture.sync)) == (691, 2274, 61, 10)
    assert capture.devices[0].name == "NVIDIA H200"
    assert capture.problems == []
    capture = load_capture(unpacked("nsys_public/h100_2gpu_1s.sqlite.gz"))
    assert (len(capture.ops), len(capture.api), len(capture.ranges)) == (4368, 5796, 16782)
    assert set(capture.ops.pid.tolist()) == {111, 112}


@pytest.mark.parametrize(("call", "rules"), [("cudaMalloc", []), ("cudaMallocManaged", ["T"])])
def test_migrations_that_could_not_be_traced_concern_programs_with_managed_memory(call, rules, tmp_path):
    export = Export()
    export.call(f"{call}_v3020", (1, 1), (0, 5), corr=1)
    export.launch("k", (1, 1), (10, 20), (30, 40))
    text = (
        "CUDA device 0: Unified Memory cannot be traced on devices that don't support peer-to-peer transfers."
    )
    export.add("DIAGNOSTIC_EVENT", text=text, severity=2)
    export.add("DIAGNOSTIC_EVENT", text="Number of CUDA events collected: \t3.", severity=1)
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    assert [lack.rule for lack in capture.lacks] == rules and capture.verdict == "complete"
