"""The settings of the sweep itself."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import UsageError
from lab.rooms.sweep.config.train import SweepConfig
from lab.terminal.options import parse_int_list


def test_the_sweep_has_the_published_grid_in_random_order() -> None:
    sweep = SweepConfig()
    assert (sweep.channels, sweep.threads) == ([28, 42, 56, 70], [256, 512])
    assert (sweep.order, sweep.channels_as, sweep.repeats, sweep.seed) == ("random", "pin", 1, 2025)
    for bad in ({"channels": []}, {"threads": [-1]}, {"ranks": 0}, {"order": "sorted"}, {"chanels": [1]}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(bad, SweepConfig)


@given(st.lists(st.integers(min_value=1, max_value=10**6), min_size=1, unique=True))
def test_an_int_list_reads_back_what_was_written(values: list[int]) -> None:
    assert parse_int_list(",".join(map(str, values))) == values
    assert parse_int_list(" , ".join(map(str, values))) == values


@pytest.mark.parametrize("text", ["", "28,", "a", "28,x", "0", "-1", "1.5", "28,28", "2 8", "1_0", "٣"])
def test_anything_but_distinct_positive_integers_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_int_list(text)
