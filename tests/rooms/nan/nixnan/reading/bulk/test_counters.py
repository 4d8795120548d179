"""Counts of hashes in bounded memory are exact up to their limit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.rooms.nan.nixnan.reading.bulk import counters


@given(st.lists(st.integers(0, 300), max_size=400))
def test_distinct_hashes_are_counted_exactly_up_to_the_limit(numbers):
    for limit in (32, 400):
        distinct = counters.Distinct(limit)
        for start in range(0, len(numbers), 20):
            distinct.add(np.array(numbers[start : start + 20], np.uint64) * np.uint64(2**64 // 301))
        assert distinct.count() == min(len(set(numbers)), limit)


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=60), st.data())
def test_an_index_finds_what_was_added_and_nothing_else(keys, data):
    crowded = [key >> 46 << 46 | n for n, key in enumerate(keys)] + list(range(5))  # many share a slot
    crowded = list(dict.fromkeys(crowded))
    cut = data.draw(st.integers(0, len(crowded)))
    index = counters.Index()
    index.add(np.array(crowded[:cut], np.uint64))
    index.add(np.array(crowded[cut:], np.uint64))
    rows = index.rows(np.array([*crowded, 2**64 - 3], np.uint64))
    assert rows.tolist() == [*range(len(crowded)), -1]
