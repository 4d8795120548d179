"""The instruction level's blocks of the page, from its tables."""

from __future__ import annotations

from lab.report.parts import Block, Points, Table
from lab.rooms.nan.nixnan.tables import SassTables

INSTRUCTIONS = "tables/sass_instructions.csv"


def blocks(tables: SassTables) -> list[Block]:
    """Tables of what the instructions did; none without a log that could be read."""
    if tables.instructions.empty:
        return []
    page_blocks: list[Block] = [
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
