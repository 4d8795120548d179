"""From a log's file, or the files of one run's processes, to a `Log`."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lab.rooms.nan.nixnan.categories import categories
from lab.rooms.nan.nixnan.grammar import KINDS
from lab.rooms.nan.nixnan.log import Cell, Log, Site
from lab.rooms.nan.nixnan.opcodes import opcode_of, type_of
from lab.rooms.nan.nixnan.reading.integrity import by_type, cell_lines, judge
from lab.rooms.nan.nixnan.reading.merge import merged
from lab.rooms.nan.nixnan.reading.reader import Gathered, Progress, SiteTally, gather
from lab.rooms.nan.nixnan.reading.twins import twins_of


def parse(paths: str | Path | Iterable[str | Path], *, progress: Progress | None = None) -> Log:
    """Read a log, or the logs of one run's processes as one.

    progress is called with (bytes read, bytes in all) of the file being read. Raises MissingError if there is
    no file, BadDataError for a broken one.
    """
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    with _no_collections():
        return merged([_log(gather(Path(path), progress)) for path in several])


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Turn garbage collection off.

    The tables hold hundreds of thousands of tuples and no cycle: looking for garbage took a quarter of the
    time.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def as_json(log: Log) -> dict[str, Any]:
    """The object that `lab nan parse --json` prints: counts, not the table of sites."""
    values: dict[str, Any] = msgspec.structs.asdict(log)
    del values["sites"], values["cells"], values["function_kinds"]
    values = msgspec.to_builtins(values)
    values["sites"], values["sites_listed"] = log.site_count, len(log.sites)
    values["context_seen"] = log.context_seen
    del values["site_count"]
    return values


def _log(got: Gathered) -> Log:
    verdict, other_lines = judge(got), got.other_lines
    file = str(got.path)
    tallies = got.sites
    sites = [_site(key, tally, file) for key, tally in tallies.items()]
    functions = {name: sum(kinds.values()) for name, kinds in got.functions.items()}
    same = twins_of(tallies)
    report = {
        cell: {"unique": unique, "repeats": got.report.repeats[cell]}
        for cell, unique in got.report.unique.items()
    }
    return Log(
        file=file,
        files=[file],
        size_bytes=got.bytes,
        lines=got.lines,
        error_lines=got.error_lines,
        torn_lines=got.torn_lines,
        foreign_lines=got.foreign_lines,
        site_count=len(sites) + got.further_sites,
        sites=sites,
        integrity=verdict.integrity,
        reasons=verdict.reasons,
        counts=counted(cell_lines(got)),
        report=by_type(report) if got.report.blocks else None,
        report_blocks=got.report.blocks,
        differences=[
            {"type": label, "memory": memory, "kind": kind, "lines": have, "unique": unique}
            for (label, memory, kind), have, unique in verdict.differences
        ],
        functions=functions,
        function_kinds={name: _by_kind(lines) for name, lines in got.functions.items()},
        unlisted_function_lines=got.unlisted_function_lines,
        cells=[Cell(opcode=o, operand=n, label=t, kinds=k, lines=c) for (o, n, t, k), c in got.cells.items()],
        categories=categories(functions, same),
        twins=same,
        contexts=got.contexts(),
        kernels=[str(words[0]) for words in other_lines.get("running", ()) if words],
        logged=[str(words[0]) for words in other_lines.get("logged", ()) if words],
        times_us=_times(got),
        immediates=_immediates(got),
        bins=_bins(got),
        exponents=_exponents(got),
        stops=[
            str(words[0])
            for line_kind in ("stopped", "template", "crashed")
            for words in other_lines.get(line_kind, ())
            if words
        ],
        torn=[{"file": file, "line": line, "raw": raw} for line, raw in got.torn],
        type_mismatch_lines=_mismatches(got),
    )


def counted(cells: dict[tuple[str, bool, str], int]) -> dict[str, Any]:
    """Lines as type -> kind -> number, with zeros for every type and kind; under `memory` NaN alone."""
    full = {(label, False, kind): 0 for label in ("f16", "bf16", "f32", "f64") for kind in KINDS}
    full |= {(label, True, "NaN"): 0 for label in ("f16", "bf16", "f32", "f64")}
    return by_type({**full, **cells})


def _site(key: tuple[str, str, int | None], tally: SiteTally, file: str) -> Site:
    function, sass, operand = key
    labels: dict[str, int] = {}
    kinds: dict[str, int] = {}
    for (of, label), lines in tally.by.items():
        labels[label] = labels.get(label, 0) + lines
        for kind in of:
            kinds[kind] = kinds.get(kind, 0) + lines
    opcode = opcode_of(sass)
    return Site(
        function=function,
        sass=sass,
        operand=operand,
        opcode=opcode,
        type=type_of(opcode, operand) or max(labels, key=lambda label: labels[label], default="unknown"),
        lines=tally.lines,
        masks=len(tally.by),
        kinds=kinds,
        labels=labels,
        places=tuple(tally.places),
        file=file,
        first_of=dict(tally.first_of),
        line=tally.line,
        raw=tally.raw,
    )


def _by_kind(lines: Mapping[tuple[str, ...], int]) -> dict[str, int]:
    """Kind -> lines, of lines by all their kinds."""
    by_kind: dict[str, int] = {}
    for kinds, count in lines.items():
        for kind in kinds:
            by_kind[kind] = by_kind.get(kind, 0) + count
    return by_kind


def _mismatches(got: Gathered) -> int:
    return sum(
        lines
        for (opcode, operand, label, _), lines in got.cells.items()
        if (type_of(opcode, operand) or label) != label
    )


def _times(got: Gathered) -> dict[str, int]:
    longest: dict[str, int] = {}
    for words in got.other_lines.get("timed", ()):
        if words:
            longest[str(words[0])] = max(longest.get(str(words[0]), 0), int(words[1] or 0))
    return longest


def _immediates(got: Gathered) -> list[dict[str, Any]]:
    return [
        {"kind": words[0], "operand": int(words[1] or 0), "sass": words[2], "lines": lines}
        for words, lines in got.other_lines.get("immediate", Counter()).items()
        if words
    ]


def _bins(got: Gathered) -> list[dict[str, Any]]:
    return [
        {
            "type": words[0],
            "function": words[1],
            "low": words[2],
            "high": words[3],
            "count": int(words[4] or 0),
            "sass": words[5],
            "lines": lines,
        }
        for words, lines in got.other_lines.get("bin", Counter()).items()
        if words
    ]


def _exponents(got: Gathered) -> dict[str, list[str]]:
    return {
        str(words[0]): [str(words[1]), str(words[2])]
        for words in got.other_lines.get("exponents", ())
        if words
    }
