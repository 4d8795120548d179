"""The page's tables and bars: ranking, births, instructions, functions, what was applied."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lab.core.words import plural
from lab.report.figures import save, stacked_bars
from lab.report.parts import Block, Figure, Prose, Table
from lab.report.terminal import Heading
from lab.rooms.nan.analyze import NanTables
from lab.rooms.nan.columns import OUTPUTS, RANKING, SASS

MOST_BARS = 12
_OF_PILL = {
    "ok": "ok, clean, complete, applied, loaded as asked, masked-intermediate, subnormal-only",
    "warn": "stored, no-effect, truncated, skipped, twin, torn, reached-module",
    "fail": "failed, oom, timeout, interrupted, missing, broken, invalid, reached-logits, inconsistent",
    "unknown": "unreadable, empty",
}
PILLS = {word: pill for pill, words in _OF_PILL.items() for word in words.split(", ")}
HEADINGS = {
    "nan": Heading("NaN in outputs", ""),
    "inf": Heading("Inf in outputs", ""),
    "bad_leaves": Heading("bad leaves", ""),
    "sass_nan_lines": Heading("NaN lines", ""),
    "sass_lines": Heading("lines", ""),
    "sass_sites": Heading("sites", ""),
    "sass_integrity": Heading("log", ""),
}


def ranking_blocks(tables: NanTables) -> list[Block]:
    """Every experiment that was asked for or found."""
    frame = _without_empty_columns(tables.experiments[RANKING])
    caption = "Every experiment that was asked for or found; only what ran and took effect is compared"
    outputs = _without_empty_columns(tables.experiments[OUTPUTS])
    further = "What the outputs held, how sure the cause is, and the text against the baseline's"
    return [
        Table(frame, caption, "tables/experiments.csv", HEADINGS, PILLS, open_rows=40),
        Table(outputs, further, "tables/experiments.csv", HEADINGS, PILLS, open_rows=40),
    ]


def birth_blocks(tables: NanTables) -> list[Block]:
    """Where finite inputs gave NaN or infinity, with the cause of each experiment's first birth."""
    watched = sum(bool(evidence_row.watch) for evidence_row in tables.evidence)
    if tables.births.empty:
        none = f"No watched module of {plural(watched, 'experiment')} took or gave a NaN or an infinity."
        return [Prose(none)] if watched else []
    steps = tables.births.groupby(["experiment", "place", "phase"], sort=False)["step"]
    frame = steps.agg(["min", "count"]).reset_index().rename(columns={"min": "first step", "count": "steps"})
    first_births = {
        evidence_row.label: (evidence_row.watch or {}).get("first", {}) for evidence_row in tables.evidence
    }
    causes = [
        tables.causes.get(label) if first_births[label]["place"] == place else None
        for label, place in zip(frame["experiment"], frame["place"], strict=True)
    ]
    for index, name in enumerate(("cause", "confidence", "evidence")):
        frame[name] = [cause[index] if cause else "" for cause in causes]
    caption = "Where finite inputs gave NaN or infinity; the cause is given for each experiment's first place"
    return [Table(frame, caption, "tables/births.csv", open_rows=30)]


def instruction_blocks(tables: NanTables) -> list[Block]:
    """nixnan's counts, one row per logged experiment."""
    frame = tables.experiments[tables.experiments["sass_integrity"].fillna("") != ""][SASS]
    if frame.empty:
        return []
    caption = (
        "nixnan's counts by experiment; they only compare between experiments that generate the same length"
    )
    return [Table(frame, caption, "tables/experiments.csv", HEADINGS, PILLS, open_rows=40)]


def function_blocks(tables: NanTables, folder: Path) -> list[Block]:
    """Bars of NaN lines by category for each experiment that was logged."""
    frame = tables.functions[tables.functions["twin_of"] == ""]
    if frame.empty:
        return []
    by = frame.groupby(["experiment", "category"], sort=False)[["lines", "nan_lines"]].sum().reset_index()
    by = by.head(3 * MOST_BARS)
    keys = [f"{row.experiment}: {row.category}" for row in by.itertuples()]
    nan_lines = by["nan_lines"].to_numpy(float)
    drawing = stacked_bars(
        keys,
        {"fail": nan_lines, "memcpy": by["lines"].to_numpy(float) - nan_lines},
        axis="lines of nixnan",
        words={"fail": "with NaN", "memcpy": "infinity, subnormal or division by 0 only"},
    )
    caption = "Lines by kernel category. Device functions that repeat a kernel's entries are left out."
    png = save(drawing, folder, "categories")
    return [
        Figure(png, caption, "figures/categories.png", "tables/functions.csv"),
        Table(tables.functions, "Functions as nixnan names them", "tables/functions.csv"),
    ]


def applied_blocks(tables: NanTables) -> list[Block]:
    """What each experiment changed, with the proof."""
    blocks: list[Block] = []
    if len(tables.applied):
        caption = (
            "What each experiment changed, and the proof: modules that took the change, values altered, how "
            "far the first logits moved"
        )
        frame = _without_empty_columns(tables.applied)
        blocks.append(Table(frame, caption, "tables/applied.csv", pills=PILLS, open_rows=40))
    return blocks


def _without_empty_columns(frame: pd.DataFrame) -> pd.DataFrame:
    shown: pd.DataFrame = frame[
        [name for name in frame if not (frame[name].isna() | (frame[name] == "")).all()]
    ]
    return shown
