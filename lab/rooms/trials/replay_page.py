"""The page, the tables and the lines of a replay, by the verdict of `lab same` over its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from lab.compare.same.steps import Place, Record, folders_of, gather, judge_steps
from lab.compare.same.steps_text import answer, missing, notes_of, sentences
from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.words import printable
from lab.report.page import write_page
from lab.report.parts import Card, Page, Points, Section, Status, Table
from lab.report.provenance import provenance
from lab.report.tables import terminal_table, write_csv
from lab.rooms.trials.replay import CONFIG, read_replay

MOST_NOTES = 40
FOOTNOTES = (
    "Checksums cover every bit of a tensor and its place; -0.0 differs from 0.0. Different tensors have "
    "equal checksums with a chance of 2^-64.",
    "A difference is made where the inputs were equal and the output was not. Everything after it inherits.",
    "Code between a model's output and the call of backward (the loss) is seen by the gradient that enters "
    "the model.",
)


def report(folder: Path, out: Path, run: Run | None) -> Findings:
    """Tables and report.html into `out`. Raises BadDataError where no record can be read."""
    config = read_replay(folder / CONFIG) if (folder / CONFIG).exists() else None
    steps = run.manifest.steps if run else ()
    places = [(one.step.name, run.folder(one.step)) for one in steps] if run else folders_of(folder)
    records, problems = gather(places)
    verdict = judge_steps(records)
    asked = {name: getattr(config, name) for name in ("runs", "steps", "repeats")} if config else {}
    ended_badly = [one.step.name for one in steps if one.outcome is None or not one.outcome.ok]
    lacking = [*(f"{name} did not end well" for name in ended_badly), *problems, *missing(verdict, **asked)]
    lines = sentences(verdict)
    divergences = pd.DataFrame([_divergence(place) for place in verdict.places])
    frames = {
        "divergences": (divergences, "The first place of each comparison, earliest first"),
        "records": (pd.DataFrame([_record(record) for record in records]), "One row per run and rank"),
    }
    files, tables = [], []
    for name, (frame, caption) in frames.items():
        if len(frame):
            files.append(write_csv(frame, out / f"tables/{name}.csv"))
            tables.append(Table(frame, caption, f"tables/{name}.csv"))
    agreeing = [f"Agree in every bit: {', '.join(group)}." for group in verdict.groups if len(group) > 1]
    notes = [f"{record.name}: {text}" for record in records for text in notes_of(record)]
    status: Status = "fail" if verdict.outcome != "bitwise" else "warn" if lacking else "ok"
    page = Page(
        title=f"Replay {run.manifest.id if run else folder.resolve().name}",
        question="Does the same step give the same bits again, and where is the first that differs?",
        verdict=lines,
        status=status,
        cards=[
            Card("Verdict", verdict.outcome, "tables/records.csv"),
            Card("Steps", str(verdict.steps), "tables/records.csv", note=f"{verdict.repeats} repeats"),
            Card("Tensors", f"{verdict.rows:,}", "tables/records.csv"),
        ],
        sections=[Section("Records", tables), Section("Notes", [Points([*agreeing, *notes[:MOST_NOTES]])])],
        provenance=provenance(folder, run.manifest if run else None),
        footnotes=FOOTNOTES,
        room="trials",
        badge="" if status == "ok" else verdict.outcome,
    )
    files.append(write_page(page, out / "report.html"))
    shown = [*lines, ""]
    if len(divergences) > 1:
        columns = ["step", "rank", "direction", "module", "what", "compared"]
        shown += [terminal_table(divergences[columns].head(6), width=140), ""]
    terminal = "\n".join([*shown, f"report: {files[-1]}"])
    return Findings(lines, status, files, terminal, lacking, answer=answer(verdict))


def _divergence(place: Place) -> dict[str, Any]:
    return {
        **{name: getattr(place, name) for name in ("step", "rank", "direction", "module")},
        "what": f"{place.kind_text} {place.op}",
        "node": place.node,
        "shape": f"{place.dtype}[{','.join(map(str, place.shape))}]",
        "inputs": {True: "equal", False: "differ", None: "not recorded"}[place.equal_inputs],
        "inputs_differ_on": ", ".join(map(str, place.inputs_of)),
        "compared": " / ".join(place.between),
        "switch": place.switch or "",
    }


def _record(record: Record) -> dict[str, Any]:
    names = ("host", "device", "uuid", "torch", "threads", "model", "level")
    return {
        "run": record.run,
        "rank": record.rank,
        **{name: printable(str(record.recording.meta.get(name, ""))) for name in names},
        "steps": record.recording.end.get("steps"),
        "tensors": len(record.recording.rows),
    }
