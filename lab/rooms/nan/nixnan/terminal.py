"""A log, or a comparison of two, as sentences and tables for the terminal."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lab.core.words import plural, printable
from lab.report.terminal import rows_table
from lab.rooms.nan.nixnan.grammar import KINDS, category, is_store, shown
from lab.rooms.nan.nixnan.judging.causes import causes
from lab.rooms.nan.nixnan.log import (
    Instruction,
    Log,
    coverage,
    instructions,
    nan_sites,
    own_sites,
    verdict_of,
)

MOST_ROWS = 12
_KINDS = ("lines", "sites", "NaN", "infinity", "-infinity", "subnormal")
_OF_FUNCTIONS = ("short", "category", *_KINDS, "nan_births")
_OF_INSTRUCTIONS = ("opcode", *_KINDS, "births", "transits", "source_only")


def described(log: Log) -> str:
    """What a log holds, whether that is all, and what it shows."""
    verdict, reason = verdict_of(log)
    instruction_list = instructions(log)
    parts = [
        f"{log.file}: {log.integrity}. {log.reasons[0]}",
        *(f"  {remark}" for remark in log.reasons[1:]),
        f"{plural(log.lines, 'line')}: {log.error_lines:,} of events at {plural(log.site_count, 'site')}, "
        f"{log.torn_lines:,} torn, {log.foreign_lines:,} not nixnan's.",
        f"Verdict of this level: {verdict}. {reason}",
    ]
    if rows := _count_rows(log):
        title = "Lines by type and kind (report: unique events, then repeats)"
        parts += ["", title, rows_table(rows)]
    if functions := function_rows(log, instruction_list):
        parts += ["Functions", _first_rows(functions, _OF_FUNCTIONS)]
    if opcodes := opcode_rows(log, instruction_list):
        parts += ["Instructions", _first_rows(opcodes, _OF_INSTRUCTIONS)]
    for cause in causes(instruction_list)[:MOST_ROWS]:
        parts += _cause_lines(cause)
    parts += ["", *coverage(log)]
    sites = Counter(site.function for site in log.sites)
    parts += [
        f"{name} repeats {plural(sites[name], 'entry')} of {kernel}: counted once."
        for name, kernel in log.twins.items()
    ]
    return printable("\n".join([*parts, ""]))


def compared(result: dict[str, Any]) -> str:
    """A comparison of two logs, as `diff` gives it."""
    parts = [
        f"A {result['a']['file']}",
        f"B {result['b']['file']}",
        *(f"Note: {warning}" for warning in result["warnings"]),
        "",
        result["verdict"],
    ]
    if moved := result["moved_count"]:
        parts.append(f"{plural(moved, 'appeared site')} only changed registers: the code was compiled again.")
    if changed := result["changed_count"]:
        parts.append(f"{plural(changed, 'common site')} with different kinds.")
    if any(row["new"] for row in result["grades"]):
        title = "Sites by the worst they saw (each grade with those above it)"
        parts += ["", title, rows_table(result["grades"])]
    for name in ("appeared", "vanished"):
        kinds = ", ".join(f"{count} {kind}" for kind, count in result[f"{name}_kinds"].items())
        parts.append(f"{result[f'{name}_count']} {name}{f' ({kinds})' if kinds else ''}")
        parts += [
            f"    {'/'.join(row['kinds'])} operand {row['operand']}  {row['sass']}  in {row['function']}"
            for row in result[name][:MOST_ROWS]
        ]
    return printable("\n".join(parts))


def _cause_lines(cause: dict[str, Any]) -> list[str]:
    confidence = f"{cause['confidence']} confidence{', harmless' if cause['benign'] else ''}"
    return [
        f"{cause['what']} ({confidence}): {plural(cause['sites'], 'instruction')}. {cause['why']}",
        f"    line {cause['line']}: {cause['raw']}",
    ]


def _first_rows(rows: list[dict[str, Any]], names: tuple[str, ...]) -> str:
    """A table of the first rows; numbers of the others are added up in one more."""
    table = [{name: row[name] for name in names} for row in rows[:MOST_ROWS]]
    if hidden_rows := rows[MOST_ROWS:]:
        sums = {
            name: sum(row[name] for row in hidden_rows)
            for name in names
            if isinstance(hidden_rows[0][name], int)
        }
        table.append({names[0]: f"{len(hidden_rows)} more", **sums})
    return rows_table(table)


def _count_rows(log: Log) -> list[dict[str, Any]]:
    """A row per (type, memory, kind) that is not all zero."""
    report = log.report or {"memory": {}}
    operations = (_without_memory(log.counts), _without_memory(report), "")
    memory = (log.counts["memory"], report["memory"], " memory")
    rows = []
    for counts, reported, suffix in (operations, memory):
        for label in dict.fromkeys([*counts, *reported]):
            lines, events = counts.get(label, {}), reported.get(label, {})
            for kind in dict.fromkeys([*lines, *events]):
                event = events.get(kind, {})
                row = {"type": f"{label}{suffix}", "kind": kind, "lines": lines.get(kind, 0)}
                if row["lines"] or event.get("unique"):
                    rows.append({**row, "report": event.get("unique"), "repeats": event.get("repeats")})
    return rows


def _without_memory(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: row for name, row in tree.items() if name != "memory"}


def opcode_rows(log: Log, instruction_list: list[Instruction]) -> list[dict[str, Any]]:
    """One row per opcode, most NaN lines first.

    Lines and kinds are exact; sites and classes are of listed sites.
    """
    rows: dict[str, Counter[str]] = {}
    for (opcode, _, _, kinds), lines in log.cells.items():
        row = rows.setdefault(opcode, Counter())
        row["lines"] += lines
        for kind in kinds:
            row[kind] += lines
    for instruction in instruction_list:
        row = rows.setdefault(instruction.opcode, Counter())
        row["sites"] += len(instruction.sites)
        row[f"{instruction.class_of('NaN')}"] += 1
    table = [
        {
            "opcode": opcode,
            **{name: row[name] for name in ("lines", "sites", *KINDS)},
            "births": row["birth"],
            "transits": row["transit"],
            "source_only": row["source_only"],
        }
        for opcode, row in rows.items()
    ]
    return sorted(table, key=lambda row: (-row["NaN"], -row["lines"]))


def function_rows(log: Log, instruction_list: list[Instruction]) -> list[dict[str, Any]]:
    """One row per function, most NaN lines first; without device functions that repeat a kernel's entries."""
    sites = Counter(site.function for site in own_sites(log))
    with_nan = nan_sites(log)
    births = Counter(
        instruction.function
        for instruction in instruction_list
        if instruction.class_of("NaN") == "birth" and not is_store(instruction.opcode)
    )
    rows = [
        {
            "function": name,
            "short": shown(name),
            "category": category(name),
            "lines": lines,
            "sites": sites[name],
            **{kind: log.function_kinds[name, kind] for kind in KINDS},
            "nan_sites": with_nan.get(name, 0),
            "nan_births": births[name],
        }
        for name, lines in log.functions.items()
        if name not in log.twins
    ]
    return sorted(rows, key=lambda row: (-row["NaN"], -row["lines"]))
