"""From a log's file, or the files of one run's processes, to a `Log`."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lab.core.words import plural
from lab.rooms.nan.nixnan.grammar import KINDS
from lab.rooms.nan.nixnan.log import Cell, Log, Site
from lab.rooms.nan.nixnan.names import categories, category, opcode_of, type_of
from lab.rooms.nan.nixnan.reading.integrity import by_type, cell_lines, judge
from lab.rooms.nan.nixnan.reading.reader import Progress, Scan, SiteTally, gather

# From the worst to the best: several files of one run are as good as the worst of them. An empty one among
# others is a child's that used no GPU.
INTEGRITY = ("torn", "inconsistent", "truncated", "complete", "empty")
_LINES = (
    "lines",
    "error_lines",
    "torn_lines",
    "foreign_lines",
    "unlisted_function_lines",
    "type_mismatch_lines",
)
_ADDED = ("size_bytes", *_LINES, "report_blocks", "contexts")
_JOINED = ("differences", "cells", "immediates", "bins", "stops", "torn")
Entry = tuple[str, int | None]  # SASS, operand


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


def _log(scan: Scan) -> Log:
    verdict, file = judge(scan), str(scan.path)
    sites = [_site(key, tally, file) for key, tally in scan.sites.items()]
    functions = {name: sum(kinds.values()) for name, kinds in scan.functions.items()}
    same = twins_of(scan.sites)
    report = {
        cell: {"unique": unique, "repeats": scan.report.repeats[cell]}
        for cell, unique in scan.report.unique.items()
    }
    return Log(
        file=file,
        files=[file],
        size_bytes=scan.bytes,
        lines=scan.lines,
        error_lines=scan.error_lines,
        torn_lines=scan.torn_lines,
        foreign_lines=scan.foreign_lines,
        site_count=len(sites) + scan.further_sites,
        sites=sites,
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
        function_kinds={name: _by_kind(lines) for name, lines in scan.functions.items()},
        unlisted_function_lines=scan.unlisted_function_lines,
        cells=[
            Cell(opcode=o, operand=n, label=t, kinds=k, lines=c) for (o, n, t, k), c in scan.cells.items()
        ],
        categories=categories(functions, same),
        twins=same,
        contexts=scan.contexts(),
        kernels=_first_words(scan, "running"),
        logged=_first_words(scan, "logged"),
        times_us=_times(scan),
        immediates=_immediates(scan),
        bins=_bins(scan),
        exponents={label: [low, high] for (label, low, high), _ in _words(scan, "exponents")},
        stops=_first_words(scan, "stopped", "template", "crashed"),
        torn=[{"file": file, "line": line, "raw": raw} for line, raw in scan.torn],
        type_mismatch_lines=_mismatches(scan),
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


def _mismatches(scan: Scan) -> int:
    return sum(
        lines
        for (opcode, operand, label, _), lines in scan.cells.items()
        if (type_of(opcode, operand) or label) != label
    )


def _words(scan: Scan, name: str) -> list[tuple[tuple[str, ...], int]]:
    """(words, number of lines) of each distinct line of this name; "" for a word that its build omits."""
    counts = scan.other_lines.get(name, Counter())
    return [(tuple(word or "" for word in words), lines) for words, lines in counts.items() if words]


def _first_words(scan: Scan, *names: str) -> list[str]:
    return [words[0] for name in names for words, _ in _words(scan, name)]


def _times(scan: Scan) -> dict[str, int]:
    longest: dict[str, int] = {}
    for (kernel, time_us), _ in _words(scan, "timed"):
        longest[kernel] = max(longest.get(kernel, 0), int(time_us))
    return longest


def _immediates(scan: Scan) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "operand": int(operand), "sass": sass, "lines": lines}
        for (kind, operand, sass), lines in _words(scan, "immediate")
    ]


def _bins(scan: Scan) -> list[dict[str, Any]]:
    columns = ("type", "function", "low", "high", "count", "sass")
    return [
        {
            **dict(zip(columns, words, strict=False)),
            "count": int(words[4]),
            "sass": words[5] or None,
            "lines": lines,
        }
        for words, lines in _words(scan, "bin")
    ]


def merged(logs: list[Log]) -> Log:
    """The logs of one run's processes as one: numbers added, sites united, the worst integrity.

    A child process that used no GPU leaves an empty log; it does not lower the integrity of the others.
    """
    if len(logs) == 1:
        return logs[0]
    sites = _united(site for log in logs for site in log.sites)
    not_empty = [log for log in logs if log.integrity != "empty"]
    worst = min((log.integrity for log in not_empty), key=INTEGRITY.index, default="empty")
    further = sum(log.site_count - len(log.sites) for log in logs)
    reasons = [f"{Path(log.file).name}: {reason}" for log in logs for reason in log.reasons]
    if further:
        reasons.append(
            f"Up to {plural(further, 'site')} may be the same in several logs: counted, not listed."
        )
    functions = _summed(log.functions for log in logs)
    same = twins_of(site.key for site in sites)
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


def _each(logs: list[Log], names: tuple[str, ...], join: Callable[[Iterable[Any]], Any]) -> dict[str, Any]:
    return {name: join(getattr(log, name) for log in logs) for name in names}


def _united(sites: Iterable[Site]) -> list[Site]:
    """Sites of several logs, one per key."""
    by_key: dict[tuple[str, str, int | None], Site] = {}
    for site in sites:
        earlier = by_key.get(site.key)
        by_key[site.key] = _joined(earlier, site) if earlier else site
    return list(by_key.values())


def _joined(earlier: Site, site: Site) -> Site:
    return msgspec.structs.replace(
        earlier,
        lines=earlier.lines + site.lines,
        masks=earlier.masks + site.masks,
        kinds=_summed([earlier.kinds, site.kinds]),
        labels=_summed([earlier.labels, site.labels]),
        places=tuple(dict.fromkeys([*earlier.places, *site.places])),
    )


def _summed(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(total)


def _added(trees: list[dict[str, Any]]) -> dict[str, Any]:
    """Trees of numbers, added leaf by leaf; a number that is None in one of them is None."""
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


def twins_of(sites: Iterable[tuple[str, str, int | None]]) -> dict[str, str]:
    """Device function -> the kernel whose entries it repeats. Sites are (function, SASS, operand), each once.

    nixnan writes an instrumented device function's code under its own name and under the kernel's, entry by
    entry. Only names that are device functions' are merged, and only where every entry is another's too; of
    several such kernels, the one with the fewest other entries.
    """
    keys = list(sites)
    size = Counter([function for function, _, _ in keys])
    entries: dict[str, set[Entry]] = {name: set() for name in size if category(name) == "device function"}
    if not entries:
        return {}
    for function, sass, operand in keys:
        if function in entries:
            entries[function].add((sass, operand))
    holders: dict[Entry, set[str]] = {entry: set() for of in entries.values() for entry in of}
    for function, sass, operand in keys:
        if function not in entries and (sass, operand) in holders:
            holders[sass, operand].add(function)
    kernel_of = {}
    for name in entries:
        same = set[str].intersection(*(holders[entry] for entry in entries[name]))
        if same:
            kernel_of[name] = min(same, key=lambda kernel: (size[kernel], kernel))
    return kernel_of
