"""Which calls are measured, and which stand in for others."""

from __future__ import annotations

from lab.rooms.kernels.energy.choice import EnergyConfig, choose
from tests.rooms.kernels.energy.made import a_plan


def test_calls_are_chosen_by_time_and_similar_calls_stand_in():
    chosen, stands_for = choose(a_plan(), EnergyConfig(coverage=0.7))
    assert chosen == [0] and stands_for == {2: 0, 1: 0}
    everything, nobody = choose(a_plan(), EnergyConfig(coverage=1.0))
    assert everything == [0, 2, 1] and nobody == {}
    assert choose(a_plan(), EnergyConfig(coverage=1.0, most_calls=1))[0] == [0]
