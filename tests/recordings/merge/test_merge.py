"""Recordings in memory as one JSON file."""

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
from lab.recordings.load import load_capture
from lab.recordings.merge.write import lanes
from lab.recordings.processes import rank_captures
from lab.recordings.ranks import work_of
from lab.recordings.views import collective_instances
from tests.recordings.merge.made import merge, rank_trace, read, slices
from tests.tracegen import TraceWriter, training_step


def arrows(document: dict[str, Any]) -> list[tuple[str, str]]:
    """(name of the slice where it starts, name of the one where it ends) of every arrow."""
    ends: dict[int, dict[str, str]] = {}
    for event in document["traceEvents"]:
        if event["ph"] in "sf":
            around = [
                (slice_["dur"], slice_["name"])
                for slice_ in slices(document)
                if (slice_["pid"], slice_["tid"]) == (event["pid"], event["tid"])
                and slice_["ts"] <= event["ts"] <= slice_["ts"] + slice_["dur"]
            ]
            assert event["ph"] not in ends.setdefault(event["id"], {})
            ends[event["id"]][event["ph"]] = min(around)[1]
    return sorted((pair["s"], pair["f"]) for pair in ends.values())


def test_every_slice_of_every_rank_is_there_once_and_in_its_time(two, merged) -> None:
    document = merged
    base_ns, expected = document["baseTimeNanoseconds"], Counter()
    for rank, path in enumerate(two):
        trace = read_kineto(path)
        for table, pid in (
            (trace.ops, 0),
            (trace.operators, 500),
            (trace.api, 500),
            (trace.annotations, 500),
        ):
            rows = zip(trace.text(table.name_id), table.start_ns.tolist(), table.dur_ns.tolist(), strict=True)
            expected.update((1000 * rank + pid, *row) for row in rows)
    assert expected == Counter(
        (e["pid"], e["name"], base_ns + round(1000 * e["ts"]), round(1000 * e["dur"]))
        for e in slices(document)
    )


def test_arrows_lead_from_a_launch_to_its_kernel_and_from_forward_to_backward(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        writer = TraceWriter(rank=rank)
        writer.op("aten::linear", 10, 20)
        writer.op("aten::mm", 12, 5)
        writer.op("MmBackward0", 50, 9)
        writer.gemm(64, 64, 32, 100, 10)
        document = writer.document()
        for ph, ts, flow in (("s", 12, 1), ("f", 50, 1), ("s", 10, 2), ("f", 900, 3)):
            more = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 4321, "tid": 4321, "bp": "e"}
            document["traceEvents"].append({"ph": ph, "ts": ts, "id": flow, **more})
        paths.append(tmp_path / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(document))
    kernel = next(e["name"] for e in document["traceEvents"] if e.get("cat") == "kernel")
    expected = [("aten::mm", "MmBackward0"), ("cudaLaunchKernel", kernel)] * 2
    merge(paths, tmp_path / "o.json.gz")
    assert arrows(read(tmp_path / "o.json.gz")) == sorted(expected)


def test_kernels_that_overlap_on_one_stream_get_tracks(tmp_path: Path) -> None:
    writer = TraceWriter()
    for start, dur in ((10, 10), (15, 10), (18, 4), (30, 1)):
        writer.kernel("k", start, dur)
    merge([writer.write(tmp_path / "t.json")], tmp_path / "o.json.gz")
    document = read(tmp_path / "o.json.gz")
    by_start = sorted((event["ts"], event["tid"]) for event in slices(document))
    assert len({tid for _, tid in by_start}) == 2 and by_start[0][1] == by_start[3][1] == 7
    names = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    assert names[by_start[1][1]] == "stream 7, overlapping 1"


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=25))
def test_slices_of_one_lane_nest_and_no_lane_is_needless(drawn: list[tuple[int, int]]) -> None:
    drawn.sort(key=lambda slice_: (slice_[0], -slice_[1]))
    start = np.array([s for s, _ in drawn], dtype=np.int64)
    end = start + np.array([d for _, d in drawn], dtype=np.int64)
    lane = lanes(start.tolist(), end.tolist())
    crossing = [
        (i, j)
        for i in range(len(drawn))
        for j in range(i + 1, len(drawn))
        if start[i] < start[j] < end[i] < end[j]
    ]
    assert all(lane[i] != lane[j] for i, j in crossing)
    assert bool(crossing) == (max(lane, default=0) > 0)


