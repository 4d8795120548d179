"""Whether a log is complete: its lines against the totals of its own report.

nixnan writes one line per distinct (instruction, mask of kinds, operand) of a process, and counts the same
masks in its report; so the lines of each (type, memory, kind) equal the report's unique events. One
exception: a mask with both infinities prints `infinity` alone, but the report counts it in both rows; so the
lines of -infinity may be fewer, by at most the lines of infinity. This held in all cells of 30 of 44
published reports; the others were torn or edited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from lab.core.words import plural
from lab.rooms.nan.nixnan.grammar import KINDS
from lab.rooms.nan.nixnan.names import is_store
from lab.rooms.nan.nixnan.reading.reader import FURTHER_LIMIT, ReportCell, Scan

# Lines that nixnan writes only where it attached to a GPU's context.
_ATTACHED = {"running", "logged", "timed", "function of", "bin", "immediate", "exponents"}


class Verdict(NamedTuple):
    integrity: str  # complete | truncated | torn | inconsistent | empty
    reasons: list[str]  # sentences; the first is why
    differences: list[tuple[ReportCell, int, int]]  # cell, lines, unique events of the report


def judge(scan: Scan) -> Verdict:
    """How far a log can be trusted, and why. What is missing is never filled in."""
    differences = reconcile(scan) if scan.report.blocks else []
    integrity, reason = _verdict(scan, differences)
    return Verdict(integrity, [reason, *_remarks(scan)], differences)


def cell_lines(scan: Scan) -> Counter[ReportCell]:
    """Lines of each (type as printed, memory, kind); a line of two kinds counts for both."""
    lines: Counter[ReportCell] = Counter()
    for (opcode, _, label, kinds), count in scan.cells.items():
        for kind in kinds:
            lines[label, is_store(opcode), kind] += count
    return lines


def reconcile(scan: Scan) -> list[tuple[ReportCell, int, int]]:
    """The cells of the report whose unique events the log's lines do not explain, worst first."""
    lines = cell_lines(scan)
    differing = []
    for cell, unique in scan.report.unique.items():
        label, memory, kind = cell
        have = lines[cell]
        with_both = lines[label, memory, "infinity"] if kind == "-infinity" else 0
        if not have <= unique <= have + with_both:
            differing.append((cell, have, unique))
    return sorted(differing, key=lambda row: -abs(row[1] - row[2]))


def _verdict(scan: Scan, differences: list[tuple[ReportCell, int, int]]) -> tuple[str, str]:
    contexts = scan.contexts()
    if not scan.lines:
        return (
            ("truncated", f"Nothing can be read: {scan.cut}.")
            if scan.cut
            else ("empty", "The file is empty.")
        )
    if scan.torn_lines > (1 if scan.cut else 0):
        place = f", the first at line {scan.torn[0][0]}" if scan.torn else ""
        return (
            "torn",
            f"{plural(scan.torn_lines, 'line')} of nixnan ran into another or broke{place}: not counted.",
        )
    if not (contexts or scan.error_lines or scan.report.blocks or scan.other_lines.keys() & _ATTACHED):
        return "empty", _nothing(scan)
    if scan.cut:
        return "truncated", f"The end is missing: {scan.cut}."
    if not scan.report.blocks:
        return (
            "truncated",
            "Its report is missing: the process was killed, or this is a part of its log.",
        )
    if scan.report.partial:
        return "truncated", "A report breaks off before its last section."
    if not differences:
        return (
            "complete",
            f"The lines of every type and kind equal the report's unique events{_both(scan)}.",
        )
    if scan.report.blocks < contexts and all(have >= unique for _, have, unique in differences):
        return (
            "truncated",
            f"{contexts} processes or contexts began, {scan.report.blocks} wrote a report.",
        )
    return "inconsistent", _difference(differences)


def _both(scan: Scan) -> str:
    """How many events of -infinity the report has beyond the lines: nixnan prints such a mask as infinity."""
    lines = cell_lines(scan)
    surplus = {
        cell[0]: unique - lines[cell]
        for cell, unique in scan.report.unique.items()
        if cell[2] == "-infinity" and unique > lines[cell]
    }
    if not surplus:
        return ""
    counts = " and ".join(f"{count:,} of {label}" for label, count in surplus.items())
    return f", but for -infinity: the report has {counts} more, of masks with both infinities"


def _difference(differences: list[tuple[ReportCell, int, int]]) -> str:
    (label, memory, kind), have, unique = differences[0]
    place = f"{label} {'memory ' if memory else ''}{kind}"
    others_text = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    events = plural(unique, "unique event")
    lines = plural(have, "line")
    return f"{lines} of {place} against {events} in the report{others_text}: lines are missing or doubled."


def _nothing(scan: Scan) -> str:
    if "template" in scan.other_lines:
        return "nixnan wrote a template of bins and ended without running: name an existing specification."
    if scan.other_lines:
        return (
            "nixnan was loaded but never attached: no `Initializing GPU context...`. On current drivers "
            "LD_PRELOAD does not attach; start the program with CUDA_INJECTION64_PATH=/path/to/nixnan.so. "
            "Or the program used no GPU, or this is the log of a child process."
        )
    return "No line of nixnan's is in this file."


def _remarks(scan: Scan) -> list[str]:
    remarks = []
    if scan.cut and scan.torn_lines > 1:
        remarks.append(f"The end is missing too: {scan.cut}.")
    if not scan.report.blocks and scan.error_lines and scan.torn_lines > (1 if scan.cut else 0):
        remarks.append("The report to check the lines against is missing.")
    remarks += [f"nixnan stopped early: {reason}" for reason in scan.first_words("stopped")]
    remarks += [f"nixnan crashed: {reason}" for reason in scan.first_words("crashed")]
    if scan.report.strays:
        remarks.append(
            f"{plural(scan.report.strays, 'count')} of the report outside any section: not added up."
        )
    if any(operand is None for _, operand, _, _ in scan.cells):
        remarks.append(
            "An old build wrote this log: its lines do not name the operand, so births and transits look "
            "alike."
        )
    if scan.report.blocks and not any(kind == "-infinity" for _, _, kind in scan.report.unique):
        remarks.append("The report is of an old build: it does not count -infinity apart.")
    if further := scan.further_sites:
        at_least = "at least " if further >= FURTHER_LIMIT else ""
        remarks.append(
            f"{at_least}{plural(further, 'further site')} counted but not listed: the table holds the first "
            f"{len(scan.sites)}."
        )
    if scan.unlisted_function_lines:
        remarks.append(
            f"{plural(scan.unlisted_function_lines, 'line')} of functions beyond the {len(scan.functions)} "
            "listed."
        )
    return remarks


def by_type(cells: Mapping[ReportCell, object]) -> dict[str, dict[str, object]]:
    """Cells as {type: {kind: value}}, those of the memory check under `memory` in the same shape."""
    shaped: dict[str, dict[str, object]] = {}
    memory: dict[str, dict[str, object]] = {}
    for (label, in_memory, kind), value in sorted(cells.items(), key=lambda item: KINDS.index(item[0][2])):
        (memory if in_memory else shaped).setdefault(label, {})[kind] = value
    return {**shaped, "memory": memory}  # type: ignore[dict-item]
