"""Counts of hashes in bounded memory are exact up to their limit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.rooms.nan.nixnan.reading.bulk_count import Distinct


@given(st.lists(st.integers(0, 300), max_size=400))
def test_distinct_hashes_are_counted_exactly_up_to_the_limit(numbers):
    for limit in (32, 400):
        distinct = Distinct(limit)
        for start in range(0, len(numbers), 20):
            distinct.add(np.array(numbers[start : start + 20], np.uint64) * np.uint64(2**64 // 301))
        assert distinct.count() == min(len(set(numbers)), limit)
