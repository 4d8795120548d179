"""The table of experiments: one row each, with its verdict and the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lab.rooms.nan.cause import Cause
from lab.rooms.nan.columns import EXPERIMENTS, WHOLE_NUMBERS
from lab.rooms.nan.counts import bad_leaves, kind_lines, python_totals, reported, text_of
from lab.rooms.nan.evidence import Evidence, baseline_of
from lab.rooms.nan.nixnan.judging.verdict import memory_nan_lines
from lab.rooms.nan.verdict import ranks


def experiments_table(
    evidence: Sequence[Evidence], verdicts: Mapping[str, str], causes: Mapping[str, Cause]
) -> pd.DataFrame:
    """Ranked experiments first, the others after them; equals in the order in which they came."""
    base, ranked = baseline_of(evidence), ranks(evidence, verdicts)
    rows = [
        {
            "rank": ranked.get(one.label),
            "experiment": one.label,
            "status": one.status,
            "verdict": verdicts[one.label],
            **_modules(one, causes.get(one.label)),
            **_instructions(one),
            **_text(one, base),
            **_quality(one),
            **_cost(one),
            "reason": one.reason or one.log_error,
            "result_file": one.result_file,
            "log_files": ", ".join(one.log_files),
        }
        for one in evidence
    ]
    frame = pd.DataFrame(rows, columns=EXPERIMENTS)
    frame[WHOLE_NUMBERS] = frame[WHOLE_NUMBERS].astype("Int64")
    made: pd.DataFrame = frame.sort_values("rank", kind="stable", na_position="last").reset_index(drop=True)
    return made


def _modules(one: Evidence, cause: Cause | None) -> dict[str, Any]:
    totals, first = python_totals(one), (one.watch or {}).get("first")
    logits = (one.result or {}).get("logits")
    return {
        "nan": int(totals["nan"]) if totals else None,
        "inf": int(totals["posinf"] + totals["neginf"]) if totals else None,
        "bad_leaves": bad_leaves(one) if one.watch else None,
        "bad_logit_steps": len(logits["bad_steps"]) if logits else None,
        "first_producer": first["place"] if first else "",
        "cause": cause.what if cause else "",
        "confidence": cause.confidence if cause else "",
    }


def _instructions(one: Evidence) -> dict[str, Any]:
    """nixnan's numbers. Half is f16 and bf16 together: the tool prints bf16 apart only since August 2025."""
    if one.log is None:
        return {"sass_integrity": "unreadable" if one.log_files else ""}
    return {
        "sass_integrity": one.log.integrity,
        "sass_lines": one.log.error_lines,
        "sass_sites": one.log.site_count,
        "sass_nan_lines": kind_lines(one, "NaN"),
        "memory_nan_lines": memory_nan_lines(one.log),
        **_unique_and_repeats("half_nan", reported(one, ("f16", "bf16"), "NaN")),
        **_unique_and_repeats("float_nan", reported(one, ("f32",), "NaN")),
        **_unique_and_repeats("half_subnormal", reported(one, ("f16", "bf16"), "subnormal")),
    }


def _unique_and_repeats(name: str, counts: tuple[int, int] | None) -> dict[str, int | None]:
    unique, repeats = counts or (None, None)
    return {f"{name}_unique": unique, f"{name}_repeats": repeats}


def _text(one: Evidence, base: Evidence | None) -> dict[str, Any]:
    text, of_base = text_of(one), text_of(base)
    same = ""
    if text is not None and of_base is not None and one is not base:
        same = "yes" if text == of_base else "no"
    return {"same_text": same, "characters": None if text is None else len(text)}


def _quality(one: Evidence) -> dict[str, Any]:
    measured = (one.result or {}).get("quality") or {}
    return {"kl_mean": measured.get("kl_mean"), "top1_agreement": measured.get("top1_agreement")}


def _cost(one: Evidence) -> dict[str, Any]:
    timing = (one.result or {}).get("timing") or {}
    percent = {phase: timing.get(phase, {}).get("overhead_percent") for phase in ("prefill", "decode")}
    return {f"watch_{phase}_percent": value for phase, value in percent.items()}
