"""The instruction level's share of the page: tables from nixnan's logs, one row an experiment and thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lab.report.figures import save, stacked_bars
from lab.report.page import Block, Figure, Points, Table
from lab.rooms.nan.config import AGAIN
from lab.rooms.nan.evidence import Evidence, read_json
from lab.rooms.nan.nixnan.categories import category, shown
from lab.rooms.nan.nixnan.logs import Log, Site
from lab.rooms.nan.nixnan.sass import diff, summary

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
CAUSES = [
    "experiment",
    "cause",
    "what",
    "confidence",
    "benign",
    "sites",
    "lines",
    "functions",
    "why",
    "file",
    "line",
    "raw",
]
CLASSES = ["experiment", "kind", "birth", "transit", "source_only", "unknown"]
DIFFERENCES = [
    "experiment",
    "against",
    "sites",
    "common",
    "jaccard",
    "appeared",
    "vanished",
    "moved",
    "noise_jaccard",
    "beyond_noise",
    "verdict",
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
        return {
            "sass_instructions": self.instructions,
            "sass_evidence": self.evidence,
            "sass_integrity": self.integrity,
            "sass_causes": self.causes,
            "sass_classes": self.classes,
            "sass_differences": self.differences,
        }

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
        caption = "The worst line of each site as it stands in its log, sites with NaN first, then by lines"
        return [Table(self.evidence, caption, "tables/sass_evidence.csv", open_rows=12, limit=300)]

    def coverage_blocks(self) -> list[Block]:
        return [Points(self.coverage)] if self.coverage else []


def sass_tables(evidence: Sequence[Evidence]) -> SassTables:
    """Tables of all logs that could be read; empty ones where there is none."""
    logged = [one for one in evidence if one.log is not None]
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("instructions", "evidence", "integrity", "causes", "classes")
    }
    covered: dict[str, list[str]] = {}
    for one in logged:
        assert one.log is not None
        told = summary(one.log, compute_capability=_capability(one))
        rows["instructions"] += _instructions(one.label, one.log)
        rows["evidence"] += _evidence(one.label, one.log)
        rows["integrity"].append(_integrity(one))
        rows["causes"] += _causes(one.label, told["causes"])
        rows["classes"] += [
            {"experiment": one.label, "kind": kind, **row} for kind, row in told["classes"].items()
        ]
        for sentence in (told["coverage"]["statement"], *told["coverage"]["warnings"]):
            covered.setdefault(sentence, []).append(one.label)
    differences, sentences = _differences(logged)
    return SassTables(
        instructions=pd.DataFrame(rows["instructions"], columns=INSTRUCTIONS).astype({"operand": "Int64"}),
        evidence=pd.DataFrame(rows["evidence"], columns=EVIDENCE),
        integrity=pd.DataFrame(rows["integrity"], columns=INTEGRITY),
        causes=pd.DataFrame(rows["causes"], columns=CAUSES),
        classes=pd.DataFrame(rows["classes"], columns=CLASSES),
        differences=differences,
        coverage=[f"{', '.join(labels)}: {sentence}" for sentence, labels in covered.items()],
        sentences=[*_harmful(rows["causes"]), *sentences],
    )


def _capability(one: Evidence) -> str | None:
    """The GPU's, where the workload left it; without it, what holds for every GPU is told."""
    if one.folder is None or one.published or not (one.folder / "environment.json").exists():
        return None
    found: str | None = read_json(one.folder / "environment.json").get("compute_capability")
    return found


def _causes(label: str, causes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each cause with the first line that shows it."""
    rows = []
    for cause in causes:
        shows: dict[str, Any] = (
            cause["evidence"][0] if cause["evidence"] else {"file": "", "line": None, "raw": ""}
        )
        rows.append(
            {
                "experiment": label,
                **{name: cause[name] for name in ("cause", "what", "confidence", "sites", "lines", "why")},
                "benign": "yes" if cause["benign"] else "no",
                "functions": ", ".join(shown(name) for name in cause["functions"]),
                "file": Path(shows["file"]).name,
                "line": shows["line"],
                "raw": shows["raw"],
            }
        )
    return rows


def _harmful(causes: Sequence[dict[str, Any]]) -> list[str]:
    """The causes that the instructions show with high confidence and that are no masking."""
    found: dict[str, list[str]] = {}
    for row in causes:
        if row["confidence"] == "high" and row["benign"] == "no":
            found.setdefault(row["what"], []).append(
                f"{row['experiment']} ({row['sites']} sites, line {row['line']} of {row['file']})"
            )
    return [f"Instructions show {what}: {', '.join(where)}." for what, where in found.items()]


def _differences(logged: Sequence[Evidence]) -> tuple[pd.DataFrame, list[str]]:
    """Each log's sites against the baseline's, with the baseline's own repeat as the noise floor where there is one."""
    by_name = {one.experiment: one for one in logged}
    base, again = by_name.get("baseline"), by_name.get(AGAIN)
    if base is None or base.log is None:
        return pd.DataFrame([], columns=DIFFERENCES), []
    noise = again.log if again else None
    rows = []
    for one in logged:
        if one in (base, again) or one.log is None:
            continue
        found = diff(base.log, one.log, noise)
        rows.append(
            {
                "experiment": one.label,
                "against": base.label,
                "sites": found["sites_b"],
                "common": found["common"],
                "jaccard": found["jaccard"],
                "appeared": found["appeared_count"],
                "vanished": found["vanished_count"],
                "moved": found["moved_count"],
                "noise_jaccard": 1 - found["noise"]["distance"] if found["noise"] else None,
                "beyond_noise": {True: "yes", False: "no", None: "not judged"}[found["beyond_noise"]],
                "verdict": found["verdict"],
            }
        )
    same = [row["experiment"] for row in rows if row["beyond_noise"] == "no"]
    said = [f"Indistinguishable from the baseline by their sites: {', '.join(same)}."] if same else []
    if rows and noise is None:
        said.append(
            "There is no repeated baseline: how many sites differ by chance is not known, so no difference is judged."
        )
    return pd.DataFrame(rows, columns=DIFFERENCES), said


def _instructions(label: str, log: Log) -> list[dict[str, Any]]:
    cells = sorted(log.cells, key=lambda cell: -cell.lines)
    return [
        {
            "experiment": label,
            "opcode": cell.opcode,
            "operand": cell.operand,
            "type": cell.label,
            "kinds": ", ".join(cell.kinds),
            "lines": cell.lines,
        }
        for cell in cells
    ]


def _evidence(label: str, log: Log) -> list[dict[str, Any]]:
    """Sites with NaN first, then those with most lines."""

    def weight(site: Site) -> tuple[bool, int]:
        return "NaN" not in site.kinds, -site.lines

    return [
        {
            "experiment": label,
            "file": Path(site.file).name,
            "line": site.line,
            "kinds": ", ".join(site.kinds),
            "category": category(site.function),
            "function": shown(site.function),
            "lines_of_site": site.lines,
            "raw": site.raw,
        }
        for site in sorted(log.sites, key=weight)[:MOST_EVIDENCE]
    ]


def _integrity(one: Evidence) -> dict[str, Any]:
    log = one.log
    assert log is not None
    return {
        "experiment": one.label,
        "integrity": log.integrity,
        "lines": log.lines,
        "error_lines": log.error_lines,
        "torn_lines": log.torn_lines,
        "report_blocks": log.report_blocks,
        "contexts": log.contexts,
        "reasons": " ".join(log.reasons),
        "files": ", ".join(one.log_files),
    }
