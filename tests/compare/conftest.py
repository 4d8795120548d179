"""What the tests of comparisons share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_state(monkeypatch, tmp_path):
    """A check keeps its floors in the user's state folder: not in that of whoever runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
