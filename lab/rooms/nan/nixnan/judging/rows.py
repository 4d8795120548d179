"""A log's lines by opcode and by function."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lab.rooms.nan.nixnan.categories import category, shown
from lab.rooms.nan.nixnan.grammar import KINDS
from lab.rooms.nan.nixnan.log import Log
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
    nan_sites = Counter(site.function for site in own_sites(log) if "NaN" in site.kinds)
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
            **{kind: log.function_kinds[name].get(kind, 0) for kind in KINDS},
            "nan_sites": nan_sites[name],
            "nan_births": births[name],
        }
        for name, lines in log.functions.items()
        if name not in log.twins
    ]
    return sorted(rows, key=lambda row: (-row["NaN"], -row["lines"]))
