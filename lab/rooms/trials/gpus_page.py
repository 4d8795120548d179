"""From the visits of GPUs to which of them differs from the others; its page, tables and lines."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from lab.compare.same.places import majority
from lab.core.files import read_json
from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.step import Status as StepStatus
from lab.core.words import plural, printable
from lab.errors import BadDataError, LabError
from lab.recordings.gpu_state import REASONS, read_state
from lab.report.page import write_page
from lab.report.parts import Card, Page, Section, Status, Table
from lab.report.provenance import provenance
from lab.report.tables import terminal_table, write_csv
from lab.rooms.trials.analyze import sensors
from lab.rooms.trials.gpus import SLOWER, VISIT, Check, Visit

CAPTIONS = {
    "suspects": "Evidence against a GPU",
    "checks": "One row per GPU and check, over all rounds",
    "visits": "One row per visit",
}


# Counter -> what it says where it is not 0; correctable errors are normal.
SERIOUS = {
    "ecc_uncorrectable": "{} uncorrectable ECC errors",
    "rows_remapped_uncorrectable": "{} rows remapped after uncorrectable errors",
    "pages_retired": "{} pages retired after double-bit errors",
    "remap_pending": "a row remapping that waits for a reset",
    "remap_failed": "a row remapping that failed",
}
SLOWDOWNS = 0x8 | 0x40 | 0x80  # of REASONS, what no program's load explains


class Row(NamedTuple):
    """One GPU and one check over all visits; `odd`: repeats whose bits were not those of the most."""

    uuid: str
    name: str
    check: str
    repeats: int
    odd: int
    distinct: int
    median_ms: float | None
    ratio: float | None  # of its median time to the median of the other GPUs' medians
    error: str


class Suspect(NamedTuple):
    """One GPU and why; kind: bits, itself, slower, error, counters."""

    uuid: str
    kind: str
    evidence: str


class Finding(NamedTuple):
    """tested: UUIDs of GPUs with at least one check that ended. open_pairs: GPUs that differ, no majority."""

    rows: list[Row]
    suspects: list[Suspect]
    tested: list[str]
    open_pairs: list[str]


def judge(visits: Sequence[Visit], throttle_bits: Mapping[str, int] | None = None) -> Finding:
    """Equal GPUs (name, torch) against each other: bits by majority, times by the others' median.

    throttle_bits: by GPU, all that the driver saw set while it was visited.
    """
    tested = sorted({v.uuid for v in visits if v.device == "cuda" and any(c.bits for c in v.checks)})
    finding = Finding([], [], tested, [])
    tables: dict[tuple[str, ...], dict[str, list[Check]]] = {}
    for visit in visits:
        for check in visit.checks:
            kind = (visit.name, visit.device, visit.torch, check.name)
            tables.setdefault(kind, {}).setdefault(visit.uuid, []).append(check)
        errors = [visit.error, *(f"{check.name}: {check.error}" for check in visit.checks if check.error)]
        finding.suspects.extend(
            Suspect(visit.uuid, "error", f"round {visit.round}: {error}") for error in errors if error
        )
    for (name, _, _, check_name), per_gpu in tables.items():
        _judge_check(name, check_name, per_gpu, finding)
    counted = [
        (v.uuid, text.format(v.counters[n]))
        for v in visits
        for n, text in SERIOUS.items()
        if v.counters.get(n)
    ]
    slowed = [
        (uuid, f"a {text}")
        for uuid, bits in (throttle_bits or {}).items()
        for bit, text in REASONS.items()
        if bits & bit & SLOWDOWNS
    ]
    concerns = dict.fromkeys([*counted, *slowed])
    finding.suspects.extend(Suspect(uuid, "counters", text) for uuid, text in concerns)
    return finding


def _judge_check(name: str, check: str, per_gpu: Mapping[str, list[Check]], finding: Finding) -> None:
    """Add the rows of one check on equal GPUs, and whom they accuse."""
    counts_of = {uuid: Counter(bits for c in checks for bits in c.bits) for uuid, checks in per_gpu.items()}
    # Each GPU has one vote, its most frequent bits: a GPU visited more often weighs no more.
    votes = [majority(counts.elements())[0] for counts in counts_of.values() if counts]
    usual, num_usual, sure = majority(votes) if votes else ("", 0, True)
    medians = {uuid: _median([ms for c in checks for ms in c.ms]) for uuid, checks in per_gpu.items()}
    for uuid, counts in counts_of.items():
        total, odd = counts.total(), sum(n for bits, n in counts.items() if bits != usual)
        own_ms = medians[uuid]
        others_ms = _median([ms for other, ms in medians.items() if other != uuid and ms is not None])
        ratio = own_ms / others_ms if own_ms and others_ms else None
        error = next((c.error for c in per_gpu[uuid] if c.error), "")
        finding.rows.append(Row(uuid, name, check, total, odd, len(counts), own_ms, ratio, error))
        evidence = {}
        if len(counts) > 1:
            repeats = plural(total, "repeat")
            evidence["itself"] = (
                f"{total - max(counts.values())} of {repeats} gave other bits than its own usual ones"
            )
        elif odd and sure:
            evidence["bits"] = f"its bits differ from those of {plural(num_usual, 'equal GPU')}"
        # Only these checks are long enough to time.
        is_timed = check.startswith(("matmul", "memory")) and uuid in finding.tested
        if is_timed and ratio is not None and ratio > SLOWER:
            evidence["slower"] = f"{ratio:.2f} times the others' median time"
        finding.suspects.extend(Suspect(uuid, kind, f"{check}: {text}") for kind, text in evidence.items())
    if not sure:
        names = " and ".join(sorted(counts_of))
        finding.open_pairs.append(f"{check}: {names} differ, and which is wrong is open")


def _median(values: Sequence[float]) -> float | None:
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return statistics.median(positive) if positive else None


def report(out: Path, run: Run) -> Findings:
    """Tables and report.html into `out`. Raises BadDataError where no visit can be read."""
    visits, problems = gather(run)
    folders = {
        (str(r.step.labels["gpu"]), r.step.labels["round"]): run.folder(r.step) for r in run.manifest.steps
    }
    finding = judge(visits, _throttle_bits(folders))
    lacking = problems + missing(finding, visits)
    verdict = sentences(finding, visits)
    checks = pd.DataFrame(finding.rows, columns=list(Row._fields))
    frames = {
        "suspects": pd.DataFrame(finding.suspects),
        "checks": checks,
        "visits": pd.DataFrame([_visit_row(visit, folders[visit.uuid, visit.round]) for visit in visits]),
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
                # Torch may have no UUID for it, and the file may be of another round.
                visits.append(msgspec.structs.replace(read, uuid=visit.uuid, round=visit.round))
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


def _throttle_bits(folders: Mapping[tuple[str, Any], Path]) -> dict[str, int]:
    """What slowed each GPU, by all samples that the driver took beside its visits."""
    bits: Counter[str] = Counter()
    for (uuid, _), folder in folders.items():
        if state := read_state(folder):
            samples = np.nan_to_num(state.values["throttle_bits"]).astype(np.int64)
            bits[uuid] |= int(np.bitwise_or.reduce(samples)) if len(samples) else 0
    return dict(bits)


def _visit_row(visit: Visit, folder: Path) -> dict[str, Any]:
    names = ("round", "order", "uuid", "name", "host", "started_utc", "error")
    return {**{name: getattr(visit, name) for name in names}, **sensors(folder), **visit.counters}
