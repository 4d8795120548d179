"""Traces of every layout and vendor, against a plain reader."""

from __future__ import annotations

import json

import pytest

from lab.recordings import views
from lab.recordings.kineto import read_kineto
from tests.recordings.kineto.plain import SMALL, TABLES, as_rows, plain_read, same, some_trace
from tests.tracegen import LAYOUTS, TraceWriter


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "none"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_as_the_plain_reader_does(tmp_path, layout, vendor):
    path = some_trace(vendor).write(tmp_path / "t.json.gz", layout)
    trace = read_kineto(path, piece_bytes=SMALL)
    assert as_rows(trace) == plain_read(path)
    assert trace.problems == []
    assert same(trace, read_kineto(path))


def test_trace_events_may_be_the_first_or_the_last_key(tmp_path):
    document = some_trace().document()
    events = document.pop("traceEvents")
    (tmp_path / "first.json").write_text(json.dumps({"traceEvents": events, **document}))
    (tmp_path / "last.json").write_text(json.dumps({**document, "traceEvents": events}))
    first = read_kineto(tmp_path / "first.json", piece_bytes=SMALL)
    assert first.meta.rank == 3 and len(first.meta.devices) == 3
    assert same(first, read_kineto(tmp_path / "last.json", piece_bytes=SMALL))


def test_metadata_that_talks_about_trace_events_does_not_mislead(tmp_path):
    document = some_trace().document()
    decoy = {"note": '"traceEvents": [', "inner": {"traceEvents": [1, 2]}}
    (tmp_path / "t.json").write_text(json.dumps({"decoy": decoy, **document}))
    assert len(read_kineto(tmp_path / "t.json").ops) == 37


def test_an_event_that_holds_a_list_of_objects_is_not_cut_in_two(tmp_path):
    writer = TraceWriter()
    for at in range(40):
        writer.event(
            "cpu_op", "a", at, 1, args={"nested": [{"x": 1}, {"y": [{"z": 2}, {"w": 3}]}], "External id": at}
        )
    trace = read_kineto(writer.write(tmp_path / "t.json"), piece_bytes=128)
    assert trace.operators.external_id.tolist() == list(range(40))


def test_traces_of_torch_1_12_with_whole_absolute_microseconds_are_read(tmp_path):
    """As torch 1.12.1 writes them: no base, no versions, whole microseconds, an event over several lines."""
    events = "".join(
        f'''  {{
    "ph": "X", "cat": "{cat}",{" "}
    "name": "{name}", "pid": {pid}, "tid": 7,
    "ts": {ts}, "dur": {dur},
    "args": {{
      "Capture name": "PyTorch Profiler", "Capture iteration": 0,
      {args}
    }}
  }},
'''
        for cat, name, pid, ts, dur, args in (
            (
                "cpu_op",
                "aten::mm",
                9,
                1795263694128419,
                73,
                '"External id": 2, "Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"]',
            ),
            (
                "cuda_runtime",
                "cudaLaunchKernel",
                9,
                1795263694128430,
                5,
                '"cbid": 211, "correlation": 5, "external id": 2',
            ),
            (
                "kernel",
                "sgemm",
                0,
                1795263694128500,
                12,
                '"device": 0, "stream": 7, "correlation": 5, "external id": 2',
            ),
        )
    )
    text = f'\n{{\n  "schemaVersion": 1,\n  "deviceProperties": [\n  ],\n  "traceEvents": [\n{events}'
    last = (
        '{"name": "process_name", "ph": "M", "ts": 1795263694128262, "pid": 9, "tid": 0, '
        '"args": {"name": "python"}}'
    )
    (tmp_path / "t.json").write_text(f'{text}{last}\n  ],\n  "traceName": "t.json"\n}}')
    trace = read_kineto(tmp_path / "t.json")
    assert trace.problems == [] and trace.operators.start_ns.tolist() == [1795263694128419000]
    gemm = views.gemm_instances(
        trace
    )  # the link goes by correlation: this torch has no External id on kernels
    assert (gemm.M[0], gemm.N[0], gemm.K[0], gemm.dur_ns[0], gemm.kernels[0]) == (8, 2, 4, 12_000, "sgemm")
    assert trace.text(trace.process_names.name_id).tolist() == ["python"]


