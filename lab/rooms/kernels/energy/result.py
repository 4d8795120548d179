"""energy.json as structs: rows, the model's own runs, closure."""

from __future__ import annotations

from typing import Any

import msgspec


class EnergyRow(msgspec.Struct, kw_only=True):
    """One distinct call. Joules per call; None if not known.

    measured is False if the power of another call stands in for its own.
    """

    sig_id: str
    op: str
    kernel: str
    class_: str = msgspec.field(name="class")
    count: int  # calls in the recorded run
    trace_us: float  # mean recorded GPU time of a call
    measured: bool = False
    gross_j: float | None = None
    net_j: float | None = None
    net_ci: tuple[float, float] | None = None
    watts: float | None = None
    wall_us: float | None = None  # per call while it was measured
    busy: float | None = None  # recorded GPU time over wall time
    ratio: float | None = None  # integral over counter
    method: str = "none"
    windows: int = 0
    run_net_j: float | None = None  # count * net_j
    flags: list[str] = []


class ModelEnergy(msgspec.Struct, kw_only=True):
    """The model's own runs, means over windows; None if that way of measuring is not available."""

    subject: str = msgspec.field(name="what")  # what ran
    runs: float
    wall_s: float  # of one run
    counter_j: float | None  # of one run
    integral_j: float | None
    j_per_run: float | None
    ci_j: tuple[float, float] | None
    j_per_forward: float | None
    j_per_token: float | None
    net_j_per_run: float | None
    forwards: int
    tokens: int


class EnergyClosure(msgspec.Struct, kw_only=True):
    """Parts against the whole, per run, every factor by name."""

    sum_net_j: float  # sum of count * net over all calls
    measured_share: float  # of sum_net_j: measured, not from stand-ins
    idle_w: float
    wall_s: float
    idle_j: float  # idle_w * wall_s
    predicted_j: float
    measured_j: float
    measured_net_j: float
    total_pct: float  # predicted over measured, percent off
    net_pct: float  # sum of nets over the run's net, percent off
    net_error_pct: float | None  # 95 % error of net_pct, points; None where it is not known
    idle_watt_pct: float  # one watt of idle power in percent of the run's net: the precision of net_pct


class EnergyResult(msgspec.Struct, kw_only=True):
    """energy.json."""

    device_name: str
    meter: str
    method: str
    idle_cold_w: float | None
    idle_context_w: float | None  # the one subtracted for net energy
    idle_before_w: float | None  # with a context, before any load
    update_period_s: float | None
    power_limit_w: float | None
    facts_before: dict[str, Any]
    facts_after: dict[str, Any]
    rows: list[EnergyRow]
    by_class: dict[str, float]
    model: ModelEnergy | None
    closure: EnergyClosure | None
    uncovered_us: float
    refused: list[str]
    lacks: list[str] = []  # what was to be measured and has no energy, beside the rows
    notes: list[str]
    bars: dict[str, bool | None]
