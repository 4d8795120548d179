"""Rule R: replays of CUDA and HIP graphs."""

from __future__ import annotations

import numpy as np

from lab.recordings.integrity import integrity_of
from lab.recordings.integrity.replays import Windows
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


def test_equal_replays_prove_each_other_in_any_order_of_rows():
    assert integrity_of(replays(GRAPH, GRAPH[::-1], GRAPH)) == ()


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
    found = integrity_of(replays(*[one for one in sizes for _ in range(2)]))
    assert found == ()
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
    def beside(*sizes: int, exact: bool) -> Windows:
        return Windows(np.array(sizes), np.array(sizes), np.zeros(len(sizes), dtype=int), exact)

    assert integrity_of(replays(GRAPH), [beside(40, 41, exact=False)]) == ()
    (lossy,) = integrity_of(replays(GRAPH), [beside(41, exact=True)])
    assert not lossy.unknown and lossy.n == 1
    (open_,) = integrity_of(replays(GRAPH), [beside(41, exact=False)])
    assert open_.unknown
    (two,) = integrity_of(replays(GRAPH), [beside(41, 42, exact=True)])
    assert two.unknown  # either graph may be its own


def test_a_shorter_replay_at_the_end_of_the_recording_is_its_edge():
    calls = [("cudaGraphLaunch", 1), ("cudaGraphLaunch", 2), ("cudaGraphLaunch", 3)]
    rows = [(name, corr) for corr in (1, 2) for name in GRAPH] + [(name, 3) for name in GRAPH[:30]]
    one = judged(made(calls, rows))["gpu", "tail", "R"]
    assert one.n == 10
