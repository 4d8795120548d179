"""nixnan's logs as nouns: a Log and its Sites.

A site is (function, SASS, operand): what two runs of one program share even where their lines differ. Counts are of
lines: nixnan writes one line per distinct (instruction, mask of kinds, operand), not one per event. The report's unique
events are the same lines, its repeats the events beyond the first.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lab.rooms.nan.nixnan.categories import categories, twins
from lab.rooms.nan.nixnan.grammar import KINDS, opcode_of, type_of
from lab.rooms.nan.nixnan.integrity import by_type, cell_lines, judge
from lab.rooms.nan.nixnan.reader import Gathered, Progress, SiteTally, gather

# From the worst to the best: several files of one run are as good as the worst of them. An empty one among others is
# a child's that used no GPU.
INTEGRITY = ("torn", "inconsistent", "truncated", "complete", "empty")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """One operand of one instruction of one function, and what came there."""

    function: str  # as nixnan writes it: cut at the first `<` or `(`, `void ` kept
    sass: str
    operand: int | None  # 0: the result; 1-3: the sources; None: an old build that does not say
    opcode: str
    type: str  # from the opcode where it tells, else as nixnan printed it
    lines: int
    masks: int  # distinct (kinds, printed type); fewer than lines: several instructions share this text
    kinds: dict[str, int]  # kind -> lines
    labels: dict[str, int]  # type as printed -> lines
    places: tuple[str, ...] = ()  # `path:line` of the source, where the build knew it
    file: str = ""
    first_of: dict[str, int]  # kind -> number of its first line in `file`
    line: int  # number of the line `raw`
    raw: str  # the worst of its lines: the first with NaN, else with an infinity, else its first

    @property
    def key(self) -> tuple[str, str, int | None]:
        return self.function, self.sass, self.operand


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that share opcode, operand, printed type and mask of kinds: exact also where not all sites are listed."""

    opcode: str
    operand: int | None
    label: str
    kinds: tuple[str, ...]
    lines: int


class Log(msgspec.Struct, kw_only=True):
    """One log, or the logs of one run's processes taken together."""

    file: str
    files: list[str]
    size_bytes: int
    lines: int
    error_lines: int
    torn_lines: int
    foreign_lines: int  # the program's own output, comments, blanks
    site_count: int  # exact, also where `sites` lists only the first
    sites: list[Site]
    integrity: str  # complete | truncated | torn | inconsistent | empty
    reasons: list[str]  # sentences: why, and what else is to be known
    counts: dict[str, Any]  # type -> kind -> lines; under `memory` the same of the memory check
    report: dict[str, Any] | None  # the same shape with {"unique", "repeats"} in place of lines
    report_blocks: int
    differences: list[dict[str, Any]]  # cells where lines and report disagree
    functions: dict[str, int]  # name -> lines
    function_kinds: dict[str, dict[str, int]]  # name -> kind -> lines
    unlisted_function_lines: int
    cells: list[Cell]
    categories: dict[str, int]  # category -> lines; they add up to error_lines but for unlisted functions
    twins: dict[str, str]  # device function -> the kernel whose entries it repeats
    contexts: int  # how often nixnan began on a GPU
    kernels: list[str]  # instrumented, in order
    logged: list[str]  # launched but not instrumented (LOG_KERNELS)
    times_us: dict[str, int]  # kernel -> longest execution time printed
    immediates: list[dict[str, Any]]  # NaN or infinity written in the code: no event
    bins: list[dict[str, Any]]
    exponents: dict[str, list[str]]
    stops: list[str]
    torn: list[dict[str, Any]]  # the first of them: file, line, raw
    type_mismatch_lines: int  # lines whose printed type is not the opcode's

    @property
    def context_seen(self) -> bool:
        """False: the tool was loaded but never attached, or this is a part of a log."""
        return self.contexts > 0


