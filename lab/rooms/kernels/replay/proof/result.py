"""replay.json as structs: rows, coverage, closure."""

from __future__ import annotations

import math
from typing import Any

import msgspec

# How the launches of a call compare with the recorded ones.
OP_ONLY = "op called again, no kernel"  # on a CPU: nothing was launched, so nothing is proven
EXACT, GEOMETRY, OTHER = "exact", "other geometry", "other kernel"
NONE, VARIED, NOT_RUN = "nothing launched", "varied", "not replayed"
REBUILT = ("ran", "shapes")  # statuses of calls whose arguments were made again


class Row(msgspec.Struct, kw_only=True):
    """One launch of one signature. Times in us; None if there is nothing to compare."""

    sig_id: str
    position: int  # of the launch in its op's group
    op: str
    overload: str
    kernel: str
    class_: str = msgspec.field(name="class")
    kind: str
    mode: str
    count: int
    trace_sum_us: float
    trace_median_us: float
    time_share: float
    n_ran: int
    us: dict[str, Any] | None  # {"median": us, "ci": [low, high]}; 95 %, by bootstrap of the ratio
    same_kernel: str
    err_pct: float | None
    arg_src: str
    origin: str
    launched: str  # the kernel the replay launched if it is another one
    flags: list[str]
    name: str


class Coverage(msgspec.Struct, kw_only=True):
    """How much of the recording was replayed, in launches and in time, by kind of launch."""

    launches: int
    rebuilt_launches: int
    same_launches: int
    time_us: float
    rebuilt_time_us: float
    same_time_us: float

    def percent(self, status: str, unit: str) -> float:
        part, total = getattr(self, f"{status}_{unit}"), getattr(self, unit)
        return 100.0 * part / total if total else math.nan


class ForwardClosure(msgspec.Struct, kw_only=True):
    """One forward: sums of kernel time, recorded and replayed, over what was replayed as the same kernel."""

    name: str
    phase: str
    wall_us: float
    busy_us: float
    trace_sum_us: float
    compared_us: float  # recorded time of what was replayed as the same kernel
    replay_sum_us: float

    @property
    def closure_pct(self) -> float:
        """How far the replayed sum is off, over the launches that can be compared, in percent."""
        return 100.0 * (self.replay_sum_us / self.compared_us - 1) if self.compared_us else math.nan


class Result(msgspec.Struct, kw_only=True):
    """replay.json."""

    mode: str
    repeats: int
    device: str
    device_name: str
    trace_device_name: str
    same_gpu: bool
    coverage: dict[str, Coverage]
    error: dict[str, float | None]
    closure: list[ForwardClosure]
    rows: list[Row]
    uncovered: list[dict[str, Any]]
    sources: dict[str, int]
    versions: dict[str, str]
    notes: list[str]
    bars: dict[str, bool | None]
