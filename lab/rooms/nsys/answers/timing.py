"""Question a: how long a forward pass takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from lab.rooms.nsys.answers.answer import Answer, CellData, no_answer, python_ms, python_sd_ms, spread
from lab.rooms.nsys.answers.checks import AGREE, clocks_agree, times_nest


def part_a(cell: CellData, _: Sequence[CellData]) -> Answer:
    """The wall time of the forward range beside Python's clock, with and without a profiler."""
    row = cell.phase("forward")
    if row is None:
        return no_answer("a", cell, "the capture has no range `forward`")
    values: dict[str, float | str] = {"range_ms": row.wall_ms, "range_sd_ms": row.wall_sd_ms}
    if cell.recording is not None and cell.recording.has_kernels:
        values |= {"busy_ms": row.busy_ms, "span_ms": row.span_ms, "kernel_ms": row.kernel_ms}
    result, twin = cell.found.result, cell.found.twin
    inside = python_ms(result, "forward")
    plain = python_ms(twin, "forward")
    plain_sd = python_sd_ms(twin, "forward")
    values |= {
        name: value
        for name, value in (("python_profiled_ms", inside), ("python_plain_ms", plain))
        if value is not None
    }
    sentence = f"The range `forward` takes {spread(row.wall_ms, row.wall_sd_ms)} ms"
    if plain is None:
        sentence += "; there is no time without a profiler to compare it with."
    else:
        values["overhead_percent"] = 100 * (row.wall_ms - plain) / plain
        agreement = _agreement(cell, row, plain, plain_sd)
        sentence += f", Python without a profiler {spread(plain, plain_sd)} ms: {agreement}"
    if cell.recording is not None and cell.recording.has_kernels:
        sentence += f" The GPU is busy for {row.busy_ms:.2f} ms of it ({100 - row.idle_percent:.0f} %)."
    return Answer("a", cell.label, sentence, values, (*times_nest(cell), clocks_agree(cell)))


def _agreement(cell: CellData, row: pd.Series, plain: float, plain_sd: float) -> str:
    over = 100 * (row.wall_ms - plain) / plain
    if abs(over) <= 100 * AGREE:
        return f"they agree within {abs(over):.1f} %."
    if abs(row.wall_ms - plain) < 2 * math.hypot(row.wall_sd_ms, plain_sd):
        return f"a difference of {over:+.0f} %, within the spread of the steps."
    if over < 0:
        return (
            f"the profiled run was {-over:.0f} % faster: the two runs had different clock rates, "
            "or too few steps were measured."
        )
    if cell.recording is None or not cell.recording.has_kernels:
        return f"the profiler adds {over:.0f} %."
    if row.idle_percent > 20:
        return (
            f"{over:.0f} % more, because the GPU waits {row.idle_percent:.0f} % of the range for launches, "
            "and the profiler makes each launch more expensive."
        )
    return f"{over:.0f} % more, with the GPU busy nearly all the time: the profiler's overhead on the device."
