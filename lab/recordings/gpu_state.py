"""Clocks, power and temperature sampled beside a run (lab.gpus.sampling), on the time of the traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.gpus.sampling import COLUMNS, SAMPLES, SUMMARY

MOST_BYTES = 256 << 20
# A sample says nothing about what ran further away from it.
NEAR_NS = 1_000_000_000
IDLE = 0x1
# Reasons for a lower clock, by NVML's bits.
REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}


@dataclass(frozen=True)
class GpuState:
    """Samples in order of time; columns (n,) are NaN where not reported. place is the local rank.

    cost_share: CPU time of the sampling over its wall time, NaN where it did not end; reasons: why GPUs have
    no rows.
    """

    unix_ns: np.ndarray
    place: np.ndarray
    values: dict[str, np.ndarray]
    cost_share: float
    interval_s: float
    reasons: tuple[str, ...]

    def at(self, place: int, when_ns: np.ndarray, name: str = "sm_clock_mhz") -> np.ndarray:
        """The nearest sample of one GPU at times (n,); NaN further than a second from any."""
        mine = np.flatnonzero((self.place == place) & ~np.isnan(self.values[name]))
        found = np.full(len(when_ns), np.nan)
        if not len(mine):
            return found
        times = self.unix_ns[mine]
        after = np.clip(np.searchsorted(times, when_ns), 0, len(mine) - 1)
        before = np.maximum(after - 1, 0)
        nearer = np.abs(times[before] - when_ns) <= np.abs(times[after] - when_ns)
        chosen = np.where(nearer, before, after)
        near = np.abs(times[chosen] - when_ns) <= NEAR_NS
        found[near] = self.values[name][mine[chosen[near]]]
        return found

    def summary(self, place: int, begin_ns: int, end_ns: int) -> dict[str, Any]:
        """One GPU while it worked between two times, give or take a second: medians, extremes, reasons.

        Samples in which the GPU idled do not count, unless there are no others.
        """
        mine = (self.place == place) & (self.unix_ns >= begin_ns - NEAR_NS)
        mine &= self.unix_ns <= end_ns + NEAR_NS
        bits = np.nan_to_num(self.values["throttle_bits"]).astype(np.int64)
        busy = mine & (bits & IDLE == 0)
        mine = busy if busy.any() else mine
        rows = np.flatnonzero(mine)
        reasons = {
            words: float(np.mean(bits[rows] & bit > 0))
            for bit, words in REASONS.items()
            if len(rows) and (bits[rows] & bit > 0).any()
        }
        return {
            "samples": len(rows),
            "sm_clock_mhz": _median(self.values["sm_clock_mhz"][rows]),
            "sm_clock_min_mhz": _extreme(self.values["sm_clock_mhz"][rows], np.min),
            "mem_clock_mhz": _median(self.values["mem_clock_mhz"][rows]),
            "power_w": _median(self.values["power_w"][rows]),
            "temperature_max_c": _extreme(self.values["temperature_c"][rows], np.max),
            "slowed_by": ", ".join(f"{words} {100 * share:.0f} %" for words, share in reasons.items()),
        }


def read_state(folder: Path) -> GpuState | None:
    """The samples in a run's folder; None where none were taken. Lines that cannot be read are left out."""
    path = folder / SAMPLES
    summary = _summary(folder / SUMMARY)
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        return None
    rows = [parsed for line in path.read_text("ascii", "replace").splitlines()[1:] if (parsed := _row(line))]
    table = np.array([row[1:] for row in rows], dtype=float).reshape(-1, len(COLUMNS) - 2)
    times = np.array([row[0] for row in rows], dtype=np.int64)
    order = np.argsort(times, kind="stable")
    wall_s, cpu_s = (summary.get(name) for name in ("wall_s", "cpu_s"))
    known = isinstance(wall_s, (int, float)) and isinstance(cpu_s, (int, float)) and wall_s > 0
    reasons = summary.get("reasons")
    return GpuState(
        unix_ns=times[order],
        place=table[order, 0].astype(np.int64),
        values={name: table[order, at] for at, name in enumerate(COLUMNS[3:], start=1)},
        cost_share=float(cpu_s) / float(wall_s) if known else float("nan"),  # type: ignore[arg-type]
        interval_s=float(summary.get("interval_s") or "nan"),
        reasons=tuple(str(text)[:200] for text in reasons.values()) if isinstance(reasons, dict) else (),
    )


def rows_of(state: GpuState, ranks: Sequence[int], begin_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """One row per rank whose GPU was sampled."""
    places = set(state.place.tolist())
    return [{"rank": rank, **state.summary(rank, begin_ns, end_ns)} for rank in ranks if rank in places]


def _row(line: str) -> list[Any] | None:
    """Time, place and values of a line; None for one that was cut."""
    parts = line.split(",")
    try:
        values = [float(part) if part else float("nan") for part in parts[3:]]
        found = [int(parts[0]), int(parts[1]), *values]
    except (ValueError, IndexError):
        return None
    return (
        found if len(parts) == len(COLUMNS) and 0 <= found[0] < 1 << 62 and 0 <= found[1] < 1 << 20 else None
    )


def _summary(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes()[: 1 << 20])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _median(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _extreme(values: np.ndarray, how: Any) -> float:
    known = values[~np.isnan(values)]
    return float(how(known)) if len(known) else float("nan")
