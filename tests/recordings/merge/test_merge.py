"""The merged JSON file."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab.recordings.load import load_capture
from lab.recordings.merge import merge_json
from tests.recordings.merge.made import rank_trace, read, slices
from tests.tracegen import BASE_NS, LAYOUTS, TraceWriter, training_step


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


def test_flows_have_both_ends_and_never_cross_ranks(merged) -> None:
    ends: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for event in merged["traceEvents"]:
        if event["ph"] in "sf":
            ends.setdefault((event["cat"], event["id"]), []).append(event)
    assert len(ends) == 8
    for pair in ends.values():
        assert sorted(event["ph"] for event in pair) == ["f", "s"]
        assert len({event["pid"] // 1000 for event in pair}) == 1


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
    (lack,) = (one for one in load_capture(tmp_path / "o.json.gz").lacks if "not whole" in one.text)
    assert lack.text.startswith("the file is not whole: rank 1: ")


def test_what_torch_said_of_a_loss_is_said_of_the_merged_trace(tmp_path: Path) -> None:
    rank0, rank1 = tmp_path / "rank0.json", rank_trace(tmp_path, 1)
    document = json.loads(gzip.decompress(rank_trace(tmp_path, 0).read_bytes()))
    rank0.write_text(json.dumps({**document, "WARNING": ["Exceeded 33 - terminating tracing", "fine"]}))
    merge_json([(0, rank0), (1, rank1)], tmp_path / "o.json.gz")
    (lack,) = (one for one in load_capture(tmp_path / "o.json.gz").lacks if one.rule == "N")
    assert lack.text == "torch.profiler says: rank 0: Exceeded 33 - terminating tracing"


def test_merging_twice_gives_the_same_bytes(two, tmp_path: Path) -> None:
    for name in ("a", "b"):
        merge_json(two, tmp_path / name)
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
