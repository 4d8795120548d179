"""The page, the tables and the lines of a comparison of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.core.files import read_json
from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.step import Status as StepStatus
from lab.core.words import plural, printable
from lab.errors import BadDataError, LabError
from lab.report.page import write_page
from lab.report.parts import Card, Page, Section, Status, Table
from lab.report.provenance import provenance
from lab.report.tables import terminal_table, write_csv
from lab.rooms.trials.gpus.config import VISIT, Visit
from lab.rooms.trials.gpus.judge import Finding, Row, judge

CAPTIONS = {
    "suspects": "Evidence against a GPU",
    "checks": "One row per GPU and check, over all rounds",
    "visits": "One row per visit",
}


def report(out: Path, run: Run) -> Findings:
    """Tables and report.html into `out`. Raises BadDataError where no visit can be read."""
    visits, problems = gather(run)
    finding = judge(visits)
    lacking = problems + missing(finding, visits)
    verdict = sentences(finding, visits)
    checks = pd.DataFrame([asdict(row) for row in finding.rows], columns=list(Row.__annotations__))
    frames = {
        "suspects": pd.DataFrame([asdict(suspect) for suspect in finding.suspects]),
        "checks": checks,
        "visits": pd.DataFrame([_visit_row(visit) for visit in visits]),
    }
    frames = {name: frame for name, frame in frames.items() if name != "suspects" or len(frame)}
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in frames.items()]
    is_bad = bool(finding.suspects or finding.open_pairs or not finding.tested)
    status: Status = "fail" if is_bad else "warn" if lacking else "ok"
    page = Page(
        title=f"GPUs {run.manifest.id}",
        question="Does one GPU compute other bits than the others, slower, or with errors?",
        verdict=verdict,
        status=status,
        cards=[
            Card("GPUs tested", str(len(finding.tested)), "tables/checks.csv"),
            Card("Suspects", str(len({suspect.uuid for suspect in finding.suspects})), "tables/checks.csv"),
        ],
        sections=[
            Section(name.capitalize(), [Table(frame, CAPTIONS[name], f"tables/{name}.csv")])
            for name, frame in frames.items()
        ],
        provenance=provenance(run.root, run.manifest),
        room="trials",
        badge="no GPU tested" if not finding.tested else "",
    )
    files.append(write_page(page, out / "report.html"))
    columns = ["uuid", "check", "repeats", "odd", "median_ms", "ratio"]
    shown = terminal_table(checks[columns].head(40), width=140)
    terminal = "\n".join([*verdict, "", shown, "", f"report: {files[-1]}"])
    return Findings(verdict, status, files, terminal, lacking, answer=answer(finding))


def gather(run: Run) -> tuple[list[Visit], list[str]]:
    """Every visit once, one that failed with its error; and what cannot be read."""
    visits, problems = [], []
    for record in run.manifest.steps:
        step, outcome = record.step, record.outcome
        visit = Visit(str(step.labels["gpu"]), int(step.labels["round"]), int(step.labels["order"]))
        if outcome is None or outcome.status is StepStatus.interrupted:  # by a person: no GPU is to blame
            problems.append(f"{step.name} did not run to its end")
        elif outcome.ok:
            try:
                read = read_json(run.folder(step) / VISIT, Visit, "the visit")
                visits.append(msgspec.structs.replace(read, uuid=visit.uuid))  # torch may have no UUID for it
            except LabError as error:
                problems.append(f"{step.name}: {error.problem}")
        else:  # a GPU that hangs or falls off the bus is what is looked for
            visits.append(msgspec.structs.replace(visit, error=outcome.reason or outcome.status.value))
    if not visits:
        raise BadDataError("no visit of a GPU", location=run.root)
    return visits, problems


def missing(finding: Finding, visits: Sequence[Visit]) -> list[str]:
    """What the verdict does not cover."""
    lines = []
    if not finding.tested:
        lines.append("no GPU was tested: the checks ran on the CPU, or on no GPU to their end")
    elif len(finding.tested) == 1:
        lines.append("one GPU was tested: it was compared with itself over time, and with no other")
    # A visit that failed knows neither the GPU's name nor its counters; its others do.
    tested = [visit for visit in visits if visit.uuid in finding.tested and visit.checks]
    names = {visit.uuid: visit.name for visit in tested}
    alone = [name for name in sorted(set(names.values())) if list(names.values()).count(name) == 1]
    if len(set(names.values())) > 1 and alone:
        lines.append(f"the only GPU of its kind, compared with no other: {', '.join(map(printable, alone))}")
    unread = [visit for visit in tested if not visit.counters]
    if unread:
        lines.append(f"memory errors of {unread[0].uuid} were not read: {printable(unread[0].no_counters)}")
    return lines


def sentences(finding: Finding, visits: Sequence[Visit]) -> list[str]:
    """The verdict first."""
    num_gpus, rounds = len(finding.tested), plural(len({visit.round for visit in visits}), "round")
    lines = [] if num_gpus else [f"No GPU was tested ({rounds})."]
    for uuid in dict.fromkeys(suspect.uuid for suspect in finding.suspects):
        evidence = [printable(suspect.evidence) for suspect in finding.suspects if suspect.uuid == uuid]
        further = f" (and {len(evidence) - 3} more)" if len(evidence) > 3 else ""
        lines.append(f"Suspect: {printable(uuid)}: {'; '.join(evidence[:3])}{further}.")
    lines += [f"{open_pair}." for open_pair in finding.open_pairs]
    if not lines:
        alike = "agree in all bits" if num_gpus > 1 else "repeats itself in all bits"
        repeats = plural(sum(row.repeats for row in finding.rows), "repeat")
        lines.append(
            f"{plural(num_gpus, 'GPU')} {alike}: {repeats} of {plural(len(finding.rows), 'check')}, {rounds}."
        )
    return lines


def answer(finding: Finding) -> dict[str, Any]:
    return {
        "tested": finding.tested,
        "suspects": [{"uuid": s.uuid, "kind": s.kind, "why": s.evidence} for s in finding.suspects],
        "open": finding.open_pairs,
    }


def _visit_row(visit: Visit) -> dict[str, Any]:
    names = ("round", "order", "uuid", "name", "host", "started_utc", "error")
    return {
        **{name: getattr(visit, name) for name in names},
        **{f"{name}_before": value for name, value in visit.state_before.items()},
        **{f"{name}_after": value for name, value in visit.state_after.items()},
        **visit.counters,
    }
