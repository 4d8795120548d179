"""Rule R: replays of CUDA and HIP graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.recordings.capture import Capture
from lab.recordings.integrity import integrity_of
from lab.recordings.integrity.replays import WINDOWS, cut_launches, replay_lacks
from lab.recordings.lacks import Lack
from lab.recordings.tables import Table, filled
from tests.recordings.integrity.made import judged, made

GRAPH = [f"k{i % 7}" for i in range(40)]


def replays(*graphs: list[str], before: list[tuple[str, int]] | None = None):
    """One graph launch per list of kernels, with an eager kernel at either end."""
    calls, rows = [*(before or []), ("cudaLaunchKernel", 900)], [("first", 900)]
    for index, names in enumerate(graphs):
        calls.append(("cudaGraphLaunch", 1000 + index))
        rows += [(name, 1000 + index) for name in names]
    return made([*calls, ("cudaLaunchKernel", 2000)], [*rows, ("last", 2000)])


def capture_of(size: int, begin: int = 1) -> list[tuple[str, int]]:
    launches = [("cudaLaunchKernel", begin + 1 + i) for i in range(size)]
    return [("cudaStreamBeginCapture", begin), *launches, ("cudaStreamEndCapture", begin + size + 1)]


def test_equal_replays_may_all_have_lost_the_same_row_in_any_order_of_rows():
    (one,) = integrity_of(replays(GRAPH, GRAPH[::-1], GRAPH))
    assert one.unknown and one.n == 120 and "3 graph replays without the capture" in one.text


def test_one_replay_without_a_capture_is_unknown_for_its_share_of_time():
    one = judged(replays(GRAPH))["gpu", "all", "R"]
    assert one.unknown and one.n == 40 and one.share == 40 / 42


def test_a_replay_that_lost_a_row_is_lossy_by_that_row():
    for lost in (0, 17, 39):
        one = judged(replays(GRAPH, GRAPH[:lost] + GRAPH[lost + 1 :], GRAPH))["gpu", "hole", "R"]
        assert (one.n, one.of, one.unknown) == (1, 120, False)


def test_a_replay_that_lost_its_only_kernel_of_a_name_is_found_too():
    whole = [*GRAPH, "only"]
    assert judged(replays(whole, whole, GRAPH))["gpu", "hole", "R"].n == 1


def test_graphs_of_other_sizes_are_other_graphs():
    sizes = [["a"], ["a", "b"], ["a", "b", "c"], [f"x{i}" for i in range(9)], [f"x{i}" for i in range(20)]]
    assert all(one.unknown for one in integrity_of(replays(*[one for one in sizes for _ in range(2)])))
    assert all(one.unknown for one in integrity_of(replays(*sizes)))


def test_a_replay_as_long_as_its_capture_is_proven_and_a_shorter_one_lost_the_rest():
    assert integrity_of(replays(GRAPH, before=capture_of(40))) == ()
    one = judged(replays(GRAPH, before=capture_of(41)))["gpu", "hole", "R"]
    assert (one.n, one.of, one.share) == (1, 41, 1 / 41)


def test_a_memset_in_a_capture_may_make_a_node_or_none():
    before = capture_of(39)
    before.insert(5, ("cudaMemsetAsync", 100))
    assert integrity_of(replays(GRAPH, before=before)) == ()
    assert integrity_of(replays(GRAPH[:39], before=before)) == ()


def test_captures_beside_prove_a_replay_and_exact_ones_accuse_it():
    def beside(*sizes: int, exact: bool) -> Table:
        columns = {"num_launches": sizes, "num_calls": sizes, "exact": [exact] * len(sizes)}
        return filled(WINDOWS, columns)

    def found(captures: Table) -> list[Lack]:
        return replay_lacks(replays(GRAPH), [captures])

    assert found(beside(40, 41, exact=False)) == []
    (lossy,) = found(beside(41, exact=True))
    assert not lossy.unknown and lossy.n == 1
    (open_,) = found(beside(41, exact=False))
    assert open_.unknown
    (two,) = found(beside(41, 42, exact=True))
    assert two.unknown  # either graph may be its own


def test_a_replay_with_the_rows_of_another_captured_graph_may_have_lost_some():
    """Two graphs of 40 and 41 kernels were captured: one of 40 rows may be of either."""
    before = capture_of(40) + capture_of(41, begin=100)
    longer = [*GRAPH, "last"]
    (one,) = integrity_of(replays(GRAPH, longer, before=before))
    assert one.unknown and one.n == 40 and "left of a longer one" in one.text
    (one,) = integrity_of(replays(GRAPH, GRAPH, before=before))
    assert one.unknown and one.n == 80
    other = ["other", *GRAPH]  # has no row of the shorter one too few, but one of its own
    assert integrity_of(replays([*GRAPH[1:], "own"], other, before=before)) == ()


def test_a_shorter_replay_at_the_end_of_the_recording_is_its_edge():
    calls = [("cudaGraphLaunch", 1), ("cudaGraphLaunch", 2), ("cudaGraphLaunch", 3)]
    rows = [(name, corr) for corr in (1, 2) for name in GRAPH] + [(name, 3) for name in GRAPH[:30]]
    one = judged(made(calls, rows))["gpu", "tail", "R"]
    assert one.n == 10


def ordered(size: int) -> list[str]:
    """Kernels of which the first and the last ones have names of their own."""
    return [f"k{i}" if i % 5 else "often" for i in range(size)]


@pytest.mark.parametrize("left", [1, 4, 27, 46])
@pytest.mark.parametrize("edge", ["head", "tail"])
def test_what_an_edge_left_of_a_replay_is_lossy_however_little_it_is(left, edge):
    whole = ordered(47)
    cut = whole[:left] if edge == "tail" else whole[47 - left :]
    graphs = [whole, whole, cut] if edge == "tail" else [cut, whole, whole]
    capture = made(
        [("cudaGraphLaunch", 1 + at) for at in range(3)],
        [(name, 1 + at) for at, names in enumerate(graphs) for name in names],
    )
    one = judged(capture)["gpu", edge, "R"]
    assert (one.n, one.of, one.share, one.unknown) == (47 - left, 141, (47 - left) / 141, False)
    assert [one.tolist() for one in cut_launches(capture)] == [[2 if edge == "tail" else 0], []]


@pytest.mark.parametrize("cut", [slice(0, 4), slice(0, 20), slice(30, 47), slice(0, 47, 2), slice(1, 47, 3)])
def test_a_replay_in_the_middle_that_lost_many_rows_in_one_place_or_all_over_is_a_hole(cut):
    whole = ordered(47)
    capture = replays(whole, whole[cut], whole)
    one = judged(capture)["gpu", "hole", "R"]
    assert one.n == 47 - len(whole[cut])
    assert cut_launches(capture)[0].tolist() == [2]  # after the eager call and the first replay


def test_a_graph_that_is_another_one_lost_nothing():
    whole = ordered(47)
    (one,) = integrity_of(replays(whole, whole, whole[:20], whole[:20]))
    assert one.unknown and one.n == 134
    other = ["new", *whole[:3]]
    (one,) = integrity_of(replays(whole, whole, other))
    assert one.unknown and one.n == 2 * len(whole) + len(other) and one.place == "all"
    assert not any(map(len, cut_launches(replays(whole, whole, other))))


@pytest.mark.parametrize(
    "cut", [slice(19, None, -1), slice(0, 1), slice(23, 24), slice(3, 47, 5), slice(40, 20, -1)]
)
def test_a_replay_in_the_middle_that_may_be_the_rest_of_a_longer_one_is_said_to_be(cut):
    whole = ordered(47)
    capture = replays(whole, whole[cut], whole)
    (one,) = integrity_of(capture)
    left = len(whole[cut])
    assert (one.unknown, one.place, one.n, one.of) == (True, "hole", 47 - left, 141)
    assert "another graph, or " in one.text
    assert [one.tolist() for one in cut_launches(capture)] == [[], [2]]
    equal = replays(whole, whole[cut], whole, whole[cut])
    assert all(one.unknown and one.place == "all" for one in integrity_of(equal))
    assert not any(map(len, cut_launches(equal)))


def test_a_graph_of_another_id_is_another_graph_even_at_the_edge():
    whole = ordered(47)
    rows = [(name, 1 + at) for at, names in enumerate((whole, whole, whole[:20])) for name in names]
    capture = made([("cudaGraphLaunch", 1 + at) for at in range(3)], rows)

    def of_graphs(ids: np.ndarray) -> Capture:
        return replace(
            capture, ops=Table({name: getattr(capture.ops, name) for name in capture.ops} | {"graph": ids})
        )

    (one,) = integrity_of(of_graphs(np.where(capture.ops.corr == 3, 8, 7)))
    assert one.unknown
    assert judged(of_graphs(np.full(len(rows), 7)))["gpu", "tail", "R"].n == 27
