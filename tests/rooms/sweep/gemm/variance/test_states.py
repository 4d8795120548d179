"""The clock at each GEMM of a sweep."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from lab.recordings.gpu_state import read_state
from lab.rooms.sweep.gemm.variance.states import with_clocks
from lab.rooms.sweep.knobs import Key
from tests.recordings.test_gpu_state import MS, T0, write_state
from tests.rooms.sweep.gemm.made import instances


def test_each_instance_has_the_clock_of_its_rank_and_run(tmp_path):
    state = read_state(write_state(tmp_path, {0: [1980, 1200], 1: [1500, 1500]}))
    rows = instances(np.full(4, 100.0), [False] * 4, rank=[0, 1, 0, 1]).assign(
        ts_ns=T0 + np.array([0, 0, 99 * MS, 99 * MS]), repeat=[1, 1, 1, 2]
    )
    found = with_clocks(SimpleNamespace(memo={"states": {Key(256, 28): state}}), rows)
    assert found["clock_mhz"].tolist()[:3] == [1980, 1500, 1200] and np.isnan(found["clock_mhz"].iloc[3])
    assert with_clocks(SimpleNamespace(memo={"states": {}}), rows)["clock_mhz"].isna().all()
