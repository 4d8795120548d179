"""A small capture as an export."""

from __future__ import annotations

import pytest

from tests.recordings.sqlgen import Export


@pytest.fixture
def export():
    return Export()
