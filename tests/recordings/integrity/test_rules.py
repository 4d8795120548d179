"""Rules G, H, K, S, T, U, W and Z on made captures, where every loss is planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.recordings.calls import (
    BEGIN_CAPTURE,
    COPY,
    END_CAPTURE,
    FILL,
    GRAPH_LAUNCH,
    LAUNCH,
    OTHER,
    kind_of,
)
from lab.recordings.integrity import integrity_of
from lab.recordings.integrity.words import bound, idle_bound, integrity_lines
from lab.recordings.lacks import Lack, holes, verdict_of
from lab.recordings.tables import KERNEL, MEMCPY, MEMSET, Table
from tests.recordings.integrity.made import judged, made

LAUNCHES = [("cudaLaunchKernel", i) for i in range(1, 11)]


def rows(*corrs: int):
    return [("k", corr) for corr in corrs]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel_v7000", LAUNCH),
        ("cudaLaunchKernelExC_v11060", LAUNCH),
        ("cuLaunchKernelEx", LAUNCH),
        ("hipExtModuleLaunchKernel", LAUNCH),
        ("hipModuleLaunchKernel", LAUNCH),
        ("hipLaunchCooperativeKernel", LAUNCH),
        ("cudaLaunchCooperativeKernelMultiDevice", LAUNCH),
        ("cudaGraphLaunch_v10000", GRAPH_LAUNCH),
        ("hipGraphLaunch", GRAPH_LAUNCH),
        ("cudaMemcpyAsync_ptsz", COPY),
        ("hipMemcpyWithStream", COPY),
        ("cuMemcpyHtoDAsync_v2", COPY),
        ("cudaMemsetAsync_v3020", FILL),
        ("cudaStreamBeginCapture_v10000", BEGIN_CAPTURE),
        ("hipStreamEndCapture", END_CAPTURE),
        ("cudaLaunchHostFunc", OTHER),
        ("cudaGraphAddMemcpyNode", OTHER),
        ("__hipPushCallConfiguration", OTHER),
        ("cudaStreamSynchronize", OTHER),
    ],
)
def test_a_call_owes_what_its_name_says(name, kind):
    assert kind_of(name) == kind


def test_a_launch_with_its_row_is_complete_and_callbacks_memsets_and_waits_owe_nothing():
    calls = [*LAUNCHES, ("cudaMemsetAsync", 20), ("cudaLaunchHostFunc", 21), ("cudaDeviceSynchronize", 22)]
    assert integrity_of(made(calls, rows(*range(1, 11)))) == ()


def test_lost_rows_are_head_tail_or_hole_by_the_time_of_their_calls():
    found = judged(made(LAUNCHES, rows(3, 4, 6, 7)))
    places = {place: (one.n, one.of, one.share) for (_, place, _), one in found.items()}
    assert places == {"head": (2, 10, 0.2), "hole": (1, 10, 0.1), "tail": (3, 10, 0.3)}
    assert holes(list(found.values())) == [found["gpu", "hole", "G"]]


def test_rows_older_than_every_call_are_head_and_newer_ones_tail_and_others_a_hole():
    found = judged(made([("cudaLaunchKernel", 10), ("cudaLaunchKernel", 30)], rows(5, 10, 20, 30, 40, -1)))
    assert {place: one.n for (axis, place, _), one in found.items() if axis == "host"} == {
        "head": 1,
        "hole": 2,  # 20, and the row without a correlation: not older than anything
        "tail": 1,
    }


def test_the_host_share_is_of_gpu_time_and_not_of_rows():
    capture = made([("cudaLaunchKernel", 10)], rows(10, 11))
    ends = capture.ops.end_ns.copy()
    ends[1] += 992  # 8 ns and 1000 ns
    capture = replace(capture, ops=Table(capture.ops.as_dict() | {"end_ns": ends}))
    assert judged(capture)["host", "tail", "H"].share == pytest.approx(1000 / 1008)


def test_launches_without_any_gpu_row_are_wholly_lost():
    one = judged(made(LAUNCHES, []))["gpu", "all", "S"]
    assert (one.n, one.of, one.share) == (10, 10, 1.0)


def test_an_empty_recording_is_no_all_clear():
    assert verdict_of(integrity_of(made([], []))) == "unknown"


def test_without_api_calls_nothing_is_known():
    found = integrity_of(made([], rows(1, 2)))
    assert verdict_of(found) == "unknown" and {one.axis for one in found} == {"gpu", "host"}


def test_captured_launches_are_no_loss_on_the_capturing_thread_or_on_autograds():
    calls = [
        ("cudaLaunchKernel", 1),
        ("cudaStreamBeginCapture", 2),
        ("cudaLaunchKernel", 3),
        ("cudaLaunchKernel", 4),
        ("cudaStreamEndCapture", 5),
        ("cudaLaunchKernel", 6),
    ]
    assert integrity_of(made(calls, rows(1, 6), tid=[1, 1, 1, 2, 1, 1])) == ()


def test_a_launch_after_the_capture_ended_is_lost_again():
    calls = [
        ("cudaStreamBeginCapture", 1),
        ("cudaLaunchKernel", 2),
        ("cudaStreamEndCapture", 3),
        ("cudaLaunchKernel", 4),
        ("cudaLaunchKernel", 5),
    ]
    assert judged(made(calls, rows(5)))["gpu", "head", "G"].n == 1


def test_another_thread_that_runs_eagerly_beside_a_capture_still_owes_its_rows():
    calls = [
        ("cudaStreamBeginCapture", 1),
        *[("cudaLaunchKernel", corr) for corr in (2, 3, 4)],
        ("cudaStreamEndCapture", 5),
    ]
    found = judged(made(calls, rows(2, 4), tid=[1, 2, 2, 2, 1]))
    assert found["gpu", "hole", "G"].n == 1


@pytest.mark.parametrize("ends", [True, False])
def test_a_capture_window_that_the_recording_cuts_reaches_to_that_edge(ends):
    mark = ("cudaStreamEndCapture", 9) if ends else ("cudaStreamBeginCapture", 9)
    inside = [("cudaLaunchKernel", 1), ("cudaLaunchKernel", 2)]
    calls = [*inside, mark, ("cudaLaunchKernel", 10)] if ends else [("cudaLaunchKernel", 10), mark, *inside]
    assert integrity_of(made(calls, rows(10))) == ()


def test_copies_count_like_launches_where_the_recorder_always_traces_them():
    calls = [("cudaMemcpyAsync", 1), ("cudaLaunchKernel", 2)]
    assert judged(made(calls, rows(2)))["gpu", "head", "G"].share == 0.5


def test_copies_that_amd_was_not_asked_to_trace_are_unknown_and_not_lost():
    calls = [("hipMemcpy", 1), ("hipLaunchKernel", 2), ("hipMemcpy", 3)]
    (one,) = integrity_of(made(calls, rows(2), collector="rocpd"))
    assert (one.rule, one.n, one.share, one.unknown) == ("T", 2, None, True)
    found = judged(made(calls, [("k", 2), ("MemcpyHtoD", 3)], collector="rocpd"))
    assert found["gpu", "head", "G"].n == 1  # a copy is there, so they were traced, and one is lost


def test_a_correlation_counts_in_its_own_process_only():
    capture = made([("cudaLaunchKernel", 1), ("cudaLaunchKernel", 1)], rows(1), processes=2, process=[0, 1])
    (one,) = integrity_of(capture)
    assert (one.process, one.rule, one.n) == (1, "S", 1)


def test_figures_of_a_lossy_axis_are_bounds_and_unknown_ones_are_not_marked():
    lost = Lack("gpu", "hole", "G", 0, 1, 3, 1 / 3, "1 of 3\nlaunches \x1b[2J")
    assert bound([lost]) == bound([lost], "gpu") == "at least" and idle_bound([lost]) == "at most "
    assert bound([lost], "host") == "" and idle_bound([]) == ""
    unknown = Lack("gpu", "all", "R", 0, 1, 3, None, "?", unknown=True)
    assert bound([unknown]) == "" and verdict_of([unknown]) == "unknown"
    first, second = integrity_lines([lost])
    assert first == "recording: lossy (gpu lossy, host complete, ops complete)"
    assert "\x1b" not in second and "\n" not in second


def shifted(by_ns, rows=slice(None)):
    """Launches 10 ns apart, whose rows begin 1 us after them, and these rows later by `by_ns`."""
    capture = made([("cudaLaunchKernel", i) for i in range(1, 9)], [("k", i) for i in range(1, 9)])
    start, end = capture.ops.start_ns.copy(), capture.ops.end_ns.copy()
    start[rows] += by_ns
    end[rows] += by_ns
    ops = Table(capture.ops.as_dict() | {"start_ns": start, "end_ns": end})
    return judged(replace(capture, ops=ops))


def test_rows_far_from_their_calls_are_two_clocks_and_unknown():
    for by_ns, words in ((10**13, "begin up to 1e+04 s after the call"), (-(10**9), "s before the call")):
        found = shifted(by_ns)
        assert set(found) == {("gpu", "all", "K")}
        lack = found["gpu", "all", "K"]
        assert lack.unknown and (lack.n, lack.of) == (8, 8) and words in lack.text


@pytest.mark.parametrize("by_ns", [-11_000_000, 61 * 10**9])
def test_clocks_are_two_from_10_ms_before_and_a_minute_after_the_call(by_ns):
    assert shifted(by_ns)["gpu", "all", "K"].n == 8


@pytest.mark.parametrize("by_ns", [0, -9_000_000, 50 * 10**9])
def test_drift_and_a_deep_queue_are_no_two_clocks(by_ns):
    assert shifted(by_ns) == {}


def waited(by_ns, devices=1):
    """Eight launches and a wait for the device that returns 10 us after the last row, moved by `by_ns`."""
    calls = [("cudaLaunchKernel", i) for i in range(1, 9)] + [("cudaDeviceSynchronize", 9)]
    capture = made(calls, [("k", i) for i in range(1, 9)])
    end_ns = capture.api.end_ns.copy()
    end_ns[-1] = capture.ops.end_ns.max() + 10_000
    moved = {name: getattr(capture.ops, name) + by_ns for name in ("start_ns", "end_ns")}
    moved["device"] = np.arange(8) % devices
    return judged(
        replace(
            capture,
            api=Table(capture.api.as_dict() | {"end_ns": end_ns}),
            ops=Table(capture.ops.as_dict() | moved),
        )
    )


def test_rows_that_outlast_the_wait_for_them_are_two_clocks():
    lack = waited(20_000_000)["gpu", "all", "K"]
    assert lack.unknown and (lack.n, lack.of) == (8, 8) and "end up to 0.02 s after the return" in lack.text
    assert holes([lack]) == [lack]
    assert waited(1_500_000)["gpu", "all", "K"].n == 8


@pytest.mark.parametrize(("by_ns", "devices"), [(0, 1), (900_000, 1), (20_000_000, 2)])
def test_a_wait_says_nothing_of_a_little_drift_or_of_other_devices(by_ns, devices):
    assert waited(by_ns, devices) == {}


def test_a_wait_that_the_recording_cut_off_has_not_returned():
    capture = made([("cudaLaunchKernel", 1), ("cudaDeviceSynchronize", 2)], rows(1))
    api = Table(capture.api.as_dict() | {"end_ns": capture.api.start_ns + np.array([5, 0])})
    ops = Table(capture.ops.as_dict() | {"end_ns": capture.ops.end_ns + 10**9})
    assert judged(replace(capture, api=api, ops=ops)) == {}


def test_a_row_launched_while_another_thread_waits_may_outlast_the_wait():
    calls = [("cudaLaunchKernel", 1), ("cudaDeviceSynchronize", 2), ("cudaLaunchKernel", 3)]
    capture = made(calls, rows(1, 3), tid=[1, 1, 2])
    end_ns = capture.ops.end_ns + np.array([0, 10**9])
    api_end_ns = np.array([5, 10**6, 25])
    moved = replace(
        capture,
        ops=Table(capture.ops.as_dict() | {"end_ns": end_ns}),
        api=Table(capture.api.as_dict() | {"end_ns": api_end_ns}),
    )
    assert judged(moved) == {}


def test_calls_that_are_there_twice_are_counted_and_calls_without_a_correlation_are_not():
    capture = made(LAUNCHES, rows(*range(1, 11)))
    twice = capture.api.take(np.concatenate([np.arange(10), [2, 5]]))
    found = judged(replace(capture, api=twice))
    assert set(found) == {("host", "all", "W")}
    lack = found["host", "all", "W"]
    assert (lack.n, lack.of) == (2, 12) and holes([lack]) == [lack] and "12 API calls" in lack.text
    bare = Table(twice.as_dict() | {"corr": np.zeros(12, dtype=twice.corr.dtype)})
    assert not [one for one in judged(replace(capture, api=bare)) if one[2] == "W"]


@pytest.mark.parametrize(("longer_ns", "number"), [(3, 3), (0, 30), (3, 30)])
def test_a_row_that_begins_with_one_of_its_name_on_its_stream_is_a_copy_whatever_its_number(
    longer_ns, number
):
    capture = made([*LAUNCHES, ("cudaLaunchKernel", 30)], rows(*range(1, 11)))
    twice = capture.ops.take(np.append(np.arange(10), 2))
    end_ns, corr = twice.end_ns.copy(), twice.corr.copy()
    end_ns[-1] += longer_ns
    corr[-1] = number
    copied = replace(capture, ops=Table(twice.as_dict() | {"end_ns": end_ns, "corr": corr}))
    assert judged(copied)["gpu", "all", "W"].n == 1
    other_name = copied.ops.name_id.copy()
    other_name[-1] = capture.api.name_id[0]
    renamed = replace(copied, ops=Table(copied.ops.as_dict() | {"name_id": other_name}))
    assert ("gpu", "all", "W") not in judged(renamed)


def test_different_calls_with_one_number_leave_it_open_who_launched_what():
    capture = made(LAUNCHES, rows(*range(1, 11)))
    parts = []
    for table in (capture.ops, capture.api):
        later = Table(table.as_dict() | {"start_ns": table.start_ns + 10**6, "end_ns": table.end_ns + 10**6})
        columns = {name: np.append(table.as_dict()[name], later.as_dict()[name]) for name in table.as_dict()}
        parts.append(Table(columns))
    found = judged(replace(capture, ops=parts[0], api=parts[1]))
    assert set(found) == {("gpu", "all", "K")}
    lack = found["gpu", "all", "K"]
    assert (lack.n, lack.of) == (10, 20) and holes([lack]) == [lack] and "number of another" in lack.text


def test_rows_that_all_last_a_thousand_times_too_long_outlast_their_stream():
    capture = made(LAUNCHES, rows(*range(1, 11)))
    start_ns = np.arange(1, 11) * 20_000
    for dur_ns, count in ((20_000, 0), (60_000, 0), (20_000_000, 6)):
        times = {"start_ns": start_ns, "end_ns": start_ns + dur_ns + np.arange(10)}
        lack = judged(replace(capture, ops=Table(capture.ops.as_dict() | times))).get(("gpu", "all", "P"))
        assert (lack.n if lack else 0) == count


@pytest.mark.parametrize(("later_ns", "count"), [(1_900, 0), (2_100, 1)])
def test_a_row_may_end_two_microseconds_after_its_successor_as_rounding_makes_it(later_ns, count):
    capture = made(LAUNCHES, rows(*range(1, 11)))
    start_ns = np.arange(1, 11) * 20_000
    end_ns = start_ns + 10_000
    end_ns[3] = end_ns[4] + later_ns
    times = {"start_ns": start_ns, "end_ns": end_ns}
    lack = judged(replace(capture, ops=Table(capture.ops.as_dict() | times))).get(("gpu", "all", "P"))
    assert (lack.n if lack else 0) == count


def test_equal_rows_on_two_streams_or_of_two_graph_nodes_are_no_copies():
    capture = made(LAUNCHES, rows(*[1] * 4))
    same = {"start_ns": np.full(4, 1000), "end_ns": np.full(4, 1008)}
    apart = {"stream": np.array([1, 2, 1, 2]), "graph_node": np.array([1, 1, 2, 2])}
    ops = Table(capture.ops.as_dict() | same | apart)
    assert not {one for one in judged(replace(capture, ops=ops)) if one[2] == "W"}


def test_kernels_without_a_duration_are_unmeasured_unless_the_clock_is_coarse():
    capture = made(LAUNCHES, rows(*range(1, 11)))
    dur_ns = np.array([0, 0, *range(1, 9)])
    for scale, expected in ((1, {("gpu", "all", "Z")}), (1000, set())):
        start_ns = capture.ops.start_ns * scale
        ops = Table(capture.ops.as_dict() | {"start_ns": start_ns, "end_ns": start_ns + dur_ns * scale})
        found = judged(replace(capture, ops=ops))
        assert set(found) == expected
        assert not expected or found["gpu", "all", "Z"].n == 2


def test_kernels_that_all_took_no_time_are_unmeasured_whatever_the_clock_resolves():
    capture = made(LAUNCHES, rows(*range(1, 11)))
    ops = Table(capture.ops.as_dict() | {"end_ns": capture.ops.start_ns.copy()})
    lack = judged(replace(capture, ops=ops))["gpu", "all", "Z"]
    assert (lack.n, lack.of) == (10, 10) and verdict_of([lack]) == "unknown"


def test_copies_and_fills_without_a_duration_are_unmeasured_unless_the_clock_is_coarse():
    capture = made(LAUNCHES, rows(*range(1, 11)))
    kind = np.array([KERNEL] * 6 + [MEMCPY, MEMCPY, MEMSET, MEMSET], dtype=capture.ops.kind.dtype)
    dur_ns = np.array([1, 2, 3, 4, 5, 6, 0, 7, 0, 8])
    for scale, expected in ((1, {("gpu", "all", "Z")}), (1000, set())):
        ends = capture.ops.start_ns + dur_ns * scale
        found = judged(replace(capture, ops=Table(capture.ops.as_dict() | {"end_ns": ends, "kind": kind})))
        assert {one for one in found if one[2] == "Z"} == expected
        assert not expected or found["gpu", "all", "Z"].text.startswith("2 of 4 copies and fills took 0 ns")
