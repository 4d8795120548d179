"""Plans and measurements of an energy run, every figure known."""

from __future__ import annotations

from lab.power.windows import Window
from lab.rooms.kernels.energy.choice import EnergyConfig, RawEnergy, RunEnergy, SignatureEnergy
from lab.rooms.kernels.replay.args import Call, Forward, Launch, Origin, ReplayPlan, Signature


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
