"""From a log's file to a `Log`."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from lab.rooms.nan.nixnan.grammar import KINDS
from lab.rooms.nan.nixnan.log import Log
from lab.rooms.nan.nixnan.names import categories, category, type_of
from lab.rooms.nan.nixnan.reading.integrity import by_type, cell_lines, judge
from lab.rooms.nan.nixnan.reading.reader import Progress, Scan, gather

Entry = tuple[str, int | None]  # SASS, operand


def parse(path: str | Path, *, progress: Progress | None = None) -> Log:
    """Read a log; progress is called with (bytes read, bytes in all).

    Raises MissingError without a file, BadDataError for a broken one.
    """
    collects = gc.isenabled()
    gc.disable()  # hundreds of thousands of tuples and no cycle: looking for garbage took half of the time
    try:
        return _log(gather(Path(path), progress))
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
    verdict, file = judge(scan), str(scan.path)
    twins = twins_of(scan.sites)
    functions = {name: sum(by_kinds.values()) for name, by_kinds in scan.functions.items()}
    function_kinds: Counter[tuple[str, str]] = Counter()
    for name, by_kinds in scan.functions.items():
        for kinds, lines in by_kinds.items():
            function_kinds.update({(name, kind): lines for kind in kinds})
    report = {
        cell: {"unique": unique, "repeats": scan.report.repeats[cell]}
        for cell, unique in scan.report.unique.items()
    }
    return Log(
        file=file,
        size_bytes=scan.path.stat().st_size,
        lines=scan.lines,
        error_lines=scan.error_lines,
        torn_lines=scan.torn_lines,
        foreign_lines=scan.foreign_lines,
        site_count=len(scan.sites) + scan.further_sites,
        sites=list(scan.sites.values()),
        integrity=verdict.integrity,
        reasons=verdict.reasons,
        counts=counted(cell_lines(scan)),
        report=by_type(report) if scan.report.blocks else None,
        report_blocks=scan.report.blocks,
        differences=[
            {"type": label, "memory": memory, "kind": kind, "lines": have, "unique": unique}
            for (label, memory, kind), have, unique in verdict.differences
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


def counted(cells: dict[tuple[str, bool, str], int]) -> dict[str, Any]:
    """Lines as type -> kind -> number, with zeros for every type and kind; under `memory` NaN alone."""
    full = {(label, False, kind): 0 for label in ("f16", "bf16", "f32", "f64") for kind in KINDS}
    full |= {(label, True, "NaN"): 0 for label in ("f16", "bf16", "f32", "f64")}
    return by_type({**full, **cells})


def _times(scan: Scan) -> dict[str, int]:
    longest: dict[str, int] = {}
    for (kernel, time_us), _ in scan.words("timed"):
        longest[kernel] = max(longest.get(kernel, 0), int(time_us))
    return longest


def _bins(scan: Scan) -> list[dict[str, Any]]:
    columns = ("type", "function", "low", "high", "count", "sass")
    return [
        {
            **dict(zip(columns, words, strict=False)),
            "count": int(words[4]),
            "sass": words[5] or None,
            "lines": lines,
        }
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
