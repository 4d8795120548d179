"""The instruction level's blocks of the page, from its tables."""

from __future__ import annotations

from pathlib import Path

from lab.report.figures import save, stacked_bars
from lab.report.parts import Block, Figure, Points, Table
from lab.rooms.nan.nixnan.tables import SassTables

MOST_BARS = 28
INSTRUCTIONS = "tables/sass_instructions.csv"


def blocks(tables: SassTables, folder: Path) -> list[Block]:
    """Bars and tables of what the instructions did; none without a log that could be read."""
    if tables.instructions.empty:
        return []
    page_blocks: list[Block] = [
        _bars(tables, folder),
        Table(tables.instructions, "Instructions by opcode, operand and kinds", INSTRUCTIONS),
    ]
    classes = (
        "Sites by what happened there: birth (in the result only), transit (in a source too), source-only "
        "(in a source only: it ends there, or its producer is not instrumented)"
    )
    captions = {
        "sass_classes": classes,
        "sass_causes": "Causes that the instructions suggest, each with a line that shows it",
        "sass_differences": "Sites compared with the baseline's",
    }
    frames = tables.frames()
    for name, caption in captions.items():
        if len(frames[name]):
            page_blocks.append(Table(frames[name], caption, f"tables/{name}.csv", open_rows=30))
    integrity = "Each log against its own report"
    return [*page_blocks, Table(tables.integrity, integrity, "tables/sass_integrity.csv", open_rows=30)]


def evidence_blocks(tables: SassTables) -> list[Block]:
    if tables.evidence.empty:
        return []
    caption = "The worst line of each site, as it stands in its log; sites with NaN first, then by lines"
    return [Table(tables.evidence, caption, "tables/sass_evidence.csv", open_rows=12, limit=300)]


def coverage_blocks(tables: SassTables) -> list[Block]:
    return [Points(tables.coverage)] if tables.coverage else []


def _bars(tables: SassTables, folder: Path) -> Figure:
    """Lines by opcode, with and without NaN; opcodes of one experiment stand together."""
    frame = tables.instructions
    with_nan = frame["kinds"].str.contains("NaN")
    lines = frame.assign(nan_lines=frame["lines"].where(with_nan, 0))
    sums = lines.groupby(["experiment", "opcode"], sort=False)[["lines", "nan_lines"]].sum()
    largest = sums.sort_values("lines", ascending=False).head(MOST_BARS)
    shown = largest.sort_index(level=0, sort_remaining=False)
    labels = [f"{experiment}: {opcode}" for experiment, opcode in shown.index]
    nan_lines = shown["nan_lines"].to_numpy(float)
    parts = {"fail": nan_lines, "memcpy": shown["lines"].to_numpy(float) - nan_lines}
    words = {"fail": "with NaN", "memcpy": "other kinds only"}
    drawing = stacked_bars(labels, parts, axis="lines of nixnan", words=words)
    caption = f"Lines by opcode, the {len(labels)} largest of all experiments."
    return Figure(save(drawing, folder, "instructions"), caption, "figures/instructions.png", INSTRUCTIONS)
