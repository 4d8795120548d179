"""From a log's file to a `Log`, and whether it is complete by the totals of its own report."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lab.core.words import plural
from lab.rooms.nan.nixnan.grammar import KINDS, TYPES, categories, category, type_of
from lab.rooms.nan.nixnan.log import Log
from lab.rooms.nan.nixnan.reading.reader import FURTHER_LIMIT, Progress, ReportCell, Scan

Entry = tuple[str, int | None]  # SASS, operand


def parse(path: str | Path, *, progress: Progress | None = None) -> Log:
    """Read a log; progress is called with (bytes read, bytes in all).

    Raises MissingError without a file, BadDataError for a broken one.
    """
    collects = gc.isenabled()
    gc.disable()  # hundreds of thousands of tuples and no cycle: looking for garbage took half of the time
    try:
        return _log(Scan(Path(path), progress))
    finally:
        if collects:
            gc.enable()


def as_json(log: Log) -> dict[str, Any]:
    """The object that `lab nan parse --json` prints: counts, not the table of sites."""
    values: dict[str, Any] = msgspec.structs.asdict(log)
    del values["sites"], values["cells"], values["function_kinds"], values["site_count"]
    return {
        **msgspec.to_builtins(values),
        "sites": log.site_count,
        "sites_listed": len(log.sites),
        "context_seen": log.context_seen,
    }


def _log(scan: Scan) -> Log:
    file, lines, twins = str(scan.path), scan.cell_lines(), twins_of(scan.sites)
    differences = reconcile(scan, lines)
    integrity, reason = _verdict(scan, lines, differences)
    functions = {name: sum(by_kinds.values()) for name, by_kinds in scan.functions.items()}
    function_kinds: Counter[tuple[str, str]] = Counter()
    for name, by_kinds in scan.functions.items():
        for kinds, count in by_kinds.items():
            function_kinds.update({(name, kind): count for kind in kinds})
    unique = scan.report.unique
    report = {cell: {"unique": unique[cell], "repeats": scan.report.repeats[cell]} for cell in unique}
    return Log(
        file=file,
        size_bytes=scan.size_bytes,
        lines=scan.lines,
        error_lines=scan.error_lines,
        torn_lines=scan.torn_lines,
        foreign_lines=scan.foreign_lines,
        site_count=len(scan.sites) + len(scan.further_sites),
        sites=list(scan.sites.values()),
        integrity=integrity,
        reasons=[reason, *_remarks(scan)],
        counts=by_type({**NO_LINES, **lines}),
        report=by_type(report) if scan.report.blocks else None,
        report_blocks=scan.report.blocks,
        differences=[
            {"type": label, "memory": memory, "kind": kind, "lines": have, "unique": events}
            for (label, memory, kind), have, events in differences
        ],
        functions=functions,
        function_kinds=function_kinds,
        unlisted_function_lines=scan.unlisted_function_lines,
        cells=scan.cells,
        categories=categories(functions, twins),
        twins=twins,
        contexts=scan.contexts(),
        kernels=scan.first_words("running"),
        logged=scan.first_words("logged"),
        times_us=_times(scan),
        immediates=[
            {"kind": kind, "operand": int(operand), "sass": sass, "lines": lines}
            for (kind, operand, sass), lines in scan.words("immediate")
        ],
        bins=_bins(scan),
        exponents={label: [low, high] for (label, low, high), _ in scan.words("exponents")},
        stops=scan.first_words("stopped", "template", "crashed"),
        torn=[{"file": file, "line": line, "raw": raw} for line, raw in scan.torn],
        type_mismatch_lines=sum(
            lines
            for (opcode, operand, label, _), lines in scan.cells.items()
            if (type_of(opcode, operand) or label) != label
        ),
    )


def _times(scan: Scan) -> dict[str, int]:
    longest: dict[str, int] = {}
    for (kernel, time_us), _ in scan.words("timed"):
        longest[kernel] = max(longest.get(kernel, 0), int(time_us))
    return longest


def _bins(scan: Scan) -> list[dict[str, Any]]:
    columns = ("type", "function", "low", "high", "count", "sass")
    return [
        dict(zip(columns, words, strict=False))
        | {"count": int(words[4]), "sass": words[5] or None, "lines": lines}
        for words, lines in scan.words("bin")
    ]


def twins_of(sites: Iterable[tuple[str, str, int | None]]) -> dict[str, str]:
    """Device function -> the kernel whose entries it repeats. Sites are (function, SASS, operand), each once.

    nixnan writes an instrumented device function's code under its own name and under the kernel's, entry by
    entry. Only names that are device functions' are merged, and only where every entry is another's too; of
    several such kernels, the one with the fewest other entries.
    """
    entries: dict[str, set[Entry]] = {}
    for function, sass, operand in sites:
        entries.setdefault(function, set()).add((sass, operand))
    devices = {name for name in entries if category(name) == "device function"}
    twins = {}
    for name in devices:
        kernels = [other for other in entries.keys() - devices if entries[name] <= entries[other]]
        if kernels:
            twins[name] = min(kernels, key=lambda kernel: (len(entries[kernel]), kernel))
    return twins


# Completeness. nixnan writes one line per distinct (instruction, mask of kinds, operand) of a process, and
# counts the same masks in its report; so the lines of each (type, memory, kind) equal the report's unique
# events. One exception: a mask with both infinities prints `infinity` alone, but the report counts it in
# both rows; so the lines of -infinity may be fewer, by at most the lines of infinity. This held in all cells
# of 30 of 44 published reports; the others were torn or edited.

# Lines that nixnan writes only where it attached to a GPU's context.
_ATTACHED = {"running", "logged", "timed", "function of", "bin", "immediate", "exponents"}


# With zeros for every type and kind; of the memory check NaN alone.
NO_LINES = {(label, False, kind): 0 for label in TYPES[:4] for kind in KINDS}
NO_LINES |= {(label, True, "NaN"): 0 for label in TYPES[:4]}
Difference = tuple[ReportCell, int, int]  # cell, lines, unique events of the report


def reconcile(scan: Scan, lines: Counter[ReportCell]) -> list[Difference]:
    """The cells of the report whose unique events the log's lines do not explain, worst first."""
    differing = []
    for cell, unique in scan.report.unique.items():
        label, memory, kind = cell
        with_both = lines[label, memory, "infinity"] if kind == "-infinity" else 0
        if not lines[cell] <= unique <= lines[cell] + with_both:
            differing.append((cell, lines[cell], unique))
    return sorted(differing, key=lambda row: -abs(row[1] - row[2]))


def _verdict(scan: Scan, lines: Counter[ReportCell], differences: list[Difference]) -> tuple[str, str]:
    """How far a log can be trusted, and why. What is missing is never filled in."""
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
            f"The lines of every type and kind equal the report's unique events{_both(scan, lines)}.",
        )
    if scan.report.blocks < contexts and all(have >= unique for _, have, unique in differences):
        return (
            "truncated",
            f"{contexts} processes or contexts began, {scan.report.blocks} wrote a report.",
        )
    return "inconsistent", _difference(differences)


def _both(scan: Scan, lines: Counter[ReportCell]) -> str:
    """How many events of -infinity the report has beyond the lines: nixnan prints such a mask as infinity."""
    surplus = {
        cell[0]: unique - lines[cell]
        for cell, unique in scan.report.unique.items()
        if cell[2] == "-infinity" and unique > lines[cell]
    }
    if not surplus:
        return ""
    counts = " and ".join(f"{count:,} of {label}" for label, count in surplus.items())
    return f", but for -infinity: the report has {counts} more, of masks with both infinities"


def _difference(differences: list[Difference]) -> str:
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
    if further := len(scan.further_sites):
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
