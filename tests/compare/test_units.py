"""What belongs to a unit: nothing that ran outside the steps, no step that the recording's edges cut; and
idle time has a cause: who was late is told by when the next operation was launched."""

from __future__ import annotations

import gzip
import json

import pytest
from click.testing import CliRunner

from lab.compare.cli import diff
from lab.compare.diff.comparison import compare, compare_sides
from tests.compare.made import edited, event, layer, trace
from tests.conftest import SHARED

STEPS = [layer() + layer()] * 4
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def diffed(a, b):
    """The exit code of `lab diff A B --json`, and what it prints."""
    done = CliRunner().invoke(diff, [str(a), str(b), "--json"], standalone_mode=False)
    return getattr(done.exception, "exit_code", 0), json.loads(done.stdout)


def without_marker(number):
    return lambda events: [one for one in events if one["name"] != f"ProfilerStep#{number}"]


def rows_lost(first, last):
    """Without the GPU rows first to last, of all by their start."""

    def edit(events):
        rows = sorted((one for one in events if one["cat"] in GPU), key=lambda one: one["ts"])[first:last]
        return [one for one in events if one not in rows]

    return edit


@pytest.mark.parametrize("number", [0, 1, 3])
def test_calls_of_a_step_that_is_not_marked_are_no_change(tmp_path, number):
    waits = [(step, "cudaDeviceSynchronize") for step in range(4)]
    a = trace(tmp_path / "a.json", STEPS, calls=waits)
    b = edited(trace(tmp_path / "b.json", STEPS, calls=waits), without_marker(number))
    found = compare_sides(a, b, evidence=True).difference.shown
    assert (found.units_a, found.units_b) == (4, 3) and found.findings == []
    assert {one.name: (one.n_a, one.n_b) for one in found.api} == {
        "cudaLaunchKernel": (8, 8),
        "cudaDeviceSynchronize": (1, 1),
    }
    assert "B: 8 GPU operations launched outside every step, left out" in found.notes


def test_a_wait_behind_the_last_step_is_still_counted(tmp_path):
    a, b = trace(tmp_path / "a.json", STEPS), trace(tmp_path / "b.json", STEPS)
    late = {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 1, "tid": 1}
    late |= {"ts": 4_200.0, "dur": 2.0, "args": {"correlation": 900, "cbid": 1}}
    (named,) = compare_sides(a, edited(b, lambda events: [*events, late])).difference.shown.findings
    assert named.text == "cudaStreamSynchronize: 0 -> 0.25 calls per unit"


@pytest.mark.parametrize(("first", "last"), [(0, 3), (-3, None), (0, 8)], ids=["head", "tail", "whole step"])
def test_a_step_that_the_edge_of_the_recording_cut_is_in_no_mean_and_said(tmp_path, first, last):
    a, b = trace(tmp_path / "a.json", STEPS), trace(tmp_path / "b.json", STEPS)
    edited(b, rows_lost(first, last))
    code, found = diffed(a, b)
    assert code == 0 and (found["units_a"], found["units_b"]) == (4, 3)
    assert found["findings"] == [] and found["delta_kernel_ns"] == found["span_ns"] == 0
    assert "B: 1 of 4 steps lost GPU operations and are in no mean" in found["notes"]
    assert not any("launched no GPU operation" in note for note in found["notes"])


NODES = 47  # of the graph that the shared recording replays in each of its three steps


def replayed_without(path, lost):
    """The shared recording without these GPU operations of its replays, by index of start."""
    shared = SHARED / "captures" / "h200_decoder" / "infer_graph.json.gz"
    if not shared.exists():
        pytest.skip("the shared captures are not here")
    path.write_bytes(gzip.decompress(shared.read_bytes()))

    def edit(events):
        rows = sorted((one for one in events if one.get("cat") in GPU), key=lambda one: one["ts"])
        gone = {id(rows[at]) for at in lost}
        return [one for one in events if id(one) not in gone]

    return shared, edited(path, edit)


@pytest.mark.parametrize(
    ("first", "last"),
    [(140, 141), (121, 141), (98, 141), (0, 20), (74, 94), (51, 94)],
    ids=["last row", "last 20", "last 43", "first 20", "20 of the middle", "43 of the middle"],
)
def test_a_replay_of_a_graph_that_lost_rows_is_in_no_mean_and_the_exit_code_is_1(tmp_path, first, last):
    code, found = diffed(*replayed_without(tmp_path / "b.json", range(first, last)))
    assert code == 1 and (found["units_a"], found["units_b"]) == (3, 2)
    assert [one for one in found["findings"] if one["kind"] != "idle"] == []
    (torn,) = found["torn"]
    assert f"{last - first} of 141 rows ({(last - first) / 141:.1%}) that graph replays should have" in torn


