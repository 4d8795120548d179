"""Busy and idle time of small recordings with known truth (shared data, cases/recordings)."""

from __future__ import annotations

import pytest

from lab.recordings.projection import project
from lab.rooms.nsys.captures.summary import summaries
from tests.recordings.test_cases import TRUTH, capture_of

pytestmark = pytest.mark.data


@pytest.mark.parametrize("name", TRUTH.get("idle", ["none"]))
def test_busy_and_idle_cover_the_whole_gpu(name):
    truth = TRUTH["idle"][name]
    ((_, summary),) = enumerate(summaries([(0, project(capture_of(name)))]))
    assert summary.gpus[0].busy_ms == pytest.approx(truth["busy_ms"], abs=1e-6)
    assert summary.gpus[0].idle_ms == pytest.approx(truth["idle_ms"], abs=1e-6)
