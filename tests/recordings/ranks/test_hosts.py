"""How much later a host launches than the others', from the begins of their steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.recordings.ranks import account_of
from lab.recordings.ranks.hosts import host_lateness_ns
from tests.recordings.ranks.made import MS, Job


def lateness_ms(job: Job, step: int = 6) -> dict[int, float]:
    together = account_of(job.play()).together
    return {rank: ns / MS for rank, ns in host_lateness_ns(together, step).items()}


def test_a_late_host_is_behind_by_its_delay_and_the_others_are_not():
    found = lateness_ms(Job(ranks=4, late={(2, 1): 20}))
    assert found.pop(2) == pytest.approx(20, rel=0.01)
    assert len(found) == 3 and all(ms < 0.1 for ms in found.values())


def test_a_rank_that_begins_its_step_late_launches_no_later_within_it():
    assert max(lateness_ms(Job(ranks=4, entered={3: 9}), step=5).values()) < 0.1


def test_a_wait_in_which_the_others_catch_up_takes_nothing_back():
    works = Job(ranks=3, late={(1, 0): 5}).play()
    for rank, work in works.items():
        # From the second half on every host waits for its GPU, so all launch at the same times.
        half = len(work) // 6
        begin, end = (np.array(values) for values in (work.call_begin, work.call_end))
        begin[half:], end[half:] = works[1].call_begin[half:], works[1].call_end[half:]
        waited = np.array([[begin[0], begin[half]]])
        works[rank] = replace(work, call_begin=begin, call_end=end, blocking_calls=waited)
    found = host_lateness_ns(account_of(works).together, 5)
    assert found[1] / MS == pytest.approx(5, rel=0.05)


def test_a_rank_without_launches_or_with_nobody_alike_has_no_lateness():
    works = Job(ranks=3).play()
    lost = np.full(len(works[0]), -1)
    works[0] = replace(works[0], call_begin=lost, call_end=lost)
    assert set(host_lateness_ns(account_of(works).together, 6)) == {1, 2}
    odd = Job(ranks=3, extra={2: 1}).play()
    assert set(host_lateness_ns(account_of(odd).together, 6)) == {0, 1}
