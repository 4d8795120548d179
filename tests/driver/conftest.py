from __future__ import annotations

import pytest

from lab import engines


@pytest.fixture(autouse=True)
def recorded_engine(monkeypatch):
    """The double that plays back a run, so that tests of the driver need no process."""
    monkeypatch.setitem(engines.ENGINES, "recorded", "tests.engines.recorded_engine:RecordedEngine")
