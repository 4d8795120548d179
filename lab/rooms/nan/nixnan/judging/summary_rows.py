"""A log's lines by opcode, by function and by category."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lab.rooms.nan.nixnan.categories import category, label, shown
from lab.rooms.nan.nixnan.grammar import KINDS
from lab.rooms.nan.nixnan.log import Log, Site
from lab.rooms.nan.nixnan.opcodes import is_store
from lab.rooms.nan.nixnan.sites import Instruction, own_sites


def opcode_rows(log: Log, instruction_list: list[Instruction]) -> list[dict[str, Any]]:
    """One row per opcode, most NaN lines first.

    Lines and kinds are exact; sites and classes are of listed sites.
    """
    rows: dict[str, Counter[str]] = {}
    for cell in log.cells:
        row = rows.setdefault(cell.opcode, Counter())
        row["lines"] += cell.lines
        for kind in cell.kinds:
            row[kind] += cell.lines
    for instruction in instruction_list:
        row = rows.setdefault(instruction.opcode, Counter())
        row["sites"] += len(instruction.sites)
        row["instructions"] += 1
        nan = instruction.class_of("NaN")
        row["births"] += nan == "birth"
        row["transits"] += nan == "transit"
        row["source_only"] += nan == "source_only"
        row["infinity_births"] += any(
            instruction.class_of(kind) == "birth" for kind in ("infinity", "-infinity")
        )
    names = ("lines", "sites", "instructions", *KINDS, "births", "transits", "source_only", "infinity_births")
    table = [
        {"opcode": opcode, "store": is_store(opcode), **{name: row[name] for name in names}}
        for opcode, row in rows.items()
    ]
    return sorted(table, key=lambda row: (-row["NaN"], -row["lines"]))


def function_rows(log: Log, instruction_list: list[Instruction]) -> list[dict[str, Any]]:
    """One row per function, most NaN lines first.

    A device function's repeated entries are counted beside its kernel's.
    """
    sites: dict[str, list[Site]] = {}
    for site in own_sites(log):
        sites.setdefault(site.function, []).append(site)
    births = Counter(
        instruction.function
        for instruction in instruction_list
        if instruction.class_of("NaN") == "birth" and not is_store(instruction.opcode)
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


def category_rows(log: Log) -> list[dict[str, Any]]:
    """One row per category, most lines first."""
    rows: dict[str, dict[str, Any]] = {}
    for name, lines in log.functions.items():
        word = category(log.twins.get(name, name))
        empty = {
            "category": word,
            "label": label(word),
            "lines": 0,
            **dict.fromkeys(KINDS, 0),
            "functions": [],
        }
        row = rows.setdefault(word, empty)
        row["lines"] += lines
        for kind, count in log.function_kinds[name].items():
            row[kind] += count
        row["functions"].append(name)
    return sorted(
        ({**row, "nan_lines": row["NaN"], "functions": row["functions"][:20]} for row in rows.values()),
        key=lambda row: -row["lines"],
    )
