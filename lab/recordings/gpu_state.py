"""Clocks, power and temperature sampled beside a run (lab.power.sampling), on the time of the traces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.words import plural, size_text
from lab.power.sampling import COLUMNS, SAMPLES, SUMMARY
from lab.stats import robust
from lab.stats.columns import distinct

MOST_BYTES = 256 << 20
_OTHER_NODES, _OTHER_SUMMARIES = "gpu_clocks.node*.csv", "gpu_clocks.node*.json"
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
    """Samples in order of time; columns (n,) are NaN where not reported. place is the rank.

    cost_share: CPU time of the sampling over its wall time on the worst node, NaN where it did not end;
    reasons: why GPUs have no rows, or not all of them.
    """

    unix_ns: np.ndarray
    place: np.ndarray
    values: dict[str, np.ndarray]
    cost_share: float
    interval_s: float
    reasons: tuple[str, ...]

    @property
    def near_ns(self) -> int:
        """How far from a sample it still says something: a second, or the time between two samples."""
        spacing = [np.diff(self.unix_ns[self.place == one]) for one in distinct(self.place).tolist()]
        gaps = np.concatenate(spacing) if spacing else np.empty(0)
        return max(NEAR_NS, int(robust.median(gaps)) if len(gaps) else 0)

    def at(self, place: int, when_ns: np.ndarray, name: str = "sm_clock_mhz") -> np.ndarray:
        """The nearest sample of one GPU at times (n,); NaN where none is near (near_ns)."""
        samples = np.flatnonzero((self.place == place) & ~np.isnan(self.values[name]))
        values = np.full(len(when_ns), np.nan)
        if not len(samples):
            return values
        times = self.unix_ns[samples]
        upper = np.clip(np.searchsorted(times, when_ns), 0, len(samples) - 1)
        lower = np.maximum(upper - 1, 0)
        nearer = np.abs(times[lower] - when_ns) <= np.abs(times[upper] - when_ns)
        chosen = np.where(nearer, lower, upper)
        near = np.abs(times[chosen] - when_ns) <= self.near_ns
        values[near] = self.values[name][samples[chosen[near]]]
        return values

    def summary(self, place: int, begin_ns: int, end_ns: int) -> dict[str, Any]:
        """One GPU while it worked between two times, give or take near_ns: medians, extremes, reasons.

        Samples in which the GPU idled count only if all are such.
        """
        inside = (self.place == place) & (self.unix_ns >= begin_ns - self.near_ns)
        inside &= self.unix_ns <= end_ns + self.near_ns
        bits = np.nan_to_num(self.values["throttle_bits"]).astype(np.int64)
        busy = inside & (bits & IDLE == 0)
        inside = busy if busy.any() else inside
        rows = np.flatnonzero(inside)
        reasons = {
            words: float(np.mean(bits[rows] & bit > 0))
            for bit, words in REASONS.items()
            if len(rows) and (bits[rows] & bit > 0).any()
        }
        values = {name: column[rows] for name, column in self.values.items()}
        return {
            "samples": len(rows),
            "sm_clock_mhz": _over(values["sm_clock_mhz"], robust.median),
            "sm_clock_min_mhz": _over(values["sm_clock_mhz"], np.min),
            "mem_clock_mhz": _over(values["mem_clock_mhz"], robust.median),
            "power_w": _over(values["power_w"], robust.median),
            "temperature_max_c": _over(values["temperature_c"], np.max),
            "slowed_by": ", ".join(f"{words} {100 * share:.0f} %" for words, share in reasons.items()),
        }


def read_state(folder: Path) -> GpuState | None:
    """The samples of all nodes in a run's folder and why some are missing; None where none were asked for."""
    paths = [path for path in (folder / SAMPLES, *sorted(folder.glob(_OTHER_NODES))) if path.is_file()]
    abouts = {path for path in (folder / SUMMARY, *folder.glob(_OTHER_SUMMARIES)) if path.is_file()}
    abouts |= {path.with_suffix(".json") for path in paths}
    if not abouts:
        return None
    summaries = [_summary(path) for path in sorted(abouts)]
    reasons = [text for summary in summaries for text in _reasons(summary)]
    if folder / SUMMARY not in abouts:
        reasons.append(f"{SAMPLES} of the first node is missing")
    if (size := sum(path.stat().st_size for path in paths)) > MOST_BYTES:
        reasons.append(f"{size_text(size)} of samples are more than lab reads")
        paths = []
    lines = [line for path in paths for line in path.read_text("ascii", "replace").splitlines()[1:]]
    rows = [parsed for line in lines if (parsed := _row(line))]
    if cut := len(lines) - len(rows):
        reasons.append(f"{plural(cut, 'line')} of samples cannot be read")
    table = np.array([row[1:] for row in rows], dtype=float).reshape(-1, len(COLUMNS) - 2)
    times = np.array([row[0] for row in rows], dtype=np.int64)
    order = np.argsort(times, kind="stable")
    return GpuState(
        unix_ns=times[order],
        place=table[order, 0].astype(np.int64),
        values={name: table[order, index] for index, name in enumerate(COLUMNS[3:], start=1)},
        cost_share=float(np.max([_cost_share(summary) for summary in summaries])),
        interval_s=_float(summaries[0].get("interval_s")),
        reasons=tuple(reasons),
    )


def rows_of(state: GpuState, spans_ns: Mapping[int, tuple[int, int]]) -> list[dict[str, Any]]:
    """One row per rank whose GPU was sampled; spans_ns: when each rank worked, by its own host's clock."""
    places = set(state.place.tolist())
    return [{"rank": rank, **state.summary(rank, *span)} for rank, span in spans_ns.items() if rank in places]


def _cost_share(summary: dict[str, Any]) -> float:
    wall_s, cpu_s = (_float(summary.get(name)) for name in ("wall_s", "cpu_s"))
    return cpu_s / wall_s if wall_s > 0 else float("nan")


def _reasons(summary: dict[str, Any]) -> list[str]:
    reasons = summary.get("reasons")
    names = [*reasons.values()] if isinstance(reasons, dict) else []
    return [str(text)[:200] for text in (*names, summary.get("reason")) if text]


def _float(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else float("nan")


def _row(line: str) -> list[Any] | None:
    """Time, place and values of a line; None for one that was cut."""
    parts = line.split(",")
    try:
        values = [float(part) if part else float("nan") for part in parts[3:]]
        row = [int(parts[0]), int(parts[1]), *values]
    except (ValueError, IndexError):
        return None
    return row if len(parts) == len(COLUMNS) and 0 <= row[0] < 1 << 62 and 0 <= row[1] < 1 << 20 else None


def _summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_bytes()[: 1 << 20])
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _over(values: np.ndarray, reduce: Any) -> float:
    numbers = values[~np.isnan(values)]
    return float(reduce(numbers)) if len(numbers) else float("nan")
