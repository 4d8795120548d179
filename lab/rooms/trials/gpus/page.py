"""The page, the tables and the lines of a comparison of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.words import plural, printable
from lab.errors import BadDataError
from lab.report.page import write_page
from lab.report.parts import Card, Page, Points, Section, Status, Table
from lab.report.provenance import provenance
from lab.report.tables import terminal_table, write_csv
from lab.rooms.trials.gpus.config import CONFIG, VISITS, Visits, read_gpus, read_visits
from lab.rooms.trials.gpus.judge import Finding, judge


def report(folder: Path, out: Path, run: Run | None) -> Findings:
    """Tables and report.html into `out`. Raises BadDataError where no round can be read."""
    rounds, lacking = gather(folder)
    finding = judge(rounds)
    lacking += missing(finding, rounds)
    verdict = sentences(finding, rounds)
    checks, visits, suspects = _checks(finding), _visits(rounds), _suspects(finding)
    frames = {"checks": checks, "visits": visits, **({"suspects": suspects} if finding.suspects else {})}
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in frames.items()]
    bad = bool(finding.suspects or finding.open_pairs)
    status: Status = "fail" if bad or not finding.tested else "warn" if lacking else "ok"
    sections = [
        Section("Checks", [Table(checks, "One row per GPU and check, over all rounds", "tables/checks.csv")]),
        Section("Visits", [Table(visits, "One row per visit", "tables/visits.csv")]),
        Section("Counters", [Points(_counters(rounds))]),
    ]
    if finding.suspects:
        table = Table(suspects, "Evidence against a GPU", "tables/suspects.csv")
        sections.insert(0, Section("Suspects", [table]))
    page = Page(
        title=f"GPUs {run.manifest.id if run else folder.resolve().name}",
        question="Does one GPU compute other bits than the others, slower, or with errors?",
        verdict=verdict,
        status=status,
        cards=[
            Card("GPUs tested", str(len(finding.tested)), "tables/checks.csv"),
            Card("Suspects", str(len({suspect.uuid for suspect in finding.suspects})), "tables/checks.csv"),
        ],
        sections=sections,
        provenance=provenance(folder, run.manifest if run else None),
        room="trials",
        badge="no GPU tested" if not finding.tested else "",
    )
    files.append(write_page(page, out / "report.html"))
    shown = terminal_table(
        checks[["uuid", "check", "repeats", "odd", "median_ms", "ratio"]].head(40), width=140
    )
    terminal = "\n".join([*verdict, "", shown, "", f"report: {files[-1]}"])
    return Findings(verdict, page.status, files, terminal, lacking, answer=answer(finding))


def gather(folder: Path) -> tuple[list[Visits], list[str]]:
    rounds, problems = [], []
    for path in sorted(folder.glob(f"steps/*/{VISITS}")):
        try:
            rounds.append(read_visits(path))
        except BadDataError as error:
            problems.append(f"{path.parent.name}: {error.problem}")
    if not rounds:
        raise BadDataError("no round of visits", location=folder)
    wanted = read_gpus(folder / CONFIG).rounds
    if len(rounds) < wanted:
        problems.append(f"{len(rounds)} of {plural(wanted, 'round')} have visits")
    return rounds, problems


def missing(finding: Finding, rounds: Sequence[Visits]) -> list[str]:
    lines = []
    if not finding.tested:
        lines.append("no GPU was tested: the checks ran on the CPU, or on no GPU to their end")
    elif len(finding.tested) == 1:
        lines.append("one GPU was tested: it was compared with itself over time, and with no other")
    kinds = {(v.name, v.torch) for one in rounds for v in one.visits if v.uuid in finding.tested}
    alone = [
        name
        for name, _ in kinds
        if len({v.uuid for one in rounds for v in one.visits if v.name == name}) == 1
    ]
    if len(kinds) > 1 and alone:
        lines.append(f"the only GPU of its kind, compared with no other: {', '.join(map(printable, alone))}")
    if finding.tested and all(one.no_health for one in rounds):
        lines.append(f"ECC and remapped rows were not read: {printable(rounds[0].no_health)}")
    return lines


def sentences(finding: Finding, rounds: Sequence[Visits]) -> list[str]:
    """The verdict first."""
    gpus, times = len(finding.tested), plural(len(rounds), "round")
    if not finding.tested:
        return [f"No GPU was tested ({times}).", *_why(finding)]
    lines = []
    for uuid in dict.fromkeys(suspect.uuid for suspect in finding.suspects):
        whys = [printable(suspect.evidence) for suspect in finding.suspects if suspect.uuid == uuid]
        further = f" (and {len(whys) - 3} more)" if len(whys) > 3 else ""
        lines.append(f"Suspect: {printable(uuid)}: {'; '.join(whys[:3])}{further}.")
    lines += [f"{open_pair}." for open_pair in finding.open_pairs]
    checked = sum(row.repeats for row in finding.rows)
    if not lines:
        alike = "agree in all bits" if gpus > 1 else "repeats itself in all bits"
        work = f"{plural(checked, 'repeat')} of {plural(len(finding.rows), 'check')}"
        lines.append(f"{plural(gpus, 'GPU')} {alike}: {work}, {times}.")
    return lines


def _why(finding: Finding) -> list[str]:
    return [f"{printable(suspect.uuid)}: {printable(suspect.evidence)}." for suspect in finding.suspects[:5]]


def _counters(rounds: Sequence[Visits]) -> list[str]:
    latest = rounds[-1]
    lines = [
        f"{uuid}: " + ", ".join(f"{name} {value}" for name, value in sorted(numbers.items()))
        for uuid, numbers in latest.health.items()
    ]
    if latest.no_health:
        lines.append(f"ECC, remapped rows and slowdowns: not read ({latest.no_health}).")
    if latest.xids is None:
        lines.append(f"Xid events: not read ({latest.no_xids or 'no kernel log'}).")
    else:
        lines += [f"{where}: Xid {event}" for where, events in latest.xids.items() for event in events]
        if not latest.xids:
            lines.append("Xid events: none in the kernel's log that is kept.")
    return [printable(line) for line in lines]


def answer(finding: Finding) -> dict[str, Any]:
    return {
        "tested": finding.tested,
        "suspects": [{"uuid": s.uuid, "kind": s.kind, "why": s.evidence} for s in finding.suspects],
        "open": finding.open_pairs,
    }


def _checks(finding: Finding) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame([asdict(row) for row in finding.rows])
    return (
        frame
        if len(frame)
        else pd.DataFrame(columns=["uuid", "check", "repeats", "odd", "median_ms", "ratio"])
    )


def _suspects(finding: Finding) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame([asdict(suspect) for suspect in finding.suspects])
    return frame


def _visits(rounds: Sequence[Visits]) -> pd.DataFrame:
    rows = [
        {
            "round": v.round,
            "order": v.order,
            "uuid": v.uuid,
            "name": v.name,
            "host": v.host,
            "started_utc": v.started_utc,
            "sm_mhz_before": v.state_before.get("sm_clock_mhz"),
            "sm_mhz_after": v.state_after.get("sm_clock_mhz"),
            "temperature_c_before": v.state_before.get("temperature_c"),
            "temperature_c_after": v.state_after.get("temperature_c"),
            "throttle_bits_after": v.state_after.get("throttle_bits"),
            "error": v.error,
        }
        for visits in rounds
        for v in visits.visits
    ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame
