"""How much later a host launches than the others', from the begins of their steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.recordings.ranks import RankWork, account_of
from lab.recordings.ranks.common import host_lateness_ns
from tests.recordings.ranks.made import MS, Job


def waiting(works: dict[int, RankWork], patient: tuple[int, ...]) -> dict[int, RankWork]:
    """The hosts of `patient` ranks wait in mid-step for what they launched last, which ends with rank 1's."""
    found = {}
    for rank, work in works.items():
        half = len(work) // 6
        begin, end = (np.array(values) for values in (work.call_begin, work.call_end))
        if rank in patient:
            until = work.end[:half].max() + 10_000
            moved = until + 5_000 - begin[half]
            begin[half:], end[half:] = begin[half:] + moved, end[half:] + moved
            calls = np.array([[end[half - 1] + 1, until]])
            work = replace(work, call_begin=begin, call_end=end, blocking_calls=calls)
        found[rank] = work
    return found


def test_a_wait_in_which_the_others_catch_up_takes_nothing_back():
    works = waiting(Job(ranks=3, late={(1, 0): 5}).play(), patient=(0, 2))
    assert works[0].call_begin[-1] >= works[1].call_begin[-1]  # in the end nobody launches later than they
    found = host_lateness_ns(account_of(works).together, 5)
    assert found[1] / MS == pytest.approx(5, rel=0.05) and max(found[0], found[2]) < 0.1 * MS
