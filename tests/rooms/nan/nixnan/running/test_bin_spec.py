"""The specification of exponent bins is checked before it ends a run silently."""

from __future__ import annotations

import pytest

from lab.errors import ConfigError
from lab.rooms.nan.nixnan.running.preflight import read_bin_spec


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("{", "not JSON"),
        ("[]", "a bin specification is"),
        ('{"f16": []}', "a bin specification is"),
        ('{"count": 3, "f8": []}', "'f8' is not a type"),
        ('{"count": 3, "f16": [[3, 1]]}', "not a range"),
        ('{"count": 3, "f16": [[1]]}', "not a range"),
    ],
)
def test_a_bad_bin_specification_is_refused_before_it_ends_a_run_silently(tmp_path, text, complaint):
    path = tmp_path / "bins.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_bin_spec(path)