ALL_OVER = [at for at in range(NODES, 2 * NODES) if at % 10]


@pytest.mark.parametrize(
    "lost",
    [range(NODES + 1, 2 * NODES), range(NODES, 2 * NODES - 1), ALL_OVER, [at + NODES for at in ALL_OVER]],
    ids=["all but the first", "all but the last", "nine of ten", "nine of ten of the last"],
)
def test_what_little_is_left_of_a_replay_in_the_middle_is_in_no_mean_and_the_exit_code_is_1(tmp_path, lost):
    """So little of it that it may be a graph of its own, and no step has more replays for that."""
    code, found = diffed(*replayed_without(tmp_path / "b.json", lost))
    assert code == 1 and (found["units_a"], found["units_b"]) == (3, 2)
    assert [one for one in found["findings"] if one["kind"] != "idle"] == []
    (torn,) = found["torn"]
    assert f"another graph, or {len(lost)} of 141 rows are missing" in torn


@pytest.mark.parametrize("size", [1, 5])
def test_a_graph_that_is_replayed_once_in_addition_is_a_finding(tmp_path, size):
    """Of kernels that another graph has, too: its step has one replay more than the others."""

    def added(events):
        _, launch, _ = sorted(
            (one for one in events if one["name"] == "cudaGraphLaunch"), key=lambda one: one["ts"]
        )
        mine = [
            one for one in events if one.get("args", {}).get("correlation") == launch["args"]["correlation"]
        ]
        rows = sorted((one for one in mine if one.get("cat") in GPU), key=lambda one: one["ts"])
        end = rows[-1]["ts"] + rows[-1]["dur"]
        more = [{**one, "ts": end + at, "dur": 0.5} for at, one in enumerate(rows[:size][::-1])]
        more.append({**launch, "ts": launch["ts"] + launch["dur"]})
        return [*events, *({**one, "args": {**one["args"], "correlation": 999_999}} for one in more)]

    shared, b = replayed_without(tmp_path / "b.json", [])
    code, found = diffed(shared, edited(b, added))
    assert code == 0 and found["torn"] == [] and found["units_b"] == 3
    assert [one for one in found["findings"] if one["kind"] == "count"]


def test_a_graph_that_changed_in_every_replay_is_a_finding(tmp_path):
    lost = [replay * NODES + at for replay in range(3) for at in range(NODES - 20, NODES)]
    code, found = diffed(*replayed_without(tmp_path / "b.json", lost))
    assert code == 0 and found["torn"] == [] and found["units_b"] == 3
    assert len([one for one in found["findings"] if one["kind"] == "count"]) > 5


@pytest.mark.parametrize("more", [[], [[], []]], ids=["one step", "two without work"])
def test_where_the_edges_cut_every_step_the_figures_are_bounds_and_the_exit_code_is_1(tmp_path, more):
    a, b = (trace(tmp_path / f"{name}.json", [*STEPS[:1], *more]) for name in "ab")
    code, found = diffed(a, edited(b, rows_lost(-3, None)))
    edge = "b.json: GPU work of every step is missing"
    assert code == 1 and found["torn"] == [edge]
    assert found["delta_kernel_ns"] == pytest.approx(-15_000)  # of the addition, the product and the relu


def test_what_is_odd_in_a_recording_and_several_gpus_of_a_process_are_said(tmp_path):
    def odd(events):
        kernels = [one for one in events if one["cat"] == "kernel"]
        for one in kernels[::2]:
            one["args"]["device"] = 1
        kernels[0]["args"]["correlation"] = 1 << 70
        return events

    a, b = trace(tmp_path / "a.json", STEPS), trace(tmp_path / "b.json", STEPS)
    notes = diffed(a, edited(b, odd))[1]["notes"]
    assert any(one.startswith("B: ids that are not 64-bit integers") for one in notes)
    assert any(one.startswith("B: one process on 2 GPUs: idle is when none of them works") for one in notes)
    assert not any(one.startswith(("A: ids", "A: one process")) for one in notes)


