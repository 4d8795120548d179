"""Sensors, plans and measurements of an energy run, every figure known."""

from __future__ import annotations

import math

from lab.power.windows import (
    Samples,
    Window,
)
from lab.rooms.kernels.energy.choice import EnergyConfig, RawEnergy, RunEnergy, SignatureEnergy
from lab.rooms.kernels.replay.args import Call, Forward, Launch, Origin, ReplayPlan, Signature

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


# from windows to closure
def a_plan():
    big, small, other = (
        Signature(sig_id=name, op=op, launches=(Launch(kernel),))
        for name, op, kernel in (
            ("big", "aten::mm", "gemm_a"),
            ("small", "aten::mul", "mul_k"),
            ("kin", "aten::mm", "gemm_a"),
        )
    )
    calls = (Call(0, 0, (100.0,)), Call(0, 0, (100.0,)), Call(1, 0, (2.0,)), Call(2, 0, (50.0,)))
    return ReplayPlan(
        origin=Origin(device_name="H200"),
        forwards=(Forward("prefill", "prefill"),),
        signatures=(big, small, other),
        calls=calls,
        config={"new_tokens": 2},
    )


def a_window(joules, seconds=5.0, launches=1000.0, integral=None):
    return Window(
        t0_s=0.0,
        t1_s=seconds,
        counter_j=joules,
        integral_j=integral,
        method="counter, edge-aligned",
        updates=50,
        launches=launches,
    )


def a_raw(**more):
    raw = RawEnergy(
        meter="nvml",
        config=EnergyConfig(),
        device_name="H200",
        facts_before={"power_limit_w": 700.0},
        idle_cold=a_window(400.0),
        idle_context=a_window(500.0),
    )
    raw.signatures = [
        SignatureEnergy(
            sig_id="big",
            place=0,
            captured=True,
            windows=[a_window(2500.0, launches=50_000), a_window(2510.0, launches=50_000)],
        )
    ]
    raw.stands_for = {1: 0, 2: 0}
    raw.model = [
        RunEnergy(
            subject="model",
            forwards_per_run=2,
            window=a_window(600.0, seconds=5.0, launches=1000.0, integral=590.0),
        )
    ]
    for name, value in more.items():
        setattr(raw, name, value)
    return raw
