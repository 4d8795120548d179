"""Which rank keeps the others waiting, and why."""

from __future__ import annotations

import pytest

from lab.rooms.sweep.gemm.workbooks.stragglers import straggler_verdict


def ranks(**late: float) -> list[dict[str, float]]:
    usual = {
        "num_collectives": 48,
        "times_arrived_last": 0,
        "computation_time_ms": 47.0,
        "idle_time_ms": 2.5,
        "end_deviation_us": 0.0,
    }
    return [
        {**usual, "rank": 0, "times_arrived_last": 48, **late},
        *({**usual, "rank": r} for r in range(1, 8)),
    ]


@pytest.mark.parametrize(
    ("late", "verdict"),
    [
        ({"computation_time_ms": 34.8, "idle_time_ms": 102.1}, "starts later"),
        ({"computation_time_ms": 60.0, "idle_time_ms": 2.0}, "computes longer"),
        ({"times_arrived_last": 3, "end_deviation_us": 400.0}, "its link is slower"),
        ({"computation_time_ms": 46.0, "idle_time_ms": 2.0}, "arrives last without a cause"),
        ({"times_arrived_last": 3}, ""),
        ({"times_arrived_last": 6, "end_deviation_us": 40.0}, ""),
    ],
)
def test_a_straggler_is_named_with_the_evidence(late, verdict):
    rows = ranks(**late)
    assert straggler_verdict(rows[0], rows, 300.0).startswith(verdict)
    assert bool(verdict) == bool(straggler_verdict(rows[0], rows, 300.0))
    assert straggler_verdict(rows[0], rows[:1], 300.0) == ""
