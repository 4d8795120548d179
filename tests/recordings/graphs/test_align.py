"""A row's place is certain only where every way of embedding the replay puts it there."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from lab.recordings.graphs.fit import places


def every_embedding(part: list[int], whole: list[int]) -> list[tuple[int, ...]]:
    found = combinations(range(len(whole)), len(part))
    return [at for at in found if [whole[index] for index in at] == part]


@pytest.mark.parametrize("seed", range(40))
def test_places_of_a_lossy_replay_are_those_of_all_embeddings(seed):
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 3, 9).tolist()
    part = [word for word in whole if rng.random() < 0.6] or whole[:1]
    found = places(np.array(part), np.array(whole), np.zeros(len(part)))
    ways = np.array(every_embedding(part, whole))
    assert found.earliest.tolist() == ways.min(axis=0).tolist()
    assert found.latest.tolist() == ways.max(axis=0).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_streams_that_run_beside_each_other_never_give_a_wrong_place(seed):
    """Rows keep their order within a stream only; some are lost, and the streams are shuffled in time."""
    rng = np.random.default_rng(200 + seed)
    whole = rng.integers(0, 5, 30)
    lane_of = rng.integers(0, 2, 30)
    kept = np.flatnonzero(rng.random(30) < (0.8 if seed % 2 else 2))
    order = np.argsort(kept + 6 * rng.random(len(kept)) + 40 * 0, kind="stable")
    for lane in (0, 1):  # in a lane the order is that of capture
        mine = np.flatnonzero(lane_of[kept[order]] == lane)
        order[mine] = np.sort(order[mine])
    truth = kept[order]
    found = places(whole[truth], whole, lane_of[truth])
    assert (found.earliest[found.sure] == truth[found.sure]).all()


def test_a_complete_replay_in_two_streams_with_a_name_of_its_own_each_is_known_whole():
    whole = np.array([1, 2, 1, 2, 1, 2])
    found = places(np.array([1, 1, 1, 2, 2, 2]), whole, np.array([0, 0, 0, 1, 1, 1]))
    assert found.earliest.tolist() == [0, 2, 4, 1, 3, 5]
    assert found.sure.all()
