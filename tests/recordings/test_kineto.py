"""The reader: exact times, every layout, hostile and broken files, and the real recordings."""

from __future__ import annotations

import gzip
import json
import pickle
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.errors import BadDataError, MissingError
from lab.recordings import views
from lab.recordings.kineto import read_kineto
from lab.recordings.kineto.times import FLOAT_EXACT_US, digits_us_to_ns, float_us_to_ns
from lab.recordings.pieces import elements, last_boundary
from lab.recordings.tables import Trace
from tests.tracegen import BASE_NS, LAYOUTS, TraceWriter, training_step

SMALL = 2048  # bytes per piece, so that small files are cut many times
TABLES = ("kernels", "ops", "runtime", "ranges", "collectives", "comm_ops", "threads", "processes")


def some_trace(vendor: str = "nvidia") -> TraceWriter:
    writer = TraceWriter(rank=3, world_size=8, vendor=vendor)
    for number in range(12):
        training_step(writer, number, 1000.125 + 50 * number)
    writer.kernel('void f<a::{lambda(int)#1}, {lambda(int)#2}>("quoted \\"")', 1700.001, 1.002)
    return writer


def plain_read(path: Path) -> dict[str, list[tuple]]:
    """The twin: json.load of everything, Decimal times, one category after the other."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=Decimal)
    base = document.get("baseTimeNanoseconds", 0)
    rows: dict[str, list[tuple]] = {name: [] for name in ("kernels", "ops", "runtime", "ranges")}
    tables = {
        "kernel": "kernels",
        "gpu_memcpy": "kernels",
        "gpu_memset": "kernels",
        "cpu_op": "ops",
        "cuda_runtime": "runtime",
        "cuda_driver": "runtime",
        "user_annotation": "ranges",
        "gpu_user_annotation": "ranges",
    }
    for event in document["traceEvents"]:
        table = tables.get(event.get("cat"))
        if event.get("ph") == "X" and table:
            ts, dur = (int(Decimal(event.get(key, 0)) * 1000) for key in ("ts", "dur"))
            rows[table].append((base + ts, dur, event["name"]))
    return {name: sorted(found) for name, found in rows.items()}


def as_rows(trace: Trace) -> dict[str, list[tuple]]:
    found = {}
    for name in ("kernels", "ops", "runtime", "ranges"):
        table = getattr(trace, name)
        found[name] = sorted(
            zip(table.ts_ns.tolist(), table.dur_ns.tolist(), trace.text(table.name_id), strict=True)
        )
    return found


def same(a: Trace, b: Trace) -> bool:
    return a.meta == b.meta and all(
        values(a, name, column) == values(b, name, column) for name in TABLES for column in getattr(a, name)
    )


def values(trace: Trace, name: str, column: str) -> list:
    found = getattr(getattr(trace, name), column)
    if column in ("pid", "tid"):
        return [trace.strings[-2 - place] if place < -1 else place for place in found.tolist()]
    return (trace.text(found) if column.endswith("_id") and column != "external_id" else found).tolist()


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "none"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_as_the_plain_reader_does(tmp_path, layout, vendor):
    path = some_trace(vendor).write(tmp_path / "t.json.gz", layout)
    trace = read_kineto(path, piece_bytes=SMALL)
    assert as_rows(trace) == plain_read(path)
    assert trace.problems == []
    assert same(trace, read_kineto(path))


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_layouts_of_the_same_events_give_the_same_columns(tmp_path, layout):
    compact = read_kineto(some_trace().write(tmp_path / "a.json", "compact"))
    assert same(compact, read_kineto(some_trace().write(tmp_path / "b.json", layout), piece_bytes=SMALL))


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
    assert len(read_kineto(tmp_path / "t.json").kernels) == 37


def test_an_event_that_holds_a_list_of_objects_is_not_cut_in_two(tmp_path):
    writer = TraceWriter()
    for at in range(40):
        writer.event(
            "cpu_op", "a", at, 1, args={"nested": [{"x": 1}, {"y": [{"z": 2}, {"w": 3}]}], "External id": at}
        )
    trace = read_kineto(writer.write(tmp_path / "t.json"), piece_bytes=128)
    assert trace.ops.external_id.tolist() == list(range(40))


@given(st.integers(0, int(FLOAT_EXACT_US) * 1000 - 1))
def test_times_below_the_bound_survive_a_float64_to_the_nanosecond(time_ns):
    text = f"{time_ns // 1000}.{time_ns % 1000:03d}"
    assert float_us_to_ns(np.array([float(text)]))[0].tolist() == [time_ns]


def test_absolute_epoch_microseconds_keep_every_digit(tmp_path):
    text = '{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","ts":1790857026123456.789,"dur":0.001}]}'
    (tmp_path / "t.json").write_text(text)
    trace = read_kineto(tmp_path / "t.json")
    assert trace.ops.ts_ns.tolist() == [1790857026123456789]
    assert (trace.ops.dur_ns.tolist(), trace.meta.base_ns) == ([1], 0)


NUMBER = st.one_of(
    st.integers(0, 2**61),
    st.decimals(0, 2**50, places=3),
    st.decimals(-(2**50), 2**50, places=6),
    st.sampled_from(["NaN", "1e3", "", '"1,5"', "null", "9" * 400, "1.0005", "-1"]),
)


@given(
    st.lists(NUMBER, min_size=1, max_size=6)
    | st.lists(st.decimals(0, 2**50, places=3), min_size=1, max_size=6)
)
def test_digits_become_the_nanoseconds_that_decimals_give(numbers):
    texts = [str(number) for number in numbers]
    plain = []
    for text in texts:
        try:
            value = Decimal(text)
        except InvalidOperation:
            value = Decimal("NaN")
        small = value.is_finite() and abs(value) <= 2**52
        plain.append(int((value * 1000).to_integral_value()) if small else None)
    found, known = digits_us_to_ns([text.encode() for text in texts])
    for ns, is_known, expected, text in zip(found.tolist(), known.tolist(), plain, texts, strict=True):
        if expected is not None:
            assert is_known and ns == expected
        elif is_known:  # whole numbers all at once may be read further than one by one
            assert ns == int(text) * 1000


def test_traces_of_torch_1_12_with_whole_absolute_microseconds_are_read(tmp_path):
    """As torch 1.12.1 writes them: no base, no versions, whole microseconds, an event over several lines."""
    events = "".join(
        f'''  {{
    "ph": "X", "cat": "{cat}",{" "}
    "name": "{name}", "pid": {pid}, "tid": 7,
    "ts": {ts}, "dur": {dur},
    "args": {{
      "Trace name": "PyTorch Profiler", "Trace iteration": 0,
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
    last = '{"name": "process_name", "ph": "M", "ts": 1795263694128262, "pid": 9, "tid": 0, "args": {"name": "python"}}'
    (tmp_path / "t.json").write_text(f'{text}{last}\n  ],\n  "traceName": "t.json"\n}}')
    trace = read_kineto(tmp_path / "t.json")
    assert trace.problems == [] and trace.ops.ts_ns.tolist() == [1795263694128419000]
    gemm = views.gemm_instances(
        trace
    )  # the link goes by correlation: this torch has no External id on kernels
    assert (gemm.M[0], gemm.N[0], gemm.K[0], gemm.dur_ns[0], gemm.kernels[0]) == (8, 2, 4, 12_000, "sgemm")
    assert trace.text(trace.processes.name_id).tolist() == ["python"]


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
    assert trace.problems == [] and trace.processes.pid.tolist() == [0, 9]
    assert trace.text(trace.processes.name_id).tolist() == ["python", ""]
    assert trace.text(trace.processes.label_id).tolist() == ["GPU 0", "CPU"]
    assert trace.text(trace.threads.name_id).tolist() == ["stream 7", "thread 1 (python)", "x"]
    assert trace.threads.pid.tolist()[:2] == [0, 9] and trace.strings[-2 - trace.threads.pid[2]] == "Spans"


def test_the_base_time_is_added(tmp_path):
    trace = read_kineto(some_trace().write(tmp_path / "t.json"))
    assert trace.kernels.ts_ns.min() == BASE_NS + 1_010_125
    assert trace.meta.base_ns == BASE_NS


def test_metadata_tells_rank_world_vendor_and_groups(tmp_path):
    meta = read_kineto(some_trace("amd").write(tmp_path / "t.json")).meta
    assert (meta.rank, meta.world_size, meta.vendor, meta.hip_version) == (3, 8, "amd", 13000)
    assert meta.process_groups[0].ranks == tuple(range(8))
    assert read_kineto(TraceWriter(vendor="none").write(tmp_path / "c.json")).meta.vendor == "none"


def test_collectives_point_at_their_kernels(tmp_path):
    trace = read_kineto(some_trace().write(tmp_path / "t.json"), piece_bytes=SMALL)
    names = trace.text(trace.kernels.name_id[trace.collectives.kernel])
    assert len(names) == 12 and all("AllReduce" in name for name in names)
    assert set(trace.kernels.grid_x[trace.collectives.kernel]) == {28}


def test_odd_events_are_kept_as_far_as_they_can_be_read_and_counted(tmp_path):
    good = {"ph": "X", "cat": "cpu_op", "name": "good", "pid": 1, "tid": 1, "ts": 5, "dur": 2}
    events = [
        good,
        {**good, "name": "text pid", "pid": "Spans", "tid": ""},
        {**good, "name": "args as text", "args": "hello"},
        {**good, "name": "args null", "args": None},
        {**good, "name": "id as float", "args": {"External id": 3.5}},
        {**good, "name": "huge id", "args": {"External id": 2**80}},
        {key: value for key, value in good.items() if key != "dur"},
        {key: value for key, value in good.items() if key != "ts"},
        {**good, "name": None},
        {**good, "ph": "Z", "name": "unknown phase"},
        {**good, "cat": "unheard of"},
        {"ph": "M"},
        {},
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    trace = read_kineto(tmp_path / "t.json")
    names = list(trace.text(trace.ops.name_id))
    assert names == ["good", "text pid", "args as text", "args null", "id as float", "huge id", "good", ""]
    assert trace.ops.external_id.tolist() == [-1] * 8
    assert trace.ops.pid[1] == -2 - trace.strings.index("Spans") and trace.ops.tid[1] == -1
    report = "\n".join(trace.problems)
    assert "without a readable ts" in report and "without a readable dur" in report
    assert "64-bit" in report and "odd events" in report


def test_control_characters_and_bad_utf8_in_names_are_replaced_and_counted(tmp_path):
    raw = (
        b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a\x01b\nc","ts":1,"dur":1},'
        b'{"ph":"X","cat":"cpu_op","name":"d\xff","ts":2,"dur":NaN},'
        b'{"ph":"X","cat":"cpu_op","name":"\\ud800","ts":3,"dur":1},'
        b'{"ph":"X","cat":"cpu_op","name":"plain","ts":4.25,"dur":1}]}'
    )
    (tmp_path / "t.json").write_bytes(raw)
    trace = read_kineto(tmp_path / "t.json")
    assert trace.ops.ts_ns.tolist() == [1000, 2000, 3000, 4250]
    assert trace.strings[0] == "a\x01b\nc" and trace.strings[1] == "d\ufffd" and "plain" in trace.strings
    assert "\n".join(trace.strings).encode()  # writable again
    assert any("(3 times)" in problem for problem in trace.problems)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_cut_file_is_refused_with_its_place_or_salvaged_in_part(tmp_path, share, packed):
    whole = read_kineto(some_trace().write(tmp_path / "whole.json"))
    name = "t.json.gz" if packed else "t.json"
    path = some_trace().write(tmp_path / name)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(BadDataError) as caught:
        read_kineto(path, piece_bytes=SMALL)
    assert str(path) in caught.value.where and "byte" in caught.value.where
    part = read_kineto(path, salvage=True, piece_bytes=SMALL)
    assert part.truncated and not whole.truncated and "missing" in "".join(part.problems)
    n = len(part.ops)
    assert 0 < n < len(whole.ops)
    assert part.ops.external_id.tolist() == whole.ops.external_id[:n].tolist()
    assert part.meta.rank == 3


def test_a_cut_file_that_kept_its_base_time_at_the_end_says_that_it_is_lost(tmp_path):
    document = some_trace("amd").document()
    base_ns = document.pop("baseTimeNanoseconds")
    text = json.dumps({**document, "baseTimeNanoseconds": base_ns})  # as on ROCm
    (tmp_path / "t.json").write_text(text[:-400])
    part = read_kineto(tmp_path / "t.json", salvage=True)
    assert (part.meta.base_ns, part.meta.rank) == (0, 3)
    assert any("base time is missing" in problem for problem in part.problems)


def test_bad_utf8_in_shapes_and_names_that_are_kept_unread_is_replaced_and_counted(tmp_path):
    raw = (
        b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"args":{"Input type":["d\xff"]}},'
        b'{"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"t\xff"}}]}'
    )
    (tmp_path / "t.json").write_bytes(raw)
    trace = read_kineto(tmp_path / "t.json")
    assert trace.text(trace.ops.types_id).tolist() == ['["d\ufffd"]'] and "(2 times)" in trace.problems[0]
    assert trace.text(trace.threads.name_id).tolist() == ["t\ufffd"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Trace]:
    path = some_trace().write(tmp_path_factory.mktemp("whole") / "t.json", "one_line_per_block")
    return path.read_bytes(), read_kineto(path)


@settings(max_examples=80, deadline=None)
@given(share=st.floats(0, 1), packed=st.booleans(), piece=st.sampled_from([64, 700, 1 << 20]))
@example(share=0.00057, packed=True, piece=64)  # one byte of gzip's magic
def test_wherever_a_file_is_cut_salvage_gives_its_beginning(whole, tmp_path_factory, share, packed, piece):
    text, full = whole
    path = tmp_path_factory.mktemp("cut") / "t.json"
    raw = gzip.compress(text, 1) if packed else text
    path.write_bytes(raw[: int(len(raw) * share)])
    try:
        part = read_kineto(path, salvage=True, piece_bytes=piece)
    except BadDataError as error:
        assert "cut before its first event" in error.what or "empty" in error.what
        return
    n = len(part.ops)
    assert part.ops.ts_ns.tolist() == full.ops.ts_ns[:n].tolist()
    assert part.text(part.ops.dims_id).tolist() == full.text(full.ops.dims_id[:n]).tolist()
    assert part.truncated or share == 1


@settings(max_examples=80, deadline=None)
@given(at=st.floats(0, 0.999), byte=st.integers(0, 255), piece=st.sampled_from([700, 1 << 20]))
def test_one_wrong_byte_is_an_error_or_a_sentence_and_costs_few_events(
    whole, tmp_path_factory, at, byte, piece
):
    text, full = whole
    path = tmp_path_factory.mktemp("flip") / "t.json"
    raw = bytearray(text)
    raw[int(len(raw) * at)] = byte
    path.write_bytes(raw)
    try:
        part = read_kineto(path, salvage=True, piece_bytes=piece)
    except BadDataError as error:
        assert error.where and str(path) in error.where
        return
    lost = len(full.ops) - len(part.ops)
    assert lost <= 2 or part.problems or part.truncated


def test_damaged_gzip_data_never_pass_as_whole(tmp_path):
    path = some_trace().write(tmp_path / "t.json.gz")
    raw = bytearray(path.read_bytes())
    raw[-6] ^= 0xFF  # the checksum
    path.write_bytes(raw)
    with pytest.raises(BadDataError, match="gzip"):
        read_kineto(path)
    assert read_kineto(path, salvage=True).truncated


def test_gzip_in_several_members_reads_as_one(tmp_path):
    text = some_trace().write(tmp_path / "a.json").read_bytes()
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(text[:999]) + gzip.compress(text[999:]) + b"\0" * 20)
    assert same(read_kineto(tmp_path / "a.json"), read_kineto(tmp_path / "b.json.gz"))


def test_text_between_events_is_damage_with_its_byte(tmp_path):
    text = '{"traceEvents":[{"ph":"X"},\n oops {"ph":"X"}]}'
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(BadDataError, match="damaged") as caught:
        read_kineto(tmp_path / "t.json")
    assert f"byte {text.index(',')}" in caught.value.where
    assert "left out" in read_kineto(tmp_path / "t.json", salvage=True).problems[0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("<html>not found</html>", "not a Kineto trace"),
        ("[]", "not a Kineto trace"),
        ('{"nodes": []}', "not a Kineto trace"),
        ('{"traceEvents": null}', "not a Kineto trace"),
        ('{"schemaVersion": 1, "deviceProp', "cut before"),
        ('{"traceEvents": []} trailing', "not JSON"),
    ],
)
def test_foreign_files_are_named_and_refused(tmp_path, text, what):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(BadDataError, match=what) as caught:
        read_kineto(path)
    assert str(path) in caught.value.where and caught.value.fix


def test_a_missing_trace_is_said_to_be_missing(tmp_path):
    with pytest.raises(MissingError):
        read_kineto(tmp_path / "none.json")
    with pytest.raises(MissingError):
        read_kineto(tmp_path)


def test_a_trace_without_events_has_empty_tables(tmp_path):
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    trace = read_kineto(tmp_path / "t.json")
    assert [len(getattr(trace, name)) for name in TABLES] == [0] * len(TABLES)


def test_deep_nesting_is_refused_and_not_followed(tmp_path):
    deep = "[" * 200_000 + "]" * 200_000
    (tmp_path / "t.json").write_text(f'{{"traceEvents":[{{"ph":"X","args":{deep}}}]}}')
    with pytest.raises(BadDataError):
        read_kineto(tmp_path / "t.json")


JSON = st.recursive(
    st.text(alphabet='ab{}[],"\\ \n', max_size=8) | st.integers(-9, 9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\{},', max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text("k", min_size=1, max_size=2), JSON, max_size=3), min_size=1, max_size=5)
)
def test_boundaries_and_elements_agree_with_the_json_itself(objects):
    texts = [json.dumps(item) for item in objects]
    text = ", ".join(texts).encode()
    found = elements(text + b"] , {")
    assert [json.loads(text[a:b]) for a, b in found.spans] == objects
    assert (found.closed, found.stray) == (len(text), -1)
    end = last_boundary(text + b",{")
    assert end == len(text)


def test_tables_are_immutable_and_survive_pickling(tmp_path):
    trace = read_kineto(some_trace().write(tmp_path / "t.json"))
    with pytest.raises(ValueError, match="read-only"):
        trace.kernels.ts_ns[0] = 0
    with pytest.raises(AttributeError, match="there are ts_ns"):
        _ = trace.kernels.tz
    assert same(trace, pickle.loads(pickle.dumps(trace)))
    assert list(trace.ops.where(trace.ops.dur_ns > 10**9)) == list(trace.ops)


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
    assert (len(trace.kernels), len(trace.ops)) == (kernels, ops)
    assert trace.problems == [] and as_rows(trace) == plain_read(shared_data / name)


@pytest.mark.data
def test_an_execution_trace_is_told_from_a_kineto_trace(shared_data):
    with pytest.raises(BadDataError, match="not a Kineto trace"):
        read_kineto(shared_data / "kernels_h200/bloom560m_et.json.gz")
