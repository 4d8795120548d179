"""Recordings in memory as one JSON file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.recordings.kineto import read_kineto
from lab.recordings.merge import merge_captures
from lab.recordings.merge.output import lanes
from tests.recordings.merge.made import read, slices
from tests.tracegen import TraceWriter


def merged(paths: list[Path], target: Path) -> dict[str, Any]:
    merge_captures({rank: read_kineto(path) for rank, path in enumerate(paths)}, target)
    return read(target)


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


def test_every_slice_of_every_rank_is_there_once_and_in_its_time(two, tmp_path: Path) -> None:
    paths = [path for _, path in two]
    document = merged(paths, tmp_path / "o.json.gz")
    base_ns, expected = document["baseTimeNanoseconds"], Counter()
    for rank, path in enumerate(paths):
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
    assert arrows(merged(paths, tmp_path / "o.json.gz")) == sorted(expected)


def test_kernels_that_overlap_on_one_stream_get_tracks(tmp_path: Path) -> None:
    writer = TraceWriter()
    for start, dur in ((10, 10), (15, 10), (18, 4), (30, 1)):
        writer.kernel("k", start, dur)
    document = merged([writer.write(tmp_path / "t.json")], tmp_path / "o.json.gz")
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
