"""The picture of a step: every rank's bars, whatever their number."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import PathPatch

from lab.recordings.ranks import account_of
from lab.recordings.ranks.explain import explain
from lab.rooms.sweep.ranks.page import _merged, step_picture
from tests.recordings.ranks.made import Job


def test_every_rank_has_bars_of_its_compute_in_the_picture():
    (one,) = explain([account_of(Job(ranks=5).play())])
    patches = [one for one in step_picture(one, 6, 10.6).axes[0].get_children() if isinstance(one, PathPatch)]
    rows = {round(float(box[:, 1].mean())) for patch in patches for box in _boxes(patch)}
    assert rows == set(range(5))


def test_bars_of_a_step_with_very_many_operations_are_joined_and_none_is_lost():
    begin = np.arange(100_000) * 2.0  # each 1 long, 1 apart
    bars = _merged(begin, np.ones(len(begin)), closest=1.5)
    assert bars.tolist() == [[0.0, 199_999.0]]
    assert len(_merged(begin, np.ones(len(begin)), closest=0.5)) == 100_000


def _boxes(patch: PathPatch) -> np.ndarray:
    boxes: np.ndarray = np.asarray(patch.get_path().vertices).reshape(-1, 5, 2)[:, :4]
    return boxes