def test_a_copy_is_no_unit_where_a_kernel_is(tmp_path):
    upload = ("", [], "Memcpy HtoD (Pageable -> Device)", 500.0)
    a, b = (trace(tmp_path / f"{name}.json", [[upload] * 5 + layer() * 4], prefix="x ") for name in "ab")
    assert diffed(a, b)[1]["unit"] == "call of gemm_128"
    only = trace(tmp_path / "c.json", [[upload] * 5], prefix="x ")
    assert diffed(only, only)[1]["unit"] == "call of Memcpy HtoD (Pageable -> Device)"


@pytest.mark.parametrize(("waits", "named"), [(1, False), (2, True)])
def test_what_waits_once_for_the_last_step_is_no_change_where_the_steps_are_fewer(tmp_path, waits, named):
    def end(number, waits=1):
        late = {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 1, "tid": 1}
        late |= {"dur": 2.0, "args": {"correlation": 900, "cbid": 1}}
        return lambda events: [*events, *({**late, "ts": 1000.0 * number + 10 * one} for one in range(waits))]

    a = edited(trace(tmp_path / "a.json", STEPS), end(4))
    b = edited(trace(tmp_path / "b.json", STEPS[:3]), end(3, waits))
    found = diffed(a, b)[1]
    assert (found["units_a"], found["units_b"]) == (4, 3)
    assert {one["name"]: one["n_a"] for one in found["api"]}["cudaDeviceSynchronize"] == 0.25
    assert [one["kind"] for one in found["findings"]] == (["api"] if named else [])


def recorded(path, launches, waits=()):
    """Two steps of (launch at, kernel from, kernel to) in us, None for a launch that was not recorded;
    `waits` are (from, to) of cudaDeviceSynchronize."""
    events, corr = [], 0
    for step in range(2):
        base = 1000 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", base, 900, 1, 1))
        for launch, begin, end in launches:
            corr += 1
            if launch is not None:
                events.append(
                    event("cuda_runtime", "cudaLaunchKernel", base + launch, 1, 1, 1, {"correlation": corr})
                )
            args = {"correlation": corr, "device": 0, "stream": 7}
            events.append(event("kernel", "k", base + begin, end - begin, 0, 7, args))
        for begin, end in waits:
            corr += 1
            wait = {"correlation": corr}
            events.append(
                event("cuda_runtime", "cudaDeviceSynchronize", base + begin, end - begin, 1, 1, wait)
            )
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


BUSY = [(1, 10, 50), (2, 50, 100), (3, 100, 150)]


def idle_of(tmp_path, launches, waits=()):
    base = recorded(tmp_path / "a.json", BUSY)
    found = compare(base, recorded(tmp_path / "b.json", launches, waits)).shown
    return {
        cause: round(getattr(found, f"idle_{cause}_ns") / 1000)
        for cause in ("late", "wait", "queued", "unknown")
        if getattr(found, f"idle_{cause}_ns")
    }


def test_a_launch_after_the_gpu_ran_dry_is_the_hosts(tmp_path):
    assert idle_of(tmp_path, [*BUSY[:2], (130, 140, 190)]) == {"late": 30, "queued": 10}


def test_a_launch_after_the_host_waited_is_the_waits(tmp_path):
    late = [*BUSY[:2], (130, 140, 190)]
    assert idle_of(tmp_path, late, waits=[(60, 102)]) == {"wait": 30, "queued": 10}
    assert idle_of(tmp_path, late, waits=[(5, 40)]) == {"late": 30, "queued": 10}  # long over
    assert idle_of(tmp_path, late, waits=[(200, 240)]) == {"late": 30, "queued": 10}  # later on


def test_a_queued_operation_that_begins_late_is_not_the_hosts(tmp_path):
    assert idle_of(tmp_path, [*BUSY[:2], (3, 140, 190)]) == {"queued": 40}


def test_without_a_recorded_launch_the_cause_is_not_known(tmp_path):
    assert idle_of(tmp_path, [*BUSY[:2], (None, 140, 190)]) == {"unknown": 40}


@pytest.mark.skipif(not (SHARED / "serve").exists(), reason="the shared recordings are not here")
def test_a_planted_wait_is_seen_though_the_idle_time_as_a_whole_fell():
    found = compare(SHARED / "serve" / "a_base01.json.gz", SHARED / "serve" / "a_idle01.json.gz").shown
    assert found.idle_ns < 0 and found.idle_wait_ns == pytest.approx(612_600, rel=0.01)
