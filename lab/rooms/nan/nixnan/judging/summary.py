"""What a nixnan log says about a run, as one JSON-able dict."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lab.rooms.nan.nixnan.categories import category, shown
from lab.rooms.nan.nixnan.grammar import KINDS
from lab.rooms.nan.nixnan.judging.causes import causes, evidence
from lab.rooms.nan.nixnan.judging.coverage import coverage
from lab.rooms.nan.nixnan.judging.summary_rows import category_rows, function_rows, opcode_rows
from lab.rooms.nan.nixnan.judging.verdict import memory_nan_lines, stored_nan, totals, verdict_of
from lab.rooms.nan.nixnan.log import Log
from lab.rooms.nan.nixnan.opcodes import is_store
from lab.rooms.nan.nixnan.sites import Instruction, class_table, instructions, own_sites

MOST_BIRTHS = 200


def summary(log: Log, *, compute_capability: str | None = None) -> dict[str, Any]:
    """All that a page needs of a log. Counts are of lines; occurrences are the report's repeats."""
    instruction_list = instructions(log)
    word, reason = verdict_of(log)
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
        "totals": totals(log),  # kind -> lines
        "memory_nan_lines": memory_nan_lines(log),
        "stored_nan": stored_nan(log),
        # kind -> its earliest line
        "first": {kind: _first(log, kind) for kind in KINDS},
        "instructions": opcode_rows(log, instruction_list),
        "births": _births(instruction_list),
        "kernels": function_rows(log, instruction_list),
        "categories": category_rows(log),
        "classes": class_table(instruction_list),  # kind -> class -> instructions
        "causes": causes(instruction_list),
        "coverage": coverage(log, compute_capability=compute_capability),
        "twins": _twins(log),
        "type_mismatch_lines": log.type_mismatch_lines,
        "verdict": word,
        "verdict_why": reason,
    }


def _first(log: Log, kind: str) -> dict[str, Any] | None:
    """The earliest site of a kind.

    The log is roughly in order of time, but a result may precede its sources.
    """
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


def _births(instruction_list: list[Instruction]) -> list[dict[str, Any]]:
    """Instructions where NaN or an infinity was born, NaN first, then in the log's order."""
    rows: list[dict[str, Any]] = []
    for instruction in instruction_list:
        born = [kind for kind in ("NaN", "infinity", "-infinity") if instruction.class_of(kind) == "birth"]
        if born and not is_store(instruction.opcode):
            site = instruction.sites[0]
            rows.append(
                {
                    "function": instruction.function,
                    "short": shown(instruction.function),
                    "category": category(instruction.function),
                    "sass": instruction.sass,
                    "opcode": instruction.opcode,
                    "type": site.type,
                    "born": born,
                    "sources": {str(n): sorted(kinds) for n, kinds in sorted(instruction.sources.items())},
                    "shared_text": instruction.merged,
                    "places": list(site.places),
                    "evidence": evidence(site),
                }
            )
    return sorted(rows, key=lambda row: ("NaN" not in row["born"], row["evidence"]["line"]))[:MOST_BIRTHS]


def _twins(log: Log) -> list[dict[str, Any]]:
    sites = Counter(site.function for site in log.sites)
    return [{"function": name, "same_as": same, "sites": sites[name]} for name, same in log.twins.items()]
