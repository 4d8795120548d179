"""Causes of a log's instructions, by the rules of `rules`, with the raw lines that show them.

An instruction whose text stands for several (see `sites`) loses a step of confidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lab.rooms.nan.nixnan.categories import category
from lab.rooms.nan.nixnan.judging.rules import RULES, Found, Rule
from lab.rooms.nan.nixnan.log import Site
from lab.rooms.nan.nixnan.sites import Instruction

LEVELS = ("low", "medium", "high")
MOST_EVIDENCE = 6


def causes(instructions: Iterable[Instruction]) -> list[dict[str, Any]]:
    """One row per cause, confidence and benign; for each instruction the first rule that fits counts.

    Keys: cause, what, confidence, benign, why, sites, lines, functions, categories, evidence. Most serious
    first.
    """
    rows: dict[tuple[str, str, bool, str], dict[str, Any]] = {}
    for one in instructions:
        for rule in RULES:
            if found := rule.test(one):
                _add(rows, rule, _less_sure(found, one), one)
                break
    order = {rule.name: index for index, rule in enumerate(RULES)}
    return sorted(
        rows.values(), key=lambda row: (row["benign"], order[row["cause"]], -LEVELS.index(row["confidence"]))
    )


def _add(
    rows: dict[tuple[str, str, bool, str], dict[str, Any]], rule: Rule, found: Found, one: Instruction
) -> None:
    row = rows.setdefault(
        (rule.name, *found),
        {
            "cause": rule.name,
            "what": rule.what,
            "confidence": found.confidence,
            "benign": found.benign,
            "why": found.why,
            "sites": 0,
            "lines": 0,
            "functions": {},
            "categories": {},
            "evidence": [],
        },
    )
    row["sites"] += 1
    row["lines"] += one.lines
    row["functions"][one.function] = row["functions"].get(one.function, 0) + 1
    word = category(one.function)
    row["categories"][word] = row["categories"].get(word, 0) + 1
    if len(row["evidence"]) < MOST_EVIDENCE:
        nan_first = sorted(one.sites.values(), key=lambda site: ("NaN" not in site.kinds, site.operand or 0))
        row["evidence"] += [evidence(site) for site in nan_first]
        del row["evidence"][MOST_EVIDENCE:]


def evidence(site: Site) -> dict[str, Any]:
    """The raw line behind a number."""
    return {"file": site.file, "line": site.line, "raw": site.raw}


def _less_sure(found: Found, one: Instruction) -> Found:
    if not one.merged or found.confidence == "low":
        return found
    lower = LEVELS[LEVELS.index(found.confidence) - 1]
    return found._replace(confidence=lower, why=f"{found.why} Several instructions share this text.")