def test_a_piece_that_ends_inside_a_text_is_cut_elsewhere(tmp_path):
    writer = TraceWriter()
    for at in range(60):
        writer.op(f'odd }},{{"ph": "X"}}, {{ \\" {at % 7}' + "},{" * 40, at, 1)
    path = writer.write(tmp_path / "t.json")
    for piece_bytes in (128, 300, 1000):
        trace = read_kineto(path, piece_bytes=piece_bytes)
        assert trace.problems == [] and as_rows(trace) == plain_read(path)


def test_names_of_processes_and_threads_are_kept_and_the_last_one_counts(tmp_path):
    def named(kind: str, pid: object, tid: object, text: str) -> dict:
        key = "labels" if kind == "process_labels" else "name"
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 1, "args": {key: text}}

    events = [
        named("process_name", 0, 0, "python"),
        named("process_labels", 0, 0, "GPU 0"),
        named("process_labels", 9, 0, "CPU"),
        named("thread_name", 0, 7, "stream 7"),
        named("thread_name", 9, 1, "thread 1"),
        named("thread_name", 9, 1, "thread 1 (python)"),
        named("thread_name", "Spans", "", "x"),
        {"ph": "M", "name": "process_sort_index", "pid": 0, "tid": 0, "args": {"sort_index": 5}},
        {"ph": "M", "name": "thread_name", "pid": 3, "tid": 3},
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    trace = read_kineto(tmp_path / "t.json")
    assert trace.problems == [] and trace.process_names.pid.tolist() == [0, 9]
    assert trace.text(trace.process_names.name_id).tolist() == ["python", ""]
    assert trace.text(trace.process_names.label_id).tolist() == ["GPU 0", "CPU"]
    assert trace.text(trace.thread_names.name_id).tolist() == ["stream 7", "thread 1 (python)", "x"]
    assert (
        trace.thread_names.pid.tolist()[:2] == [0, 9]
        and trace.strings[-2 - trace.thread_names.pid[2]] == "Spans"
    )


def test_metadata_tells_rank_world_vendor_and_groups(tmp_path):
    meta = read_kineto(some_trace("amd").write(tmp_path / "t.json")).meta
    assert (meta.rank, meta.world_size, meta.vendor, meta.hip_version) == (3, 8, "amd", 13000)
    assert read_kineto(TraceWriter(vendor="none").write(tmp_path / "c.json")).meta.vendor == "none"


def test_collectives_point_at_their_kernels(tmp_path):
    trace = read_kineto(some_trace().write(tmp_path / "t.json"), piece_bytes=SMALL)
    names = trace.text(trace.ops.name_id[trace.collectives.kernel])
    assert len(names) == 12 and all("AllReduce" in name for name in names)
    assert set(trace.ops.grid_x[trace.collectives.kernel]) == {28}


def test_a_trace_without_events_has_empty_tables(tmp_path):
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    trace = read_kineto(tmp_path / "t.json")
    assert [len(getattr(trace, name)) for name in TABLES] == [0] * len(TABLES)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "kernels", "ops"),
    [
        ("kernels_h200/bloom560m_generate.json.gz", 2655 + 108 + 8, 10779),
        ("kernels_h200/cs336_small_training.json.gz", 2193 + 72 + 327, 17223),
        ("rocm/mi300_qwen1.5_0.5b.json.gz", 1516 + 1, 4619),
        ("rocm/mi300_resnet_ddp_rank0of8.json.gz", 2995 + 550 + 108, 8004),
        (
            "sweep_h200/256thread/nccl_28channels/torch_profiler/rank0/trace_step7.json.gz",
            584 + 50 + 102,
            5752,
        ),
    ],
)
def test_real_recordings_read_in_full_and_without_problems(shared_data, name, kernels, ops):
    trace = read_kineto(shared_data / name)
    assert (len(trace.ops), len(trace.operators)) == (kernels, ops)
    assert trace.problems == [] and as_rows(trace) == plain_read(shared_data / name)


def test_a_launch_without_a_number_gives_its_grid_to_no_kernel(tmp_path):
    sizes = {"grid": [4, 1, 1], "block": [64, 1, 1]}
    slices = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    call = slices | {"cat": "cuda_runtime", "name": "hipLaunchKernel", "args": sizes}
    kernel = slices | {"cat": "kernel", "name": "k", "args": {}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [call, kernel]}))
    assert read_kineto(path).ops.grid_x.tolist() == [-1]
