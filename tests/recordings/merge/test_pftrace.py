"""Perfetto's format, played back by the official definitions."""

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
from lab.recordings.merge import merge_pftrace
from lab.recordings.merge.pftrace.slices import lanes
from tests.tracegen import BASE_NS, TraceWriter


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
        for table, pid in (
            (trace.ops, 0),
            (trace.operators, 500),
            (trace.api, 500),
            (trace.annotations, 500),
        ):
            rows = zip(trace.text(table.name_id), table.start_ns.tolist(), table.dur_ns.tolist(), strict=True)
            expected.update((1000 * rank + pid, *row) for row in rows)
    found = played_back(tmp_path / "o.pftrace.gz")
    assert Counter((pid, name, start, dur) for pid, _, name, start, dur in found) == expected
    assert done.written == len(found) and done.ranks == (0, 1)


def test_pftrace_flows_lead_from_the_launch_to_its_kernel(two, tmp_path: Path) -> None:
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    merge_pftrace(two, tmp_path / "o.pftrace.gz", load=read_kineto)
    trace = pb.Trace()
    trace.ParseFromString(gzip.decompress((tmp_path / "o.pftrace.gz").read_bytes()))
    starts = [flow for packet in trace.packet for flow in packet.track_event.flow_ids]
    ends = [flow for packet in trace.packet for flow in packet.track_event.terminating_flow_ids]
    assert len(starts) == 8 and sorted(starts) == sorted(ends) and len(set(starts)) == 8


def flows_of(path: Path) -> list[tuple[str, str]]:
    """(name of the slice where it starts, name of the one where it ends) of every flow."""
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = pb.Trace()
    trace.ParseFromString(gzip.decompress(path.read_bytes()))
    names: dict[tuple[int, int], str] = {}
    ends: dict[int, list[str]] = {}
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        names |= {(sequence, entry.iid): entry.name for entry in packet.interned_data.event_names}
        event = packet.track_event
        for flow in event.flow_ids:
            ends.setdefault(flow, ["", ""])[0] += names[sequence, event.name_iid]
        for flow in event.terminating_flow_ids:
            ends.setdefault(flow, ["", ""])[1] += names[sequence, event.name_iid]
    return sorted((start, end) for start, end in ends.values())


def test_arrows_lead_from_a_forward_operator_to_its_backward_one(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        writer = TraceWriter(rank=rank)
        writer.op("aten::linear", 10, 20)
        writer.op("aten::mm", 12, 5)
        writer.op("MmBackward0", 50, 9)
        document = writer.document()
        for ph, ts, flow in (("s", 12, 1), ("f", 50, 1), ("s", 10, 2), ("f", 900, 3)):
            more = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 4321, "tid": 4321, "bp": "e"}
            document["traceEvents"].append({"ph": ph, "ts": ts, "id": flow, **more})
        paths.append((rank, tmp_path / f"rank{rank}.json"))
        paths[-1][1].write_text(json.dumps(document))
    merge_pftrace(paths, tmp_path / "o.pftrace.gz", load=read_kineto)
    assert flows_of(tmp_path / "o.pftrace.gz") == [("aten::mm", "MmBackward0")] * 2
    merge_pftrace(paths, tmp_path / "without.pftrace.gz", load=read_kineto, cpu_ops=False)
    assert flows_of(tmp_path / "without.pftrace.gz") == []


@pytest.mark.data
def test_a_real_rank_has_all_its_arrows(shared_data: Path, tmp_path: Path) -> None:
    """The file holds 716 ends of arrows from forward to backward; the other flows start at calls of CUDA."""
    place = shared_data / "sweep_h200/256thread/nccl_28channels/torch_profiler/rank0/trace_step7.json.gz"
    merge_pftrace([(0, place)], tmp_path / "o.pftrace.gz", load=read_kineto)
    found = flows_of(tmp_path / "o.pftrace.gz")
    arrows = [(start, end) for start, end in found if not start.startswith("cu")]
    assert len(arrows) == 358
    assert ("aten::mm", "MmBackward0") in arrows


def test_kernels_that_overlap_on_one_stream_get_lanes(tmp_path: Path) -> None:
    writer = TraceWriter()
    for start, dur in ((10, 10), (15, 10), (18, 4), (30, 1)):
        writer.kernel("k", start, dur)
    merge_pftrace([(0, writer.write(tmp_path / "t.json"))], tmp_path / "o.pftrace.gz", load=read_kineto)
    assert sorted(row[3:] for row in played_back(tmp_path / "o.pftrace.gz")) == [
        (BASE_NS + start * 1000, dur * 1000) for start, dur in ((10, 10), (15, 10), (18, 4), (30, 1))
    ]


@settings(max_examples=60)
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
