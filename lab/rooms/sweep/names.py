"""How configurations, sizes and GEMM shapes are written in sentences, tables and figures."""

from __future__ import annotations

import math
from typing import Any

from lab.core.words import plural
from lab.rooms.sweep.tables import GEMM_SHAPE, SETTING


def long_name(threads: int, channel: int, algorithm: str = "", protocol: str = "") -> str:
    """`256 threads, 28 channels, ring ll128`; 0 and "" mean unknown, or left to the library."""
    parts = [plural(int(value), noun) for value, noun in ((threads, "thread"), (channel, "channel")) if value]
    request = " ".join(filter(None, (algorithm, protocol)))
    return ", ".join([*parts, *([request] if request else [])]) or "default or unnamed setting"


def short_name(threads: int, channel: int, algorithm: str = "", protocol: str = "") -> str:
    """`256t 28ch ring ll128`, for axes and table cells."""
    parts = [f"{int(value)}{unit}" for value, unit in ((threads, "t"), (channel, "ch")) if value]
    return " ".join([*parts, *filter(None, (algorithm, protocol))]) or "default or unnamed"


def name_of(row: Any) -> str:
    """The short name of a table's row."""
    return short_name(*(getattr(row, name) for name in SETTING))


def size_text(size_bytes: float) -> str:
    """A message size such as `8 MiB`; `?` if unknown."""
    if not size_bytes > 0:
        return "?"
    power = min(3, int(math.log2(size_bytes) // 10))
    value = size_bytes / 1024**power
    digits = f"{value:.0f}" if value >= 100 else f"{value:.3g}"  # never 1e+03
    return f"{digits} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def shape_name(shape: tuple[Any, ...]) -> str:
    """`mm 4096×8192×2048 TN`: op, batch if any, M×N×K, transposes; `shape` in the order of GEMM_SHAPE."""
    of = dict(zip(GEMM_SHAPE, shape, strict=True))
    batch = f"{of['B']}·" if of["B"] > 1 else ""
    return f"{str(of['op']).removeprefix('aten::')} {batch}{of['M']}×{of['N']}×{of['K']} {of['transpose']}"
