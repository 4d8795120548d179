"""Files of a profile, line by line."""

from __future__ import annotations

import pytest

from lab.errors import BadDataError
from lab.rooms.kernels.schema import Launch
from lab.rooms.kernels.trails import read_lines


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "launches.jsonl").write_text('{"rank": 0}\n')
    with pytest.raises(BadDataError, match="not a Launch") as caught:
        list(read_lines(tmp_path / "launches.jsonl", Launch))
    assert caught.value.location.endswith("launches.jsonl:1")
