"""What nixnan cannot see, by GPU."""

from __future__ import annotations

from lab.rooms.nan.nixnan.judging.summary import summary


def test_gaps_of_hopper_are_no_gaps_of_ampere(made):
    result = summary(made(), compute_capability="8.6")["coverage"]
    assert not any("Hopper" in row["where"] for row in result["unseen"]) and result["unseen"]
