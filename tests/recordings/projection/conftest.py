"""Exports as captures."""

from __future__ import annotations

import pytest

from lab.recordings.load import load_capture


@pytest.fixture
def loaded(tmp_path):
    return lambda export: load_capture(export.write(tmp_path / "a.sqlite"))
