"""What a nixnan log says about a run, as one JSON-able dict; and two logs compared (`lab.rooms.nan.nixnan.diff`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lab.rooms.nan.nixnan.categories import category, label, shown
from lab.rooms.nan.nixnan.causes import causes, evidence
from lab.rooms.nan.nixnan.coverage import coverage
from lab.rooms.nan.nixnan.diff import diff
from lab.rooms.nan.nixnan.grammar import KINDS, is_store
from lab.rooms.nan.nixnan.logs import Log, Site
from lab.rooms.nan.nixnan.sites import Instruction, class_table, instructions, own_sites

__all__ = ["diff", "summary"]

INSTRUCTIONS = 200  # rows of instructions, the rest summed up by opcode


def summary(log: Log, *, compute_capability: str | None = None) -> dict[str, Any]:
    """All that a page needs of a log.

    Keys: file, integrity, reasons, lines, error_lines, torn_lines, sites (number), sites_listed, counts, report, totals
    (kind -> lines), memory_nan_lines, stored_nan, first (kind -> the earliest line of it), instructions (a row an opcode), births (instructions where NaN or an
    infinity was born), kernels (a row a function), categories, classes (kind -> class -> instructions), causes, coverage,
    twins, type_mismatch_lines, verdict, verdict_why. Counts are of lines, not of occurrences: the report's repeats
    are those.
    """
    found = instructions(log)
    word, why = verdict(log)
    return {
        "file": log.file,
        "integrity": log.integrity,
        "reasons": log.reasons,
        "lines": log.lines,
        "error_lines": log.error_lines,
        "torn_lines": log.torn_lines,
        "sites": log.site_count,
        "sites_listed": len(log.sites),
        "counts": log.counts,
        "report": log.report,
        "totals": totals(log),
        "memory_nan_lines": memory_nan_lines(log),
        "stored_nan": stored_nan(log),
        "first": {kind: _first(log, kind) for kind in KINDS},
        "instructions": _opcodes(log, found),
        "births": _births(found),
        "kernels": _kernels(log, found),
        "categories": _categories(log),
        "classes": class_table(found),
        "causes": causes(found),
        "coverage": coverage(log, compute_capability=compute_capability),
        "twins": _twins(log),
        "type_mismatch_lines": log.type_mismatch_lines,
        "verdict": word,
        "verdict_why": why,
    }


def totals(log: Log) -> dict[str, int]:
    """Kind -> lines of operations of all types; what the memory check wrote is not in it."""
    rows = [row for name, row in log.counts.items() if name != "memory"]
    return {kind: sum(row.get(kind, 0) for row in rows) for kind in KINDS}


def memory_nan_lines(log: Log) -> int:
    return sum(row.get("NaN", 0) for row in log.counts["memory"].values())


def stored_nan(log: Log) -> bool:
    """Was a NaN written to global memory, by the lines or by the report?"""
    reported = (log.report or {}).get("memory", {})
    return memory_nan_lines(log) > 0 or any(row.get("NaN", {}).get("unique", 0) for row in reported.values())


def verdict(log: Log) -> tuple[str, str]:
    """What the log alone allows to say, and why.

    stored: NaN in memory, which is true of a torn log too. inconclusive: the log cannot speak for what it does not hold.
    masked-intermediate: NaN or infinities in registers, none seen to be stored. subnormal-only. nothing-seen: no event
    in what nixnan looks at, which is no proof of health.
    """
    seen = totals(log)
    if stored_nan(log):
        return "stored", "A NaN was written to global memory: other kernels can read it."
    if log.integrity != "complete":
        return f"inconclusive({log.integrity})", log.reasons[0]
    if seen["NaN"] or seen["infinity"] or seen["-infinity"]:
        return (
            "masked-intermediate",
            f"{seen['NaN']} lines of NaN and {seen['infinity'] + seen['-infinity']} of infinities in registers; no store of a "
            "NaN was seen. Whether an infinity was stored nixnan does not check.",
        )
    if seen["subnormal"]:
        return "subnormal-only", "Numbers next to zero, no NaN, no infinity in what nixnan looks at."
    if seen["div0"]:
        return "masked-intermediate", "Reciprocals of zero and nothing after them in what nixnan looks at."
    return "nothing-seen", "No event in what nixnan looks at. That is no proof of health: see the coverage."


def _opcodes(log: Log, found: list[Instruction]) -> list[dict[str, Any]]:
    """A row an opcode, most NaN lines first. Lines and kinds are exact; sites and classes are of listed sites."""
    rows: dict[str, Counter[str]] = {}
    for cell in log.cells:
        row = rows.setdefault(cell.opcode, Counter())
        row["lines"] += cell.lines
        for kind in cell.kinds:
            row[kind] += cell.lines
    for one in found:
        row = rows.setdefault(one.opcode, Counter())
        row["sites"] += len(one.sites)
        row["instructions"] += 1
        nan = one.class_of("NaN")
        row["births"] += nan == "birth"
        row["transits"] += nan == "transit"
        row["source_only"] += nan == "source_only"
        row["infinity_births"] += any(one.class_of(kind) == "birth" for kind in ("infinity", "-infinity"))
    names = ("lines", "sites", "instructions", *KINDS, "births", "transits", "source_only", "infinity_births")
    return sorted(
        (
            {"opcode": opcode, "store": is_store(opcode), **{name: row[name] for name in names}}
            for opcode, row in rows.items()
        ),
        key=lambda row: (-row["NaN"], -row["lines"]),
    )


def _first(log: Log, kind: str) -> dict[str, Any] | None:
    """The earliest site of a kind; the log's order is roughly that of time, but a result may precede its sources."""
    site = min(
        (site for site in own_sites(log) if kind in site.kinds),
        key=lambda site: site.first_of[kind],
        default=None,
    )
    if site is None:
        return None
    return {
        "function": site.function,
        "short": shown(site.function),
        "category": category(site.function),
        "sass": site.sass,
        "operand": site.operand,
        "file": site.file,
        "line": site.first_of[kind],
    }


