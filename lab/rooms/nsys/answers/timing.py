"""Question a: how long a forward pass takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from lab.rooms.nsys.answers.answer import Answer, CellData, no_answer, python_sample, spread
from lab.rooms.nsys.answers.checks import AGREE, clocks_agree, times_nest
from lab.stats.means import Sample, difference_ci, mean_ci


def part_a(cell: CellData, _: Sequence[CellData]) -> Answer:
    """The wall time of the forward range beside Python's clock, with and without a profiler."""
    row = cell.phase("forward")
    if row is None:
        return no_answer("a", cell, "the capture has no range `forward`")
    ranges = Sample(float(row.wall_ms), float(row.wall_sd_ms), int(row.steps))
    values: dict[str, float | str] = {"range_ms": ranges.mean, "range_sd_ms": ranges.sd, "range_n": ranges.n}
    low, high = mean_ci(ranges)
    values |= {} if math.isnan(low) else {"range_low_ms": low, "range_high_ms": high}
    if cell.recording is not None and cell.recording.has_kernels:
        values |= {"busy_ms": row.busy_ms, "span_ms": row.span_ms, "kernel_ms": row.kernel_ms}
    inside = python_sample(cell.found.result, "forward")
    plain = python_sample(cell.found.twin, "forward")
    if inside is not None:
        values["python_profiled_ms"] = inside.mean
    sentence = f"The range `forward` takes {spread(ranges)}"
    if plain is None:
        sentence += "; there is no time without a profiler to compare it with."
    else:
        low, high = difference_ci(ranges, plain)
        values |= {
            "python_plain_ms": plain.mean,
            "python_plain_n": plain.n,
            "overhead_percent": 100 * (ranges.mean - plain.mean) / plain.mean,
            "overhead_low_percent": 100 * low / plain.mean,
            "overhead_high_percent": 100 * high / plain.mean,
        }
        agreement = _agreement(cell, row, ranges, plain)
        sentence += f", Python without a profiler {spread(plain)}: {agreement}"
    if cell.recording is not None and cell.recording.has_kernels:
        sentence += f" The GPU is busy for {row.busy_ms:.2f} ms of it ({100 - row.idle_percent:.0f} %)."
    return Answer("a", cell.label, sentence, values, (*times_nest(cell), clocks_agree(cell)))


def _agreement(cell: CellData, row: pd.Series, ranges: Sample, plain: Sample) -> str:
    """What the difference of the two means says, by its interval."""
    low, high = (100 * end / plain.mean for end in difference_ci(ranges, plain))
    over = 100 * (ranges.mean - plain.mean) / plain.mean
    known = not math.isnan(low)
    interval = f" (95 % interval {low:+.1f} to {high:+.1f} %)" if known else " (one step is no interval)"
    if abs(over) <= 100 * AGREE:
        return f"they agree within {abs(over):.1f} %{interval}."
    if known and low <= 0 <= high:
        return f"a difference of {over:+.0f} %, within the noise of the steps{interval}."
    if over < 0:
        return (
            f"the profiled run was {-over:.0f} % faster{interval}: the two runs had different clock rates, "
            "or too few steps were measured."
        )
    if cell.recording is None or not cell.recording.has_kernels:
        return f"the profiler adds {over:.0f} %{interval}."
    if row.idle_percent > 20:
        return (
            f"{over:.0f} % more{interval}, because the GPU waits {row.idle_percent:.0f} % of the range for "
            "launches, and the profiler makes each launch more expensive."
        )
    return (
        f"{over:.0f} % more{interval}, with the GPU busy nearly all the time: the profiler's overhead on the "
        "device."
    )
