"""The instruction level's tables, one row per experiment and quantity, from nixnan's logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.words import plural
from lab.rooms.nan.config import AGAIN
from lab.rooms.nan.evidence import Evidence, read_json
from lab.rooms.nan.nixnan.grammar import category, shown
from lab.rooms.nan.nixnan.judging.causes import causes
from lab.rooms.nan.nixnan.judging.diff import diff
from lab.rooms.nan.nixnan.log import Log, Site, class_table, coverage, instructions

COLUMNS = {
    "sass_instructions": "experiment opcode operand type kinds lines",
    "sass_evidence": "experiment file line kinds category function lines_of_site raw",
    "sass_integrity": "experiment integrity lines error_lines torn_lines report_blocks contexts reasons "
    "files",
    "sass_causes": "experiment cause what confidence benign sites lines functions why file line raw",
    "sass_classes": "experiment kind birth transit source_only unknown",
    "sass_differences": "experiment against sites common jaccard appeared vanished moved noise_jaccard "
    "beyond_noise verdict",
}
MOST_EVIDENCE = 40  # sites per experiment whose raw lines are shown


@dataclass(frozen=True)
class SassTables:
    """Frames by the name of their CSV; `sentences` join the page's verdict."""

    frames: dict[str, pd.DataFrame]
    coverage: list[str]
    sentences: list[str]


def sass_tables(evidence: Sequence[Evidence]) -> SassTables:
    """Tables of all logs that could be read; without one they are empty."""
    logged = [experiment for experiment in evidence if experiment.log is not None]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in COLUMNS}
    covered: dict[str, list[str]] = {}
    for experiment in logged:
        log, label = experiment.log, experiment.label
        assert log is not None
        instruction_list = instructions(log)
        rows["sass_instructions"] += _instructions(label, log)
        rows["sass_evidence"] += _evidence(label, log)
        rows["sass_integrity"].append(_integrity(experiment))
        rows["sass_causes"] += [
            {
                **row,
                "experiment": label,
                "benign": "yes" if row["benign"] else "no",
                "functions": ", ".join(map(shown, row["functions"])),
                "file": Path(row["file"]).name,
            }
            for row in causes(instruction_list)
        ]
        rows["sass_classes"] += [
            {"experiment": label, "kind": kind, **row} for kind, row in class_table(instruction_list).items()
        ]
        for sentence in coverage(log, compute_capability=_capability(experiment)):
            covered.setdefault(sentence, []).append(label)
    rows["sass_differences"], sentences = _differences(logged)
    frames = {name: pd.DataFrame(rows[name], columns=names.split()) for name, names in COLUMNS.items()}
    frames["sass_instructions"] = frames["sass_instructions"].astype({"operand": "Int64"})
    return SassTables(
        frames=frames,
        coverage=[f"{', '.join(labels)}: {sentence}" for sentence, labels in covered.items()],
        sentences=[*_harmful(rows["sass_causes"]), *sentences],
    )


def _capability(experiment: Evidence) -> str | None:
    """The GPU's compute capability, if the workload left it."""
    if (
        experiment.folder is None
        or experiment.published
        or not (experiment.folder / "environment.json").exists()
    ):
        return None
    capability: str | None = read_json(experiment.folder / "environment.json").get("compute_capability")
    return capability


def _harmful(cause_rows: Sequence[dict[str, Any]]) -> list[str]:
    """Causes with high confidence that are not benign."""
    kernels: dict[str, list[str]] = {}
    for row in cause_rows:
        if row["confidence"] == "high" and row["benign"] == "no":
            kernels.setdefault(row["what"], []).append(
                f"{row['experiment']} ({plural(row['sites'], 'site')}, line {row['line']} of {row['file']})"
            )
    return [f"Instructions show {what}: {', '.join(kernel)}." for what, kernel in kernels.items()]


def _differences(logged: Sequence[Evidence]) -> tuple[list[dict[str, Any]], list[str]]:
    """Each log's sites against the baseline's; the baseline's repeat, if there is one, is the noise floor."""
    by_name = {experiment.experiment: experiment for experiment in logged}
    base, again = by_name.get("baseline"), by_name.get(AGAIN)
    if base is None or base.log is None:
        return [], []
    noise = again.log if again else None
    rows = []
    for experiment in logged:
        if experiment in (base, again) or experiment.log is None:
            continue
        difference = diff(base.log, experiment.log, noise)
        rows.append(
            {
                "experiment": experiment.label,
                "against": base.label,
                "sites": difference["sites_b"],
                "common": difference["common"],
                "jaccard": difference["jaccard"],
                "appeared": difference["appeared_count"],
                "vanished": difference["vanished_count"],
                "moved": difference["moved_count"],
                "noise_jaccard": 1 - difference["noise"]["distance"] if difference["noise"] else None,
                "beyond_noise": {True: "yes", False: "no", None: "not judged"}[difference["beyond_noise"]],
                "verdict": difference["verdict"],
            }
        )
    same = [row["experiment"] for row in rows if row["beyond_noise"] == "no"]
    sentences = [f"Within noise of the baseline by their sites: {', '.join(same)}."] if same else []
    if rows and noise is not None and not (noise.integrity == base.log.integrity == "complete"):
        sentences.append("The baseline or its repeat is not complete: the noise floor is missing.")
    if rows and noise is None:
        sentences.append("The baseline was not repeated: without the noise floor, no difference is judged.")
    return rows, sentences


def _instructions(label: str, log: Log) -> list[dict[str, Any]]:
    cells = sorted(log.cells.items(), key=lambda item: -item[1])
    return [
        {
            "experiment": label,
            "opcode": opcode,
            "operand": operand,
            "type": label_of_type,
            "kinds": ", ".join(kinds),
            "lines": lines,
        }
        for (opcode, operand, label_of_type, kinds), lines in cells
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


def _integrity(experiment: Evidence) -> dict[str, Any]:
    log = experiment.log
    assert log is not None
    return {
        "experiment": experiment.label,
        "integrity": log.integrity,
        "lines": log.lines,
        "error_lines": log.error_lines,
        "torn_lines": log.torn_lines,
        "report_blocks": log.report_blocks,
        "contexts": log.contexts,
        "reasons": " ".join(log.reasons),
        "files": ", ".join(experiment.log_files),
    }