def _births(found: list[Instruction]) -> list[dict[str, Any]]:
    """Instructions where NaN or an infinity was born, in the log's order: its first lines are its first events."""
    rows: list[dict[str, Any]] = []
    for one in found:
        born = [kind for kind in ("NaN", "infinity", "-infinity") if one.class_of(kind) == "birth"]
        if born and not is_store(one.opcode):
            site = one.sites[0]
            rows.append(
                {
                    "function": one.function,
                    "short": shown(one.function),
                    "category": category(one.function),
                    "sass": one.sass,
                    "opcode": one.opcode,
                    "type": site.type,
                    "born": born,
                    "sources": {
                        str(operand): sorted(kinds) for operand, kinds in sorted(one.sources.items())
                    },
                    "shared_text": one.merged,
                    "places": list(site.places),
                    "evidence": evidence(site),
                }
            )
    return sorted(rows, key=lambda row: ("NaN" not in row["born"], row["evidence"]["line"]))[:INSTRUCTIONS]


def _kernels(log: Log, found: list[Instruction]) -> list[dict[str, Any]]:
    """A row a function, most NaN lines first; a device function's repeated entries stand beside its kernel's."""
    sites: dict[str, list[Site]] = {}
    for site in own_sites(log):
        sites.setdefault(site.function, []).append(site)
    births = Counter(
        one.function for one in found if one.class_of("NaN") == "birth" and not is_store(one.opcode)
    )
    twins: dict[str, list[str]] = {}
    for name, same in log.twins.items():
        twins.setdefault(same, []).append(name)
    rows = [
        {
            "function": name,
            "short": shown(name),
            "category": category(name),
            "lines": lines,
            "sites": len(sites.get(name, ())),
            **{kind: log.function_kinds[name].get(kind, 0) for kind in KINDS},
            "nan_lines": log.function_kinds[name].get("NaN", 0),
            "nan_sites": sum("NaN" in site.kinds for site in sites.get(name, ())),
            "nan_births": births[name],
            "repeated_by": sorted(twins.get(name, ())),
            "repeated_lines": sum(log.functions[twin] for twin in twins.get(name, ())),
        }
        for name, lines in log.functions.items()
        if name not in log.twins
    ]
    return sorted(rows, key=lambda row: (-row["nan_lines"], -row["lines"]))


def _categories(log: Log) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name, lines in log.functions.items():
        word = category(log.twins.get(name, name))
        row = rows.setdefault(
            word,
            {"category": word, "label": label(word), "lines": 0, **dict.fromkeys(KINDS, 0), "functions": []},
        )
        row["lines"] += lines
        for kind, count in log.function_kinds[name].items():
            row[kind] += count
        row["functions"].append(name)
    return sorted(
        ({**row, "nan_lines": row["NaN"], "functions": row["functions"][:20]} for row in rows.values()),
        key=lambda row: -row["lines"],
    )


def _twins(log: Log) -> list[dict[str, Any]]:
    sites = Counter(site.function for site in log.sites)
    return [{"function": name, "same_as": same, "sites": sites[name]} for name, same in log.twins.items()]
