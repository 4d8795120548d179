"""Causes of a log's instructions, by the rules of `rules`, with the raw lines that show them.

An instruction whose text stands for several (see `sites`) loses a step of confidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lab.rooms.nan.nixnan.judging.rules import RULES, Found, Rule
from lab.rooms.nan.nixnan.log import Site
from lab.rooms.nan.nixnan.sites import Instruction

LEVELS = ("low", "medium", "high")
MOST_EVIDENCE = 6


def causes(instructions: Iterable[Instruction]) -> list[dict[str, Any]]:
    """One row per cause, confidence and benign; for each instruction the first rule that fits counts.

    Keys: cause, what, confidence, benign, why, sites, lines, functions, evidence. Most serious first.
    """
    rows: dict[tuple[str, str, bool, str], dict[str, Any]] = {}
    for instruction in instructions:
        for rule in RULES:
            if cause := rule.test(instruction):
                _add(rows, rule, _less_sure(cause, instruction), instruction)
                break
    order = {rule.name: index for index, rule in enumerate(RULES)}
    return sorted(
        rows.values(), key=lambda row: (row["benign"], order[row["cause"]], -LEVELS.index(row["confidence"]))
    )


def _add(
    rows: dict[tuple[str, str, bool, str], dict[str, Any]], rule: Rule, cause: Found, instruction: Instruction
) -> None:
    row = rows.setdefault(
        (rule.name, *cause),
        {
            "cause": rule.name,
            "what": rule.label,
            "confidence": cause.confidence,
            "benign": cause.benign,
            "why": cause.reason,
            "sites": 0,
            "lines": 0,
            "functions": {},
            "evidence": [],
        },
    )
    row["sites"] += 1
    row["lines"] += instruction.lines
    row["functions"][instruction.function] = row["functions"].get(instruction.function, 0) + 1
    if len(row["evidence"]) < MOST_EVIDENCE:
        nan_first = sorted(
            instruction.sites.values(), key=lambda site: ("NaN" not in site.kinds, site.operand or 0)
        )
        row["evidence"] += [evidence(site) for site in nan_first]
        del row["evidence"][MOST_EVIDENCE:]


def evidence(site: Site) -> dict[str, Any]:
    """The raw line behind a number."""
    return {"file": site.file, "line": site.line, "raw": site.raw}


def _less_sure(cause: Found, instruction: Instruction) -> Found:
    if not instruction.merged or cause.confidence == "low":
        return cause
    lower = LEVELS[LEVELS.index(cause.confidence) - 1]
    return cause._replace(confidence=lower, reason=f"{cause.reason} Several instructions share this text.")
