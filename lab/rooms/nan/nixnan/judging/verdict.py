"""The verdict on one log: stored, masked-intermediate, subnormal-only, nothing-seen or inconclusive."""

from __future__ import annotations

from lab.core.words import plural
from lab.rooms.nan.nixnan.grammar import KINDS
from lab.rooms.nan.nixnan.log import Log


def totals(log: Log) -> dict[str, int]:
    """Kind -> lines of operations of all types, without those of the memory check."""
    rows = [row for name, row in log.counts.items() if name != "memory"]
    return {kind: sum(row.get(kind, 0) for row in rows) for kind in KINDS}


def memory_nan_lines(log: Log) -> int:
    return sum(row.get("NaN", 0) for row in log.counts["memory"].values())


def stored_nan(log: Log) -> bool:
    """Was a NaN written to global memory, by the lines or by the report?"""
    reported = (log.report or {}).get("memory", {})
    return memory_nan_lines(log) > 0 or any(row.get("NaN", {}).get("unique", 0) for row in reported.values())


def verdict_of(log: Log) -> tuple[str, str]:
    """(verdict, why), from the log alone.

    stored: NaN in memory, which holds for a torn log too. inconclusive: the log is not complete.
    masked-intermediate: NaN or infinities in registers, none seen to be stored. subnormal-only. nothing-seen:
    no event in what nixnan looks at, which does not prove health.
    """
    kind_totals = totals(log)
    infinite = kind_totals["infinity"] + kind_totals["-infinity"]
    if stored_nan(log):
        return "stored", "A NaN was written to global memory: other kernels can read it."
    if log.integrity != "complete":
        return f"inconclusive({log.integrity})", log.reasons[0]
    if kind_totals["NaN"] or infinite:
        return (
            "masked-intermediate",
            f"{plural(kind_totals['NaN'], 'line')} of NaN and {infinite:,} of infinities in registers; no "
            "store of a NaN was seen. nixnan does not check whether an infinity was stored.",
        )
    if kind_totals["subnormal"]:
        return "subnormal-only", "Subnormal numbers, but no NaN and no infinity in what nixnan looks at."
    if kind_totals["div0"]:
        return (
            "masked-intermediate",
            "Reciprocals of zero, but no NaN and no infinity in what nixnan looks at.",
        )
    return "nothing-seen", "No event in what nixnan looks at. That does not prove health: see the coverage."