def parse(paths: str | Path | Iterable[str | Path], *, progress: Progress | None = None) -> Log:
    """Read a log, or the logs of one run's processes as one.

    progress is called with (bytes read, bytes in all) of the file being read. Raises MissingError for no file,
    BadDataError for a broken one, StorageError where a huge log's index finds no room in the temporary folder.
    """
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    with _no_collections():
        return merged([_log(gather(Path(path), progress)) for path in several])


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """The tables hold hundreds of thousands of tuples and no cycle: searching them for garbage took a quarter of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def as_json(log: Log) -> dict[str, Any]:
    """The object that `lab nan parse --json` prints: counts, not the table of sites."""
    whole: dict[str, Any] = msgspec.to_builtins(log)
    whole["sites"], whole["sites_listed"] = log.site_count, len(log.sites)
    whole["context_seen"] = log.context_seen
    for name in ("cells", "site_count", "function_kinds"):
        del whole[name]
    return whole


def merged(logs: list[Log]) -> Log:
    """The logs of one run's processes as one: numbers added, sites united, the integrity of the worst that says anything.

    A child process that used no GPU leaves an empty log; beside others it takes nothing from them.
    """
    if len(logs) == 1:
        return logs[0]
    sites = _united(site for log in logs for site in log.sites)
    saying = [log for log in logs if log.integrity != "empty"]
    worst = min((log.integrity for log in saying), key=INTEGRITY.index, default="empty")
    further = sum(log.site_count - len(log.sites) for log in logs)
    reasons = [f"{Path(log.file).name}: {reason}" for log in logs for reason in log.reasons]
    if further:
        reasons.append(
            f"Of the sites, up to {further} may be the same in several logs: they are counted, not listed."
        )
    functions = _summed(log.functions for log in logs)
    same = _twins(sites)
    return Log(
        file=", ".join(log.file for log in logs),
        files=[log.file for log in logs],
        integrity=worst,
        reasons=reasons,
        sites=sites,
        site_count=len(sites) + further,
        functions=functions,
        twins=same,
        categories=categories(functions, same),
        counts=_added([log.counts for log in logs]),
        report=_added([log.report for log in logs if log.report is not None]) or None,
        function_kinds={
            name: _summed(log.function_kinds.get(name, {}) for log in logs) for name in functions
        },
        times_us={
            name: max(log.times_us.get(name, 0) for log in logs) for log in logs for name in log.times_us
        },
        exponents={
            f"{Path(log.file).name} {name}": span for log in logs for name, span in log.exponents.items()
        },
        kernels=list(dict.fromkeys(name for log in logs for name in log.kernels)),
        logged=list(dict.fromkeys(name for log in logs for name in log.logged)),
        **_each(logs, _ADDED, sum),
        **_each(logs, _JOINED, lambda lists: [row for rows in lists for row in rows]),
    )


_ADDED = (
    "size_bytes",
    "lines",
    "error_lines",
    "torn_lines",
    "foreign_lines",
    "report_blocks",
    "contexts",
    "unlisted_function_lines",
    "type_mismatch_lines",
)
_JOINED = ("differences", "cells", "immediates", "bins", "stops", "torn")


def _each(logs: list[Log], names: tuple[str, ...], join: Callable[[Iterable[Any]], Any]) -> dict[str, Any]:
    return {name: join(getattr(log, name) for log in logs) for name in names}


def _united(sites: Iterable[Site]) -> list[Site]:
    """Sites of several logs, one row a key."""
    found: dict[tuple[str, str, int | None], Site] = {}
    for site in sites:
        known = found.get(site.key)
        found[site.key] = (
            site
            if known is None
            else msgspec.structs.replace(
                known,
                lines=known.lines + site.lines,
                masks=known.masks + site.masks,
                kinds=_summed([known.kinds, site.kinds]),
                labels=_summed([known.labels, site.labels]),
                places=tuple(dict.fromkeys([*known.places, *site.places])),
            )
        )
    return list(found.values())


def _summed(tables: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(total)


def _added(trees: list[dict[str, Any]]) -> dict[str, Any]:
    """Trees of numbers, added leaf by leaf; a repeat count that one of them lacks is lacking."""
    total: dict[str, Any] = {}
    for tree in trees:
        for name, value in tree.items():
            have = total.get(name)
            if isinstance(value, dict):
                total[name] = _added([have or {}, value])
            elif name not in total:
                total[name] = value
            else:
                total[name] = None if have is None or value is None else have + value
    return total


def _log(got: Gathered) -> Log:
    verdict, others = judge(got), got.others
    file = str(got.path)
    sites = [_site(key, tally, file) for key, tally in got.sites.items()]
    functions = {name: sum(kinds.values()) for name, kinds in got.functions.items()}
    same = _twins(sites)
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
        function_kinds={name: _per_kind(kinds) for name, kinds in got.functions.items()},
        unlisted_function_lines=got.unlisted_function_lines,
        cells=[Cell(opcode=o, operand=n, label=t, kinds=k, lines=c) for (o, n, t, k), c in got.cells.items()],
        categories=categories(functions, same),
        twins=same,
        contexts=got.contexts(),
        kernels=[str(words[0]) for words in others.get("running", ()) if words],
        logged=[str(words[0]) for words in others.get("logged", ()) if words],
        times_us=_times(got),
        immediates=_immediates(got),
        bins=_bins(got),
        exponents=_exponents(got),
        stops=[
            str(words[0])
            for what in ("stopped", "template", "crashed")
            for words in others.get(what, ())
            if words
        ],
        torn=[{"file": file, "line": line, "raw": raw} for line, raw in got.torn],
        type_mismatch_lines=_mismatches(got),
    )


def counted(cells: dict[tuple[str, bool, str], int]) -> dict[str, Any]:
    """Lines as type -> kind -> number with every type and kind, so that a zero reads as one; memory apart, NaN alone."""
    full = {(label, False, kind): 0 for label in ("f16", "bf16", "f32", "f64") for kind in KINDS}
    full |= {(label, True, "NaN"): 0 for label in ("f16", "bf16", "f32", "f64")}
    return by_type({**full, **cells})


def _site(key: tuple[str, str, int | None], tally: SiteTally, file: str) -> Site:
    function, sass, operand = key
    labels: dict[str, int] = {}
    masks: dict[tuple[str, ...], int] = {}
    for (of, label), lines in tally.by.items():
        labels[label] = labels.get(label, 0) + lines
        masks[of] = masks.get(of, 0) + lines
    opcode = opcode_of(sass)
    return Site(
        function=function,
        sass=sass,
        operand=operand,
        opcode=opcode,
        type=type_of(opcode, operand) or max(labels, key=lambda label: labels[label], default="unknown"),
        lines=tally.lines,
        masks=len(tally.by),
        kinds=_per_kind(masks),
        labels=labels,
        places=tuple(tally.places),
        file=file,
        first_of=dict(tally.first_of),
        line=tally.line,
        raw=tally.raw,
    )


def _per_kind(masks: Mapping[tuple[str, ...], int]) -> dict[str, int]:
    lines: dict[str, int] = {}
    for kinds, count in masks.items():
        for kind in kinds:
            lines[kind] = lines.get(kind, 0) + count
    return lines


def _twins(sites: list[Site]) -> dict[str, str]:
    entries: dict[str, list[tuple[str, int | None]]] = {}
    for site in sites:
        entries.setdefault(site.function, []).append((site.sass, site.operand))
    return twins(entries)


def _mismatches(got: Gathered) -> int:
    return sum(
        lines
        for (opcode, operand, label, _), lines in got.cells.items()
        if (type_of(opcode, operand) or label) != label
    )


def _times(got: Gathered) -> dict[str, int]:
    longest: dict[str, int] = {}
    for words in got.others.get("timed", ()):
        if words:
            longest[str(words[0])] = max(longest.get(str(words[0]), 0), int(words[1] or 0))
    return longest


def _immediates(got: Gathered) -> list[dict[str, Any]]:
    return [
        {"kind": words[0], "operand": int(words[1] or 0), "sass": words[2], "lines": lines}
        for words, lines in got.others.get("immediate", Counter()).items()
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
        for words, lines in got.others.get("bin", Counter()).items()
        if words
    ]


def _exponents(got: Gathered) -> dict[str, list[str]]:
    return {
        str(words[0]): [str(words[1]), str(words[2])] for words in got.others.get("exponents", ()) if words
    }
