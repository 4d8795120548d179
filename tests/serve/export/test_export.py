"""`lab export`: other tools' formats hold what the run holds, and what is missing ends with exit code 1."""

from __future__ import annotations

import gzip
import json
import zipfile

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.errors import MissingError, StepFailed
from lab.recordings.load import load_capture
from lab.serve.export.all import export_run
from lab.serve.export.chakra import COMM_COLL_NODE, COMP_NODE
from lab.serve.export.ranks import group_of, recordings_below
from tests.serve.made import write_run
from tests.tracegen import BASE_NS, TraceWriter


def a_trace(rank: int = 0, world_size: int = 1) -> TraceWriter:
    """Two GEMMs and an all-reduce of 1,024 floats; the second GEMM on the first one's stream."""
    trace = TraceWriter(rank=rank, world_size=world_size)
    trace.gemm(64, 64, 32, 100, 10)
    trace.gemm(64, 64, 32, 120.5, 10.25)
    trace.all_reduce(1024, 140, 30)
    return trace


@pytest.fixture
def run(tmp_path):
    folder = write_run(tmp_path / "runs", "sweep_a", cells={"note": "=cmd()"})
    for rank in range(2):
        (folder / "256thread/torch_profiler" / f"rank{rank}").mkdir(parents=True)
        path = folder / "256thread/torch_profiler" / f"rank{rank}" / "trace.json"
        a_trace(rank, world_size=2).write(path)
    return folder


def fields(message: bytes) -> list[tuple[int, object]]:
    """A protobuf message as (field, number or bytes): written apart from what is tested."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        else:
            assert key & 7 == 2
            size = varint()
            found.append((key >> 3, message[at : at + size]))
            at += size
    return found


def messages(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = shift = used = 0
        while True:
            byte = data[used]
            size |= (byte & 0x7F) << shift
            shift, used = shift + 7, used + 1
            if byte < 0x80:
                break
        found.append(data[used : used + size])
        data = data[used + size :]
    return found


def node(message: bytes) -> dict:
    known = {1: "id", 2: "name", 3: "type", 6: "start_us", 7: "duration_us"}
    found: dict = {"ctrl": [], "data": []}
    for field, value in fields(message):
        if field in known:
            found[known[field]] = value.decode() if isinstance(value, bytes) else value
        elif field in (4, 5):
            assert all(byte < 0x80 for byte in value), "small ids are one byte each"
            found["ctrl" if field == 4 else "data"] += list(value)
        elif field == 10:
            (_, name), (_, attribute) = fields(value)
            found[name.decode()] = attribute.decode() if isinstance(attribute, bytes) else attribute
    return found


def test_a_chakra_trace_has_launch_and_stream_order(run, tmp_path):
    written, notes = export_run(run, "chakra", tmp_path / "out")
    assert [path.name for path in written] == [
        "sweep_a_256thread.0.et",
        "sweep_a_256thread.1.et",
    ] and not notes
    meta, *rest = messages(written[0].read_bytes())
    assert fields(meta) == [(1, b"0.0.4")]
    nodes = [node(one) for one in rest]
    assert [one["id"] for one in nodes] == list(range(6)), "by start, ids in that order"
    first, kernel1, second, kernel2, comm_op, comm = nodes
    assert [first["name"], second["name"], comm_op["name"]] == ["aten::mm", "aten::mm", "record_param_comms"]
    assert first["ctrl"] == [] and second["ctrl"] == [first["id"]] and comm_op["ctrl"] == [second["id"]]
    assert kernel1["data"] == [first["id"]]
    assert kernel2["data"] == [kernel1["id"], second["id"]], "its stream's earlier kernel and its op"
    assert comm["data"] == [comm_op["id"]], "the first on its own stream"
    assert (kernel1["type"], comm["type"]) == (COMP_NODE, COMM_COLL_NODE)
    assert (comm["comm_type"], comm["comm_size"]) == (0, 4096)
    assert (kernel2["start_us"], kernel2["duration_us"], kernel2["duration_ns"]) == (26, 10, 10250)
    assert kernel1["is_cpu_op"] == 0 and first["is_cpu_op"] == 1 and kernel1["stream"] == 7


def chakra_schema():
    """The messages of Chakra's et_def.proto that a file consists of, built by protobuf itself."""
    descriptors = pytest.importorskip("google.protobuf.descriptor_pb2", reason="needs protobuf")
    from google.protobuf import descriptor_pool, message_factory

    kinds = {"string": 9, "bool": 8, "int64": 3, "uint64": 4, "io": 11, "attribute": 11}
    messages = {
        "Attribute": {1: "string", 9: "int64", 13: "uint64", 27: "bool", 29: "string"},
        "IO": {1: "string", 2: "string", 3: "string"},
        "Metadata": {1: "string", 2: "attributes"},
        "Node": {
            1: "uint64",
            2: "string",
            3: "int64",
            4: "uint64s",
            5: "uint64s",
            6: "uint64",
            7: "uint64",
            8: "io",
            9: "io",
            10: "attributes",
        },
    }
    file = descriptors.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    for name, numbers in messages.items():
        made = file.message_type.add(name=name)
        for number, kind in numbers.items():
            label = 3 if kind.endswith("s") else 1
            kind = kind.removesuffix("s")
            to = {"io": ".et.IO", "attribute": ".et.Attribute"}.get(kind)
            made.field.add(name=f"f{number}", number=number, label=label, type=kinds[kind], type_name=to)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"et.{one}")) for one in messages]


