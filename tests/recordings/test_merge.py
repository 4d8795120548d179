"""Merged traces: every event of every rank exactly once, and nothing that crosses ranks."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.recordings.kineto import read_kineto
from lab.recordings.merge import merge_json, merge_pftrace
from lab.recordings.merge.pftrace.lanes import lanes
from tests.tracegen import BASE_NS, LAYOUTS, TraceWriter, dump, training_step


def rank_trace(
    folder: Path, rank: int, *, layout: str = "compact", base_ns: int = BASE_NS, **more: Any
) -> Path:
    """Two steps of training on one rank, with flows: whole ones, one that never ends, one that never starts."""
    writer = TraceWriter(rank=rank, world_size=2, **more)
    training_step(writer, 1, 100)
    training_step(writer, 2, 200)
    document = writer.document()
    events = document["traceEvents"]
    for event in list(events):
        if event.get("cat") == "cuda_runtime":
            flow = {"cat": "ac2g", "name": "ac2g", "id": event["args"]["correlation"], "ts": event["ts"]}
            events.append({"ph": "s", "pid": event["pid"], "tid": event["tid"], **flow})
            events.append({"ph": "f", "bp": "e", "pid": 0, "tid": 7, **flow})
    row = {"pid": 4321, "tid": 4321, "ts": 1.5, "name": "ac2g", "cat": "ac2g"}
    events += [{"ph": "s", "id": 900, **row}, {"ph": "f", "id": 901, **row}]
    names = {"process_name": {"name": "python"}, "thread_name": {"name": "thread 4321 (python)"}}
    events += [
        {"ph": "M", "name": n, "pid": 4321, "tid": 0 if n == "process_name" else 4321, "ts": 0, "args": a}
        for n, a in names.items()
    ] * 2
    events += [{"ph": "M", "name": "process_name", "pid": 6, "tid": 0, "ts": 0, "args": {"name": "python"}}]
    events += [{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 300.25}]
    document["baseTimeNanoseconds"] = base_ns
    path = folder / f"rank{rank}.json.gz"
    path.write_bytes(gzip.compress(dump_any(document, layout)))
    return path


def dump_any(document: dict[str, Any], layout: str) -> bytes:
    for event in document["traceEvents"]:
        event.setdefault("args", {})
    return dump(document, layout).encode()


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def slices(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


@pytest.fixture
def two(tmp_path: Path) -> list[tuple[int | None, Path]]:
    return [(None, rank_trace(tmp_path, rank, base_ns=BASE_NS + 1500 * rank)) for rank in (0, 1)]


@pytest.fixture
def merged(two, tmp_path: Path) -> dict[str, Any]:
    merge_json(two, tmp_path / "out.json.gz")
    return read(tmp_path / "out.json.gz")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_slice_of_every_rank_is_there_exactly_once(tmp_path: Path, layout: str) -> None:
    paths = [rank_trace(tmp_path, rank, layout=layout) for rank in (0, 1)]
    done = merge_json([(None, path) for path in paths], tmp_path / "out.json.gz")

    def key(event: dict[str, Any], rank: int) -> tuple[Any, ...]:
        return rank, event["cat"], event["name"], event["ts"], event["dur"], event["tid"]

    expected = Counter(key(e, rank) for rank, path in enumerate(paths) for e in slices(read(path)))
    document = read(tmp_path / "out.json.gz")
    assert Counter(key(event, event["args"]["rank"]) for event in slices(document)) == expected
    assert done.written == len(document["traceEvents"])


def test_gpu_rows_have_pids_from_1000r_and_cpu_rows_from_1000r_plus_500(merged) -> None:
    for event in slices(merged):
        on_gpu = event["cat"] in ("kernel", "gpu_memcpy")
        assert event["pid"] == 1000 * event["args"]["rank"] + (0 if on_gpu else 500)


def test_names_say_the_rank_keep_thread_names_and_come_once(merged) -> None:
    records = [event for event in merged["traceEvents"] if event["ph"] == "M"]
    assert len({(r["name"], r["pid"], r["tid"]) for r in records}) == len(records)
    names = {r["pid"]: r["args"]["name"] for r in records if r["name"] == "process_name"}
    assert names[0] == "[R0] rank 0 GPU 0" and names[1500] == "[R1] rank 1 CPU python 4321"
    threads = {(r["pid"], r["tid"]): r["args"]["name"] for r in records if r["name"] == "thread_name"}
    assert threads[500, 4321] == "thread 4321 (python)" and threads[1000, 28] == "stream 28"


def test_processes_without_events_are_not_named(merged) -> None:
    used = {event["pid"] for event in merged["traceEvents"] if event["ph"] != "M"}
    assert {event["pid"] for event in merged["traceEvents"] if event["ph"] == "M"} == used


def test_event_names_stay_as_they_are_so_that_viewers_group_them(merged) -> None:
    assert {e["name"] for e in slices(merged) if e["cat"] == "cpu_op"} == {"aten::mm", "record_param_comms"}


def test_flows_have_both_ends_and_never_cross_ranks(merged) -> None:
    ends: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for event in merged["traceEvents"]:
        if event["ph"] in "sf":
            ends.setdefault((event["cat"], event["id"]), []).append(event)
    assert len(ends) == 8
    for pair in ends.values():
        assert sorted(event["ph"] for event in pair) == ["f", "s"]
        assert len({event["pid"] // 1000 for event in pair}) == 1


def test_flow_ends_lie_on_the_side_of_their_row(merged) -> None:
    flows = [event for event in merged["traceEvents"] if event["ph"] in "sf"]
    assert {(event["ph"], event["pid"] % 1000) for event in flows} == {("s", 500), ("f", 0)}


def test_what_is_left_out_is_counted(two, tmp_path: Path) -> None:
    assert merge_json(two, tmp_path / "o.json.gz").dropped == {"flow events without their other end": 4}


@pytest.mark.parametrize("name", ["correlation", "External id"])
def test_ids_are_unique_over_ranks_and_still_join_within_one(merged, name: str) -> None:
    by_rank: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}
    for event in slices(merged):
        if event["args"].get(name):
            by_rank[event["args"]["rank"]][event["args"][name]] += 1
    assert not set(by_rank[0]) & set(by_rank[1])
    assert sorted(by_rank[0].values()) == sorted(by_rank[1].values()) and 2 in by_rank[0].values()


def test_ranks_are_aligned_by_their_bases_to_the_nanosecond(merged) -> None:
    firsts = {rank: min(e["ts"] for e in slices(merged) if e["args"]["rank"] == rank) for rank in (0, 1)}
    assert firsts[1] - firsts[0] == 1.5
    assert merged["baseTimeNanoseconds"] == BASE_NS
    assert merged["merged"]["offsets_ns"] == {"0": 0, "1": 1500}


def test_a_clock_offset_is_added_and_absolute_times_keep_every_digit(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    event = (
        '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1790857026000123.456,"dur":1.001,"args":{}}'
    )
    path.write_text('{"traceEvents":[' + event + "]}")
    merge_json([(3, path)], tmp_path / "o.json.gz", offsets_ns={3: -123_456})
    text = gzip.decompress((tmp_path / "o.json.gz").read_bytes())
    assert b'"ts":1790857026000000.000' in text and b'"pid":3000' in text


def test_a_missing_rank_and_a_broken_trace_are_said_and_the_rest_is_merged(tmp_path: Path) -> None:
    good, broken = rank_trace(tmp_path, 0), rank_trace(tmp_path, 1)
    broken.write_bytes(broken.read_bytes()[:-60])
    done = merge_json([(0, good), (1, broken)], tmp_path / "o.json.gz")
    assert done.ranks == (0,) and done.missing == (1,)
    assert len(done.problems) == 1 and "rank1.json.gz" in done.problems[0]
    assert read(tmp_path / "o.json.gz")["merged"]["missing_ranks"] == [1]


def test_salvage_keeps_the_readable_part_of_a_cut_trace(tmp_path: Path) -> None:
    good, cut = rank_trace(tmp_path, 0), tmp_path / "rank1.json"
    cut.write_bytes(gzip.decompress(rank_trace(tmp_path, 1).read_bytes())[:-900])
    done = merge_json([(0, good), (1, cut)], tmp_path / "o.json.gz", salvage=True)
    assert done.ranks == (0, 1)
    assert {event["args"]["rank"] for event in slices(read(tmp_path / "o.json.gz"))} == {0, 1}


def test_when_nothing_can_be_merged_an_earlier_file_stays(tmp_path: Path) -> None:
    target = tmp_path / "o.json.gz"
    target.write_text("earlier")
    bad = tmp_path / "bad.json"
    bad.write_text("[]")
    assert merge_json([(0, bad)], target).path is None
    assert merge_pftrace([(0, bad)], target, load=read_kineto).path is None
    assert target.read_text() == "earlier"


def test_merging_twice_gives_the_same_bytes(two, tmp_path: Path) -> None:
    for merge, more in ((merge_json, {}), (merge_pftrace, {"load": read_kineto})):
        for name in ("a", "b"):
            merge(two, tmp_path / name, **more)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_hostile_events_are_passed_on_or_counted_but_never_break_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    base = '"ph":"X","pid":"odd \\" pid","tid":"t","ts":1,"dur":1'
    events = [
        '{BASE,"name":"a\x01b","args":"text"}',
        '{BASE,"name":"quote \\"correlation\\": 5","args":{"s":"\\"correlation\\": 5","correlation":5}}',
        '{BASE,"name":"huge","args":{"External id":18446744073709551615,"x":NaN}}',
        '{"ph":"X"}',
    ]
    path.write_bytes(
        b'{"traceEvents":[' + ",".join(events).replace("BASE", base).encode() + b',{"name":"\xff"}]}'
    )
    done = merge_json([(0, path), (1, rank_trace(tmp_path, 1))], tmp_path / "o.json.gz")
    found = {event.get("name"): event for event in read(tmp_path / "o.json.gz")["traceEvents"]}
    assert {"a\x01b", "huge", None, "\ufffd"} <= set(found)
    assert found['quote "correlation": 5']["args"] == {"rank": 0, "s": '"correlation": 5', "correlation": 5}
    assert any("too large" in problem for problem in done.problems)


def test_python_functions_are_left_out_and_cpu_ops_on_request(tmp_path: Path) -> None:
    writer = TraceWriter()
    training_step(writer, 1, 100)
    writer.event("python_function", "f", 1, 2)
    path = writer.write(tmp_path / "t.json")
    merge_json([(0, path)], tmp_path / "o.json.gz", cpu_ops=False)
    categories = {event["cat"] for event in slices(read(tmp_path / "o.json.gz"))}
    assert categories == {"kernel", "gpu_memcpy", "cuda_runtime", "user_annotation"}


def played_back(path: Path) -> list[tuple[int, str, str, int, int]]:
    """(pid, track, name, start, dur) of every slice, as Perfetto's track events define them."""
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = pb.Trace()
    trace.ParseFromString(gzip.decompress(path.read_bytes()))
    names: dict[int, dict[int, str]] = {}
    tracks: dict[int, Any] = {}
    open_slices: dict[int, list[tuple[str, int]]] = {}
    found, last = [], {}
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        if packet.HasField("interned_data"):
            names[sequence] = {entry.iid: entry.name for entry in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            event = packet.track_event
            assert event.track_uuid in tracks
            assert packet.timestamp >= last.get(event.track_uuid, 0), "time runs back on a track"
            last[event.track_uuid] = packet.timestamp
            stack = open_slices.setdefault(event.track_uuid, [])
            if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
                stack.append((names[sequence][event.name_iid], packet.timestamp))
            else:
                name, start = stack.pop()
                track = tracks[event.track_uuid]
                owner = track if track.HasField("thread") else tracks[track.parent_uuid]
                found.append(
                    (owner.thread.pid, owner.thread.thread_name, name, start, packet.timestamp - start)
                )
    assert not any(open_slices.values())
    return found


def test_pftrace_holds_every_slice_once_by_the_official_definitions(two, tmp_path: Path) -> None:
    done = merge_pftrace(two, tmp_path / "o.pftrace.gz", load=read_kineto)
    expected: Counter[Any] = Counter()
    for rank, (_, path) in enumerate(two):
        trace = read_kineto(path)
        for table, pid in ((trace.kernels, 0), (trace.ops, 500), (trace.runtime, 500), (trace.ranges, 500)):
            rows = zip(trace.text(table.name_id), table.ts_ns.tolist(), table.dur_ns.tolist(), strict=True)
            expected.update((1000 * rank + pid, *row) for row in rows)
    found = played_back(tmp_path / "o.pftrace.gz")
    assert Counter((pid, name, start, dur) for pid, _, name, start, dur in found) == expected
    assert done.written == len(found) and done.ranks == (0, 1)


def test_pftrace_flows_lead_from_the_launch_to_its_kernel(two, tmp_path: Path) -> None:
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    merge_pftrace(two, tmp_path / "o", load=read_kineto)
    trace = pb.Trace()
    trace.ParseFromString(gzip.decompress((tmp_path / "o").read_bytes()))
    starts = [flow for packet in trace.packet for flow in packet.track_event.flow_ids]
    ends = [flow for packet in trace.packet for flow in packet.track_event.terminating_flow_ids]
    assert len(starts) == 8 and sorted(starts) == sorted(ends) and len(set(starts)) == 8


def test_kernels_that_overlap_on_one_stream_get_lanes(tmp_path: Path) -> None:
    writer = TraceWriter()
    for start, dur in ((10, 10), (15, 10), (18, 4), (30, 1)):
        writer.kernel("k", start, dur)
    merge_pftrace([(0, writer.write(tmp_path / "t.json"))], tmp_path / "o", load=read_kineto)
    assert sorted(row[3:] for row in played_back(tmp_path / "o")) == [
        (BASE_NS + start * 1000, dur * 1000) for start, dur in ((10, 10), (15, 10), (18, 4), (30, 1))
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=25))
def test_slices_of_one_lane_nest_and_no_lane_is_needless(drawn: list[tuple[int, int]]) -> None:
    drawn.sort(key=lambda one: (one[0], -one[1]))
    start = np.array([s for s, _ in drawn], dtype=np.int64)
    end = start + np.array([d for _, d in drawn], dtype=np.int64)
    lane = lanes(start, end)
    for i in range(len(drawn)):
        for j in range(i + 1, len(drawn)):
            crossing = start[i] < start[j] < end[i] < end[j]
            assert not (crossing and lane[i] == lane[j])
    crosses = any(
        start[i] < start[j] < end[i] < end[j] for i in range(len(drawn)) for j in range(i + 1, len(drawn))
    )
    assert crosses == (len(drawn) > 0 and lane.max() > 0)


@pytest.mark.data
def test_a_real_rank_keeps_all_its_slices_and_whole_flows(shared_data: Path, tmp_path: Path) -> None:
    place = shared_data / "sweep_h200" / "256thread" / "nccl_28channels" / "torch_profiler"
    paths = [place / f"rank{rank}" / "trace_step7.json.gz" for rank in (0, 1)]
    done = merge_json([(None, path) for path in paths], tmp_path / "o.json.gz")
    merged = read(tmp_path / "o.json.gz")
    assert len(slices(merged)) == sum(len(slices(read(path))) for path in paths)
    flows = Counter((e["cat"], e["id"]) for e in merged["traceEvents"] if e["ph"] in "sf")
    assert set(flows.values()) == {2}
    assert done.missing == (2, 3, 4, 5, 6, 7)
