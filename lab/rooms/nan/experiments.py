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
            "rank": ranked.get(experiment.label),
            "experiment": experiment.label,
            "status": experiment.status,
            "verdict": verdicts[experiment.label],
            **_modules(experiment, causes.get(experiment.label)),
            **_instructions(experiment),
            **_text(experiment, base),
            **_cost(experiment),
            "reason": experiment.reason or experiment.log_error,
            "result_file": experiment.result_file,
            "log_files": ", ".join(experiment.log_files),
        }
        for experiment in evidence
    ]
    frame = pd.DataFrame(rows, columns=EXPERIMENTS)
    frame[WHOLE_NUMBERS] = frame[WHOLE_NUMBERS].astype("Int64")
    table: pd.DataFrame = frame.sort_values("rank", kind="stable", na_position="last").reset_index(drop=True)
    return table


def _modules(experiment: Evidence, cause: Cause | None) -> dict[str, Any]:
    totals, birth = python_totals(experiment), (experiment.watch or {}).get("first")
    logits = (experiment.result or {}).get("logits")
    return {
        "nan": int(totals["nan"]) if totals else None,
        "inf": int(totals["posinf"] + totals["neginf"]) if totals else None,
        "bad_leaves": bad_leaves(experiment) if experiment.watch else None,
        "bad_logit_steps": len(logits["bad_steps"]) if logits else None,
        "first_producer": birth["place"] if birth else "",
        "cause": cause.text if cause else "",
        "confidence": cause.confidence if cause else "",
    }


def _instructions(experiment: Evidence) -> dict[str, Any]:
    """nixnan's numbers. Half is f16 and bf16 together: the tool prints bf16 apart only since August 2025."""
    if experiment.log is None:
        return {"sass_integrity": "unreadable" if experiment.log_files else ""}
    return {
        "sass_integrity": experiment.log.integrity,
        "sass_lines": experiment.log.error_lines,
        "sass_sites": experiment.log.site_count,
        "sass_nan_lines": kind_lines(experiment, "NaN"),
        "memory_nan_lines": memory_nan_lines(experiment.log),
        **_unique_and_repeats("half_nan", reported(experiment, ("f16", "bf16"), "NaN")),
        **_unique_and_repeats("float_nan", reported(experiment, ("f32",), "NaN")),
        **_unique_and_repeats("half_subnormal", reported(experiment, ("f16", "bf16"), "subnormal")),
    }


def _unique_and_repeats(name: str, counts: tuple[int, int] | None) -> dict[str, int | None]:
    unique, repeats = counts or (None, None)
    return {f"{name}_unique": unique, f"{name}_repeats": repeats}


def _text(experiment: Evidence, base: Evidence | None) -> dict[str, Any]:
    text, of_base = text_of(experiment), text_of(base)
    same = ""
    if text is not None and of_base is not None and experiment is not base:
        same = "yes" if text == of_base else "no"
    return {"same_text": same, "characters": None if text is None else len(text)}


def _cost(experiment: Evidence) -> dict[str, Any]:
    timing = (experiment.result or {}).get("timing") or {}
    percent = {phase: timing.get(phase, {}).get("overhead_percent") for phase in ("prefill", "decode")}
    return {f"watch_{phase}_percent": value for phase, value in percent.items()}
