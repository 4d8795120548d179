"""What nixnan cannot see, by GPU."""

from __future__ import annotations

from lab.rooms.nan.nixnan.judging.verdict import coverage


def test_gaps_of_hopper_are_no_gaps_of_ampere(made):
    hopper, ampere = (" ".join(coverage(made(), compute_capability=name)) for name in ("9.0", "8.6"))
    assert "cuLaunchKernelEx: their kernels" in hopper and "their kernels" not in ampere
    assert "not prove health" in ampere and "lower bounds" in ampere