def test_names_say_the_rank_keep_thread_names_and_come_once(merged) -> None:
    records = [event for event in merged["traceEvents"] if event["ph"] == "M"]
    assert len({(r["name"], r["pid"], r["tid"]) for r in records}) == len(records)
    names = {r["pid"]: r["args"]["name"] for r in records if r["name"] == "process_name"}
    assert names[0] == "[R0] rank 0 GPU 0" and names[1500] == "[R1] rank 1 CPU python 4321"
    threads = {(r["pid"], r["tid"]): r["args"]["name"] for r in records if r["name"] == "thread_name"}
    assert threads[500, 4321] == "thread 4321 (python)" and threads[1000, 28] == "stream 28"


def test_flows_have_both_ends_and_never_cross_ranks(merged) -> None:
    ends: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for event in merged["traceEvents"]:
        if event["ph"] in "sf":
            ends.setdefault((event["cat"], event["id"]), []).append(event)
    assert len(ends) == 8
    for pair in ends.values():
        assert sorted(event["ph"] for event in pair) == ["f", "s"]
        assert len({event["pid"] // 1000 for event in pair}) == 1


@pytest.mark.parametrize("name", ["correlation", "External id"])
def test_ids_are_unique_over_ranks_and_still_join_within_one(merged, name: str) -> None:
    by_rank: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}
    for event in slices(merged):
        if event["args"].get(name):
            by_rank[event["args"]["rank"]][event["args"][name]] += 1
    assert not set(by_rank[0]) & set(by_rank[1])
    assert sorted(by_rank[0].values()) == sorted(by_rank[1].values()) and 2 in by_rank[0].values()


def test_ranks_are_aligned_by_their_bases_and_offsets_to_the_nanosecond(merged, two, tmp_path: Path) -> None:
    merge(two, tmp_path / "o.json.gz", offsets_ns={1: -123_456})
    for document, expected in ((merged, 1.5), (read(tmp_path / "o.json.gz"), -121.956)):
        firsts = [min(e["ts"] for e in slices(document) if e["args"]["rank"] == rank) for rank in (0, 1)]
        assert firsts[1] - firsts[0] == pytest.approx(expected, abs=1e-6)


def test_arguments_are_read_back_as_they_were_recorded(two, merged, tmp_path: Path) -> None:
    parts = rank_captures(load_capture(tmp_path / "out.json.gz"))
    assert [part.meta.rank for part in parts] == [0, 1]
    for part, path in zip(parts, two, strict=True):
        single = load_capture(path)
        order, own = (np.argsort(trace.ops.start_ns, kind="stable") for trace in (part, single))
        for name in ("device", "stream", "grid_x", "block_x", "regs", "bytes", "graph_node"):
            assert getattr(part.ops, name)[order].tolist() == getattr(single.ops, name)[own].tolist(), name
        for name in ("name_id", "dims_id", "types_id", "strides_id", "concrete_id"):
            texts = [sorted(t.text(getattr(t.operators, name))) for t in (part, single)]
            assert texts[0] == texts[1], name
        calls = [collective_instances(trace) for trace in (part, single)]
        for name in set(calls[0]) - {"ts_ns", "row", "correlation"}:
            assert getattr(calls[0], name).tolist() == getattr(calls[1], name).tolist(), name


def test_a_missing_rank_and_a_broken_trace_are_said_and_the_rest_is_merged(tmp_path: Path) -> None:
    good, broken = rank_trace(tmp_path, 0), rank_trace(tmp_path, 1)
    broken.write_bytes(broken.read_bytes()[:-60])
    done = merge([good, broken], tmp_path / "o.json.gz")
    assert [*done.traces] == [0] and done.absent == (1,)
    assert len(done.left_out) == 1 and "rank1.json.gz" in done.left_out[0]
    assert read(tmp_path / "o.json.gz")["merged"]["missing_ranks"] == [1]


def test_salvage_keeps_the_readable_part_of_a_cut_trace(tmp_path: Path) -> None:
    good, cut = rank_trace(tmp_path, 0), tmp_path / "rank1.json"
    cut.write_bytes(gzip.decompress(rank_trace(tmp_path, 1).read_bytes())[:-900])
    done = merge([good, cut], tmp_path / "o.json.gz", salvage=True)
    assert [*done.traces] == [0, 1]
    assert {event["args"]["rank"] for event in slices(read(tmp_path / "o.json.gz"))} == {0, 1}
    (lack,) = (one for one in load_capture(tmp_path / "o.json.gz").lacks if "not whole" in one.text)
    assert lack.text.startswith("rank 1: the file is not whole: ")


def test_what_torch_said_of_a_loss_is_said_of_the_merged_trace(tmp_path: Path) -> None:
    rank0, rank1 = tmp_path / "rank0.json", rank_trace(tmp_path, 1)
    document = json.loads(gzip.decompress(rank_trace(tmp_path, 0).read_bytes()))
    rank0.write_text(json.dumps({**document, "WARNING": ["Exceeded 33 - terminating tracing", "fine"]}))
    merge([rank0, rank1], tmp_path / "o.json.gz")
    (lack,) = (one for one in load_capture(tmp_path / "o.json.gz").lacks if one.rule == "N")
    assert lack.text == "rank 0: torch.profiler says: Exceeded 33 - terminating tracing"


def test_merging_twice_gives_the_same_bytes(two, tmp_path: Path) -> None:
    for name in ("a", "b"):
        merge(two, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_hostile_events_never_break_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    base = '"ph":"X","cat":"cpu_op","pid":"odd \\" pid","tid":"t","ts":1,"dur":1'
    events = [
        '{BASE,"name":"a\x01b","args":"text"}',
        '{BASE,"name":"huge","args":{"External id":18446744073709551615,"Input Dims":[NaN]}}',
        '{"ph":"X"}',
        '{"ph":"X","cat":"cpu_op","name":"hash","pid":-7,"tid":-1571648256,"ts":1,"dur":1}',
    ]
    path.write_bytes(b'{"traceEvents":[' + ",".join(events).replace("BASE", base).encode() + b"]}")
    merge([path, rank_trace(tmp_path, 1)], tmp_path / "o.json.gz")
    events = read(tmp_path / "o.json.gz")["traceEvents"]
    assert {"a\x01b", "huge", "hash"} <= {event.get("name") for event in events}
    assert "thread -1571648256" in {event.get("args", {}).get("name") for event in events}


def test_python_functions_are_left_out_and_cpu_ops_on_request(tmp_path: Path) -> None:
    writer = TraceWriter()
    training_step(writer, 1, 100)
    writer.event("python_function", "f", 1, 2)
    merge([writer.write(tmp_path / "t.json")], tmp_path / "o.json.gz", cpu_ops=False)
    categories = {event["cat"] for event in slices(read(tmp_path / "o.json.gz"))}
    assert categories == {"kernel", "gpu_memcpy", "cuda_runtime", "user_annotation"}


@pytest.mark.data
def test_a_real_rank_keeps_its_slices_waits_and_whole_flows(shared_data: Path, tmp_path: Path) -> None:
    place = shared_data / "sweep_h200" / "256thread" / "nccl_28channels" / "torch_profiler"
    paths = [place / f"rank{rank}" / "trace_step7.json.gz" for rank in (0, 1)]
    done = merge(paths, tmp_path / "o.json.gz")
    flows = Counter(
        (e["cat"], e["id"]) for e in read(tmp_path / "o.json.gz")["traceEvents"] if e["ph"] in "sf"
    )
    assert set(flows.values()) == {2}
    assert done.absent == (2, 3, 4, 5, 6, 7)
    for part, single in zip(
        rank_captures(load_capture(tmp_path / "o.json.gz")), done.traces.values(), strict=True
    ):
        for name in ("ops", "api", "ranges", "collectives", "comm_ops", "waits"):
            assert len(getattr(part, name)) == len(getattr(single, name)), name


@pytest.mark.data
def test_operators_own_the_same_kernels_in_the_merged_file(shared_data: Path, tmp_path: Path) -> None:
    """Launches were moved in these recordings, so calls and operators of one thread cross."""
    paths = sorted((shared_data / "ranks" / "planted" / "two").rglob("*.json.gz"))
    done = merge(paths, tmp_path / "o.json.gz")
    parts = rank_captures(load_capture(tmp_path / "o.json.gz"))
    for part, single in zip(parts, done.traces.values(), strict=True):
        keys = []
        for trace in (part, single):
            work = work_of(trace)
            order = np.lexsort((work.end, work.stream, work.start))
            keys.append([work.keys[key] for key in work.key[order].tolist()])
        assert keys[0] == keys[1]
