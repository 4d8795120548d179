"""Sensors whose every figure is known."""

from __future__ import annotations

import math

from lab.power.windows import Samples

NAN = math.nan


def sampled(watts, *, seconds=10.0, update=0.1, poll=0.004, counter=True, power=True):
    """Samples of a card that draws watts(t): counter and power sensor both move every `update` seconds."""
    samples, energy, t, shown_e, shown_p, next_update = Samples(), 0.0, 0.0, 0.0, watts(0.0), update
    while t < seconds:
        energy += watts(t) * poll
        if t >= next_update:
            shown_e, shown_p, next_update = energy, watts(t) + 1e-3 * math.sin(37 * t), next_update + update
        samples.t_s.append(t)
        samples.energy_j.append(shown_e if counter else NAN)
        samples.power_w.append(shown_p if power else NAN)
        t += poll
    return samples


class FakeMeter:
    name = "fake"

    def energy_j(self):
        return 1.0

    def power_w(self):
        return None
