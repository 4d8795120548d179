"""The instruction level's share of the page: tables from nixnan's logs, one row an experiment and thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lab.report.figures import save, stacked_bars
from lab.report.page import Block, Figure, Points, Table
from lab.rooms.nan.categories import category, shown
from lab.rooms.nan.evidence import Evidence
from lab.rooms.nan.logs import Log, Site

INSTRUCTIONS = ["experiment", "opcode", "operand", "type", "kinds", "lines"]
EVIDENCE = ["experiment", "file", "line", "kinds", "category", "function", "lines_of_site", "raw"]
INTEGRITY = [
    "experiment",
    "integrity",
    "lines",
    "error_lines",
    "torn_lines",
    "report_blocks",
    "contexts",
    "reasons",
    "files",
]
MOST_BARS = 14
MOST_EVIDENCE = 40  # sites an experiment whose raw lines are shown


@dataclass
class SassTables:
    """Frames by file name; `sentences` join the verdict."""

    instructions: pd.DataFrame
    evidence: pd.DataFrame
    integrity: pd.DataFrame
    causes: pd.DataFrame
    classes: pd.DataFrame
    differences: pd.DataFrame
    coverage: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)

    def frames(self) -> dict[str, pd.DataFrame]:
        return {"sass_instructions": self.instructions, "sass_evidence": self.evidence, "sass_integrity": self.integrity,
                "sass_causes": self.causes, "sass_classes": self.classes, "sass_differences": self.differences}  # fmt: skip

    def blocks(self, folder: Path) -> list[Block]:
        if self.instructions.empty:
            return []
        blocks: list[Block] = [
            self._bars(folder),
            Table(
                self.instructions, "Instructions by opcode, operand and kinds", "tables/sass_instructions.csv"
            ),
        ]
        if len(self.classes):
            caption = "Sites by what happened there: birth (the result only), transit (a source too), source-only (it came by an uninstrumented way)"
            blocks.append(Table(self.classes, caption, "tables/sass_classes.csv", open_rows=30))
        if len(self.causes):
            blocks.append(
                Table(
                    self.causes,
                    "Causes that the instructions suggest, each with a line that shows it",
                    "tables/sass_causes.csv",
                    open_rows=30,
                )
            )
        if len(self.differences):
            blocks.append(
                Table(
                    self.differences,
                    "Sites against the baseline's",
                    "tables/sass_differences.csv",
                    open_rows=30,
                )
            )
        return [
            *blocks,
            Table(
                self.integrity, "Each log against its own report", "tables/sass_integrity.csv", open_rows=30
            ),
        ]

    def _bars(self, folder: Path) -> Figure:
        frame = self.instructions.assign(nan=self.instructions["kinds"].str.contains("NaN"))
        sums = frame.pivot_table(
            index=["experiment", "opcode"],
            columns="nan",
            values="lines",
            aggfunc="sum",
            fill_value=0,
            sort=False,
        )
        for column in (True, False):
            if column not in sums:
                sums[column] = 0
        sums = (
            sums.assign(total=sums[True] + sums[False])
            .sort_values("total", ascending=False)
            .head(2 * MOST_BARS)
            .sort_index(level=0, sort_remaining=False)
        )
        labels = [f"{experiment}: {opcode}" for experiment, opcode in sums.index]
        parts = {"fail": sums[True].to_numpy(float), "memcpy": sums[False].to_numpy(float)}
        drawing = stacked_bars(
            labels, parts, axis="lines of nixnan", words={"fail": "with NaN", "memcpy": "other kinds only"}
        )
        caption = f"Lines by opcode, the {len(labels)} largest of all experiments."
        return Figure(
            save(drawing, folder, "instructions"),
            caption,
            "figures/instructions.png",
            "tables/sass_instructions.csv",
        )

    def evidence_blocks(self) -> list[Block]:
        if self.evidence.empty:
            return []
        caption = "The first line of each site as it stands in its log, sites with NaN first, then by lines"
        return [Table(self.evidence, caption, "tables/sass_evidence.csv", open_rows=12, limit=300)]

    def coverage_blocks(self) -> list[Block]:
        return [Points(self.coverage)] if self.coverage else []


def sass_tables(evidence: Sequence[Evidence]) -> SassTables:
    """Tables of all logs that could be read; empty ones where there is none."""
    logged = [one for one in evidence if one.log is not None]
    rows: dict[str, list[dict[str, Any]]] = {"instructions": [], "evidence": [], "integrity": []}
    for one in logged:
        assert one.log is not None
        rows["instructions"] += _instructions(one.label, one.log)
        rows["evidence"] += _evidence(one.label, one.log)
        rows["integrity"].append(_integrity(one))
    empty = pd.DataFrame()
    return SassTables(
        instructions=pd.DataFrame(rows["instructions"], columns=INSTRUCTIONS).astype({"operand": "Int64"}),
        evidence=pd.DataFrame(rows["evidence"], columns=EVIDENCE), integrity=pd.DataFrame(rows["integrity"], columns=INTEGRITY),
        causes=empty, classes=empty, differences=empty)  # fmt: skip


def _instructions(label: str, log: Log) -> list[dict[str, Any]]:
    cells = sorted(log.cells, key=lambda cell: -cell.lines)
    return [{"experiment": label, "opcode": cell.opcode, "operand": cell.operand, "type": cell.label,
             "kinds": ", ".join(cell.kinds), "lines": cell.lines} for cell in cells]  # fmt: skip


def _evidence(label: str, log: Log) -> list[dict[str, Any]]:
    """Sites with NaN first, then those with most lines."""

    def weight(site: Site) -> tuple[bool, int]:
        return "NaN" not in site.kinds, -site.lines

    return [{"experiment": label, "file": Path(site.file).name, "line": site.first_line, "kinds": ", ".join(site.kinds),
             "category": category(site.function), "function": shown(site.function), "lines_of_site": site.lines, "raw": site.raw}
            for site in sorted(log.sites, key=weight)[:MOST_EVIDENCE]]  # fmt: skip


def _integrity(one: Evidence) -> dict[str, Any]:
    log = one.log
    assert log is not None
    return {"experiment": one.label, "integrity": log.integrity, "lines": log.lines, "error_lines": log.error_lines,
            "torn_lines": log.torn_lines, "report_blocks": log.report_blocks, "contexts": log.contexts,
            "reasons": " ".join(log.reasons), "files": ", ".join(one.log_files)}  # fmt: skip
