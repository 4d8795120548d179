"""What of a recording becomes a rank's work."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from lab.recordings.ranks.work import _call_times
from lab.recordings.tables import Table


def test_of_calls_with_one_number_the_earliest_counts_wherever_it_stands():
    api = Table({"corr": np.array([7, 5, 7, -1]), "start_ns": np.array([300, 200, 100, 50])})
    times = _call_times(SimpleNamespace(api=api), np.array([7, 5, 9, 0, -1]))
    assert times.tolist() == [100, 200, -1, -1, -1]