def test_protobuf_itself_reads_a_chakra_trace_by_its_schema(run, tmp_path):
    _, _, metadata, node_of = chakra_schema()
    from google.protobuf.unknown_fields import UnknownFieldSet

    trace = a_trace()
    args = {"device": 0, "stream": 7, "correlation": 99, "bytes": 4096}
    trace.event("gpu_memcpy", "Memcpy HtoD", 90, 2, args=args, pid=0, tid=7)
    trace.write(tmp_path / "one.json")
    (path,), _ = export_run(tmp_path / "one.json", "chakra", tmp_path / "out")
    first, *rest = messages(path.read_bytes())
    assert metadata.FromString(first).f1 == "0.0.4"
    nodes = [node_of.FromString(one) for one in rest]
    assert [one.f1 for one in nodes] == list(range(7)) and not any(len(UnknownFieldSet(one)) for one in nodes)
    for one in nodes:
        assert all(dep < one.f1 for dep in (*one.f4, *one.f5))
        assert not any(len(UnknownFieldSet(it)) for it in one.f10)
    copy = {it.f1: it for it in nodes[0].f10}
    assert nodes[0].f2 == "Memcpy HtoD" and copy["tensor_size"].f13 == 4096, "uint64, as its feeder reads it"
    assert copy["duration_ns"].f9 == 2000 and copy["is_cpu_op"].f27 is False
    collective = {it.f1: it for it in nodes[-1].f10}
    assert (nodes[-1].f3, collective["comm_type"].f9, collective["comm_size"].f9) == (COMM_COLL_NODE, 0, 4096)


def test_perfetto_holds_every_kernel_of_every_rank(run, tmp_path):
    (path,), notes = export_run(run, "perfetto", tmp_path / "out")
    capture = load_capture(path)
    assert len(capture.ops) == 6 and not notes
    assert sorted(set((capture.ops.end_ns - capture.ops.start_ns).tolist())) == [10_000, 10_250, 30_000]


def test_chrome_keeps_every_event_and_nanosecond(run, tmp_path):
    (path,), _ = export_run(run, "chrome", tmp_path / "out")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kernels = [one for one in events if one.get("cat") == "kernel"]
    assert len(kernels) == 6 and {one["dur"] for one in kernels} == {10, 10.25, 30}


