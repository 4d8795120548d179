"""Exports of nsys and Kineto traces become the same tables; bad files end in words."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from lab.errors import BadDataError, MissingError, StorageError, UsageError
from lab.recordings import nsys
from lab.recordings.capture import GRAPH, KERNEL, MEMCPY, OP, PUSH_POP, START_END
from lab.recordings.load import load_capture
from lab.recordings.nsys.scrub import scrub
from tests.recordings.sqlgen import PREFIX, Export, global_tid, training_step
from tests.recordings.sqlgen import START_END as START_END_EVENT
from tests.tracegen import TraceWriter


@pytest.fixture
def export():
    return Export()


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


def test_an_older_export_without_textId_and_graph_columns_reads_the_same(tmp_path):
    old = training_step(Export(schema="3.1.7", version="2021.4"))
    for table, columns in old.columns.items():
        old.columns[table] = [
            c for c in columns if c not in ("textId", "graphNodeId", "greenContextId", "domainId")
        ]
    before = load_capture(old.write(tmp_path / "old.sqlite"))
    after = load_capture(training_step(Export()).write(tmp_path / "new.sqlite"))
    assert before.text(before.ranges.name_id).tolist() == after.text(after.ranges.name_id).tolist()
    assert before.ops.start_ns.tolist() == after.ops.start_ns.tolist()
    assert set(before.ops.graph_node.tolist()) == {-1}


def test_columns_that_a_newer_version_adds_do_no_harm(tmp_path):
    new = training_step(Export(schema="3.99.0", version="2031.1"))
    new.columns[PREFIX + "KERNEL"].append("clusterX")
    assert len(load_capture(new.write(tmp_path / "a.sqlite")).ops) == 24


def test_an_export_of_another_major_schema_is_read_with_a_word_of_warning(tmp_path):
    capture = load_capture(training_step(Export(schema="4.0.0")).write(tmp_path / "a.sqlite"))
    assert any("schema 4.0.0" in said for said in capture.problems)


def test_a_needed_column_that_is_gone_is_named(tmp_path, export):
    export.columns[PREFIX + "KERNEL"].remove("correlationId")
    with pytest.raises(BadDataError, match="has no column correlationId"):
        load_capture(training_step(export).write(tmp_path / "a.sqlite"))


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
    assert capture.problems == ["nsys collected 60 CUDA events, but this export has 48"]


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


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (b"", BadDataError, "empty"),
        (b"hello", BadDataError, "neither"),
        (b"\x00" * 5000, BadDataError, "neither"),
        (b"SQLite format 3\x00", BadDataError, "truncated"),
        (b"{}", BadDataError, "traceEvents"),
        (b'{"traceEvents": [', BadDataError, "ends"),
    ],
)
def test_a_file_that_is_no_capture_ends_in_words(tmp_path, content, error, said):
    path = tmp_path / "a.sqlite"
    path.write_bytes(content)
    with pytest.raises(error, match=said):
        load_capture(path)


def test_a_cut_export_is_refused_wherever_it_was_cut(tmp_path, export):
    whole = training_step(export).write(tmp_path / "a.sqlite").read_bytes()
    for size in (50, 1000, 4096, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.sqlite").write_bytes(whole[:size])
        with pytest.raises(BadDataError, match=f"truncated: {size} of" if size >= 100 else "truncated"):
            load_capture(tmp_path / "cut.sqlite")


def test_a_damaged_page_is_an_error_with_the_file_named(tmp_path, export):
    path = training_step(export).write(tmp_path / "a.sqlite")
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(BadDataError, match="SQLite cannot read it") as caught:
        load_capture(path)
    assert caught.value.where == str(path)


def test_an_sqlite_file_of_somebody_else_is_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
        connection.execute("CREATE TABLE songs (name)")
        connection.commit()
    with pytest.raises(BadDataError, match="not an nsys export"):
        load_capture(tmp_path / "a.sqlite")


def test_text_where_a_time_should_be_is_an_error(tmp_path, export):
    training_step(export)
    export.rows[PREFIX + "KERNEL"][3]["start"] = "soon"
    with pytest.raises(BadDataError, match="values that are not integers"):
        load_capture(export.write(tmp_path / "a.sqlite"))


def test_a_gzipped_export_reads_as_the_plain_one_and_a_cut_one_is_refused(tmp_path, export):
    plain = training_step(export).write(tmp_path / "a.sqlite")
    packed = tmp_path / "a.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    one, other = load_capture(plain), load_capture(packed)
    assert one.ops.start_ns.tolist() == other.ops.start_ns.tolist()
    assert other.source == packed
    packed.write_bytes(packed.read_bytes()[:-200])
    with pytest.raises(BadDataError, match="truncated or damaged") as caught:
        load_capture(packed)
    assert caught.value.where == str(packed)
    packed.write_bytes(gzip.compress(plain.read_bytes()[:5000]))
    with pytest.raises(BadDataError, match="truncated: 5000 of") as caught:
        load_capture(packed)
    assert caught.value.where == str(packed)


def test_rows_without_a_sound_end_last_no_time_and_are_counted(tmp_path, export):
    export.range("forward", (1, 1), 100, 50)
    export.launch("k", (1, 1), (10, 20), (300, 200))
    export.launch("k", (1, 1), (30, 40), (300, None))
    capture = load_capture(export.write(tmp_path / "a.sqlite"))
    assert capture.ops.end_ns.tolist() == [300, 300]
    assert capture.ranges.end_ns.tolist() == [100]
    assert sum("0 ns long" in said for said in capture.problems) == 2


def test_a_name_that_is_no_utf8_is_read_with_replaced_characters(tmp_path, export):
    path = training_step(export).write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE StringIds SET value = CAST(X'66ff6f' AS TEXT) WHERE value = 'adam'")
        connection.execute("UPDATE NVTX_EVENTS SET text = CAST(X'66ff6f' AS TEXT) WHERE rowid = 1")
        connection.commit()
    capture = load_capture(path)
    assert "f\ufffdo" in capture.text(capture.ops.name_id)
    assert capture.name(int(capture.ranges.name_id[0])) == "f\ufffdo"


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(MissingError, match="no such file"):
        load_capture(tmp_path / "none.sqlite")
    with pytest.raises(MissingError, match="folder"):
        load_capture(tmp_path)


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
        f'#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\n/bin/cp {made} "$2"\necho "$2" > {tmp_path}/where\n'
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


def test_a_kineto_trace_fills_the_same_tables(tmp_path):
    trace = TraceWriter()
    here = {"pid": 5, "tid": 6}
    trace.event("user_annotation", "forward", 0, 100, **here)
    trace.event("cpu_op", "aten::mm", 10, 20, args={"Sequence number": 4}, **here)
    trace.event("cuda_runtime", "cudaLaunchKernel", 12, 3, args={"correlation": 9}, **here)
    trace.event("kernel", "gemm", 50, 8, args={"correlation": 9, "device": 0, "stream": 7}, pid=0, tid=7)
    name = "Memcpy HtoD (Pageable -> Device)"
    trace.event("gpu_memcpy", name, 60, 4, args={"correlation": 10, "device": 0, "bytes": 64}, pid=0, tid=7)
    path = trace.write(tmp_path / "trace.json.gz")
    capture = load_capture(path)
    assert capture.collector == "kineto"
    assert capture.ops.pid.tolist() == [5, 5]
    assert (capture.ops.end_ns - capture.ops.start_ns).tolist() == [8000, 4000]
    assert capture.ops.copy_kind.tolist() == [-1, 1]
    assert capture.ops.kind.tolist() == [KERNEL, MEMCPY]
    assert capture.ranges.kind.tolist() == [PUSH_POP, OP]
    assert capture.ranges.seq.tolist() == [-1, 4]


SECRETS = {
    "META_DATA_CAPTURE": [
        ("PROCESS_0:ENVIRONMENT_VARIABLE", "TOKEN=hush1"),
        ("PROCESS_0:COMMAND", "hush2"),
        ("PROCESS_0:ARGUMENT_0", "--key=hush3"),
        ("PROCESS_0:USER_NAME", "hush4"),
        ("CAPTURE_EVENT_TYPE", "Cuda"),
    ],
    "META_DATA_EXPORT": [
        ("EXPORT_HOST", "hush5"),
        ("EXPORT_PARAM_INPUT_PATH_ABS", "/home/hush6/a"),
        ("NEW_ONE", "hush7"),
    ],
    "TARGET_INFO_SYSTEM_ENV": [
        ("DeviceEnvironment", "TOKEN=hush8"),
        ("Hostname", "hush9"),
        ("NvDriverVersion", "580.1"),
    ],
}


def with_secrets(export):
    training_step(export)
    for table, rows in SECRETS.items():
        for name, value in rows:
            export.add(table, name=name, value=value)
    export.add(
        "TARGET_INFO_GPU",
        id=0,
        name="H200",
        uuid="hushA",
        busLocation="hushB",
        memoryBandwidth=4_814_304_000_000,
    )
    export.add("PROCESSES", globalPid=1, pid=1, name="hushC")
    export.add("ThreadNames", nameId=export.string("hushD"), globalTid=1)
    export.add(
        "ProcessStreams",
        globalPid=1,
        filenameId=export.string("hushE"),
        contentId=export.string("hushF printed"),
    )
    export.add("DIAGNOSTIC_EVENT", text="see /tmp/hushG/stdout.log")
    export.add("DIAGNOSTIC_EVENT", text="Number of CUDA events collected: \t48.")
    export.add("A_TABLE_OF_TOMORROW", text="hushH")
    export.add(PREFIX + "OF_TOMORROW", start=1, text="hushI")
    export.rows["NVTX_EVENTS"][0]["jsonText"] = "hushJ"
    export.string("hushK, used by nothing")
    return export


def test_a_scrubbed_copy_holds_no_secret_and_reads_the_same(tmp_path, export):
    source = with_secrets(export).write(tmp_path / "a.sqlite")
    done = scrub(source, tmp_path / "out" / "b.sqlite")
    data = (tmp_path / "out" / "b.sqlite").read_bytes()
    assert b"hush" not in data
    assert b"hush" in source.read_bytes()
    assert done.rows > 12 and done.strings >= 4
    before, after = nsys.load(source), nsys.load(tmp_path / "out" / "b.sqlite")
    for name in ("ops", "api", "ranges"):
        one, other = getattr(before, name), getattr(after, name)
        assert all(
            np.array_equal(getattr(one, c), getattr(other, c)) for c in one if not c.endswith("_id")
        ), name
        for column in [c for c in one if c.endswith("_id")]:
            assert before.text(getattr(one, column)).tolist() == after.text(getattr(other, column)).tolist()
    assert (after.version, after.schema, after.info) == (before.version, before.schema, {"driver": "580.1"})
    assert after.devices == before.devices
    assert after.problems == before.problems
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "b.sqlite"]


def test_a_gzipped_export_is_scrubbed_as_the_plain_one_and_a_bad_one_is_named(tmp_path, export):
    plain = with_secrets(export).write(tmp_path / "a.sqlite")
    packed, clean = tmp_path / "a.sqlite.gz", tmp_path / "clean.sqlite"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert (scrub(packed, clean).rows, b"hush" in clean.read_bytes()) == (
        scrub(plain, tmp_path / "c").rows,
        False,
    )
    packed.write_bytes(gzip.compress(b"text"))
    with pytest.raises(BadDataError) as caught:
        scrub(packed, tmp_path / "d.sqlite")
    assert caught.value.where == str(packed) and not (tmp_path / "d.sqlite").exists()


def test_a_full_disk_is_not_blamed_on_the_export(tmp_path, export, monkeypatch):
    def full(*_):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("lab.recordings.nsys.scrub._copy", full)
    with pytest.raises(StorageError) as caught:
        scrub(with_secrets(export).write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite")
    assert caught.value.where == str(tmp_path / "b.sqlite")


def test_the_reader_takes_no_string_that_no_event_uses(tmp_path, export):
    capture = load_capture(with_secrets(export).write(tmp_path / "a.sqlite"))
    assert not any("hush" in text for text in capture.strings)
    assert "hush" not in repr(capture.info)


def test_scrubbing_a_file_onto_itself_or_a_foreign_file_changes_nothing(tmp_path, export):
    source = with_secrets(export).write(tmp_path / "a.sqlite")
    before = source.read_bytes()
    with pytest.raises(UsageError, match="the same file"):
        scrub(source, tmp_path / "." / "a.sqlite")
    assert source.read_bytes() == before
    (tmp_path / "b.sqlite").write_bytes(b"text")
    with pytest.raises(BadDataError):
        scrub(tmp_path / "b.sqlite", tmp_path / "c.sqlite")
    assert not (tmp_path / "c.sqlite").exists()


@pytest.mark.data
def test_the_recorded_captures_read_whole(tmp_path, shared_data):
    path = tmp_path / "a.sqlite"
    path.write_bytes(
        gzip.decompress((shared_data / "nsys_h200" / "transformer_2layer.sqlite.gz").read_bytes())
    )
    capture = load_capture(path)
    assert (len(capture.ops), len(capture.api), len(capture.ranges), len(capture.sync)) == (691, 2274, 61, 10)
    assert capture.devices[0].name == "NVIDIA H200"
    assert capture.problems == []
    path.write_bytes(gzip.decompress((shared_data / "nsys_public" / "h100_2gpu_1s.sqlite.gz").read_bytes()))
    capture = load_capture(path)
    assert (len(capture.ops), len(capture.api), len(capture.ranges)) == (4368, 5796, 16782)
    assert set(capture.ops.pid.tolist()) == {111, 112}
