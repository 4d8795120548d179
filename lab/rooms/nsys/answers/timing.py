"""Question a: how long a forward pass takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    if cell.has_kernels:
        values |= {"busy_ms": row.busy_ms, "span_ms": row.span_ms, "kernel_ms": row.kernel_ms}
    recorded = python_sample(cell.files.result, "forward")
    plain = python_sample(cell.files.twin, "forward")
    if recorded is not None:
        values["python_profiled_ms"] = recorded.mean
    sentence = f"The range `forward` takes {spread(ranges)}"
    if plain is None:
        sentence += "; it was not timed without a profiler."
    else:
        compared = _compared(ranges, plain, values)
        sentence += f", Python in a process without a profiler {spread(plain)}: {compared}"
    if cell.has_kernels:
        sentence += f" The GPU is busy for {row.busy_ms:.2f} ms of it ({100 - row.idle_percent:.0f} %)."
    return Answer("a", cell.label, sentence, values, (*times_nest(cell), clocks_agree(cell)))


def _compared(ranges: Sample, plain: Sample, values: dict[str, float | str]) -> str:
    """Say what the difference of the two means shows, and add it to `values`.

    There is one process per side, and two equal ones differ, too: by clock rates, by what else ran. So the
    interval is one of the steps within these two processes, and how much the profiler added is not claimed.
    """
    percent = 100 * (ranges.mean - plain.mean) / plain.mean
    low, high = (100 * end / plain.mean for end in difference_ci(ranges, plain))
    values |= {"python_plain_ms": plain.mean, "python_plain_n": plain.n, "overhead_percent": percent}
    has_interval = not math.isnan(low)
    steps = "one step has no interval"
    if has_interval:
        values |= {"steps_low_percent": low, "steps_high_percent": high}
        steps = f"95 % interval of the steps within these two processes {low:+.1f} to {high:+.1f} %"
    if abs(percent) <= 100 * AGREE:
        return f"they agree within {abs(percent):.1f} % ({steps})."
    if has_interval and low <= 0 <= high:
        return f"a difference of {percent:+.0f} %, within the noise of the steps ({steps})."
    word = "longer" if percent > 0 else "shorter"
    return (
        f"under the profiler {abs(percent):.0f} % {word} ({steps}). With one process per side, how much of "
        "it the profiler adds is unknown: two processes differ, too."
    )