def test_another_profilers_recording_becomes_a_chrome_trace(run, tmp_path):
    (merged,), _ = export_run(run, "perfetto", tmp_path / "out")
    (path,), _ = export_run(merged, "chrome", tmp_path / "again")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    gemms = sorted(
        (one for one in events if one["name"] == "nvjet_gemm"), key=lambda one: (one["pid"], one["ts"])
    )
    assert [one["dur"] for one in gemms] == [10, 10.25, 10, 10.25] and {one["pid"] for one in gemms} == {
        0,
        1000,
    }
    assert gemms[1]["ts"] - gemms[0]["ts"] == pytest.approx(20.5, abs=0.3), "floats of json"


def test_a_workbook_has_a_sheet_per_table_and_runs_no_formula(run, tmp_path):
    (path,), notes = export_run(run, "xlsx", tmp_path / "out")
    with zipfile.ZipFile(path) as book:
        names = book.read("xl/workbook.xml").decode()
        text = "".join(book.read(name).decode() for name in book.namelist() if "sheet" in name)
    assert all(f'name="{name}"' in names for name in ("findings", "steps", "configs")) and not notes
    assert "=cmd()" in text and "<f>" not in text


def test_parquet_holds_tables_and_recordings_with_texts(run, tmp_path):
    written, _ = export_run(run, "parquet", tmp_path / "out")
    by_name = {path.name: pyarrow.parquet.read_table(path) for path in written}
    assert by_name["configs.parquet"].column("step_ms").to_pylist() == [10.0]
    ops = by_name["256thread_rank1_trace_ops.parquet"]
    assert ops.column("name").to_pylist()[:2] == ["nvjet_gemm"] * 2 and len(ops) == 3
    starts = [BASE_NS + 100_000, BASE_NS + 120_500, BASE_NS + 140_000]
    assert sorted(ops.column("start_ns").to_pylist()) == starts
    dims = by_name["256thread_rank0_trace_ranges.parquet"].column("dims").to_pylist()
    assert (
        "[[64, 32], [32, 64]]" in {str(one).replace(",", ", ").replace(",  ", ", ") for one in dims}
        and None in dims
    )


def test_what_is_missing_from_an_export_is_named_and_ends_with_1(run, tmp_path):
    (run / "256thread/torch_profiler/rank1/trace.json").write_text('{"traceEvents": [')
    for form in ("perfetto", "chrome", "chakra", "parquet"):
        done = CliRunner().invoke(cli, ["export", str(run), "--to", form, "-o", str(tmp_path / form)])
        assert isinstance(done.exception, StepFailed), form
        assert "left out:" in done.exception.what and done.stdout.strip(), "the other rank is written"
    (run / "256thread/torch_profiler/rank1/trace.json").unlink()
    _, notes = export_run(run, "perfetto", tmp_path / "out")
    assert notes == ["no recording of 256thread: rank 1"]


def test_execution_traces_beside_the_recordings_are_no_holes_in_an_export(run, tmp_path):
    trace = '{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}'
    (run / "256thread/torch_profiler/rank0/execution_trace_rank0.json").write_text(trace)
    _, notes = export_run(run, "perfetto", tmp_path / "out")
    assert notes == []


def test_nothing_to_export_is_an_error(tmp_path):
    empty = write_run(tmp_path, "nan_b")
    with pytest.raises(MissingError, match="no recording in this run"):
        export_run(empty, "perfetto", tmp_path / "out")
    with pytest.raises(MissingError, match="no such run"):
        export_run(tmp_path / "absent", "xlsx", tmp_path / "out")


def test_ranks_of_a_step_belong_together():
    assert (
        group_of("256thread/nccl_28channels/torch_profiler/rank0/trace.json") == "256thread/nccl_28channels"
    )
    assert group_of("steps/forward/trace.json") == "steps/forward" and group_of("trace.json") == "."


def test_links_are_not_followed(run, tmp_path):
    (run / "trace.json").symlink_to(a_trace().write(tmp_path / "elsewhere.json"))
    assert list(recordings_below(run)) == ["256thread"]
