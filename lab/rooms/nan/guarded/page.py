"""Records of guards -> tables, one page, and the lines on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from lab.core.plan import Findings
from lab.core.words import first_few, plural, ranks_text
from lab.report.page import write_page
from lab.report.parts import Card, Page, Points, Section, Status, Table
from lab.report.tables import terminal_table, write_csv
from lab.rooms.nan.guarded.read import (
    STEPS_BY,
    Event,
    Job,
    Mark,
    Record,
    Verdict,
    process_name,
    status_of,
    verdict_of,
)

QUESTION = "Where in the training step is the first NaN or infinity made, and on which rank?"
STATUS_OF: dict[str, Status] = {"clean": "ok", "partly-seen": "warn", "nothing-seen": "fail", "bad": "fail"}
BADGES = {
    "clean": "",
    "bad": "bad numbers found",
    "partly-seen": "not everything was seen",
    "nothing-seen": "nothing was seen",
}
FOOTNOTES = (
    "The verdict is the first stage of a step that held a bad number, then module, operator and rank; never "
    "a count. What is bad later in the same step has spread from there.",
    "A place that is marked as unsure is where the bad number was first seen; the reason is given.",
    "Infinities that are gone before loss and gradient are not faults. Neither are the steps that a gradient "
    "scaler leaves out while it finds its scale.",
    "Nothing is seen between two borders of modules unless the step was run again (on_bad='replay').",
)


def guarded_page(job: Job, out: Path, title: str, provenance: dict[str, dict[str, str]]) -> Findings:
    """Write tables and report.html into `out`."""
    records = [record for _, record in job.records]
    verdict = verdict_of(records, job.marks)
    sentences = sentences_of(verdict, records)
    frames = {
        "ranks": _ranks(records, job.marks),
        "events": _events(records),
        "headroom": _headroom(records),
    }
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in frames.items() if len(frame)]
    lacking = [*job.problems, *missing(verdict, records)]
    status: Status = STATUS_OF[verdict.status] if not lacking or verdict.status != "clean" else "warn"
    page = Page(
        title=title,
        question=QUESTION,
        verdict=sentences,
        status=status,
        cards=_cards(verdict, records),
        sections=_sections(frames, records, job.problems),
        provenance=provenance,
        footnotes=FOOTNOTES,
        room="nan",
        badge=BADGES[verdict.status],
    )
    files.append(write_page(page, out / "report.html"))
    shown = frames["ranks"][["process", "model", "status", "updates", "first", "unsure"]]
    return Findings(sentences, status, files, on_terminal(sentences, shown, files[-1]), lacking)


def on_terminal(sentences: Sequence[str], frame: pd.DataFrame, page: Path) -> str:
    """The first sentence, the others as points, a table, and where the page is."""
    points, shown = (f"- {sentence}" for sentence in sentences[1:]), terminal_table(frame, width=140)
    return "\n".join([sentences[0], *points, "", shown, "", f"report: {page}"])


def sentences_of(verdict: Verdict, records: Sequence[Record]) -> list[str]:
    """The verdict first; then what is near an edge, and what was not seen."""
    sentences = [_headline(verdict, records)]
    if verdict.first is not None:
        sentences += [f"{record}." for record in _details(verdict.first)]
    least_read = max(records, key=lambda record: record.unread_updates, default=None)
    if least_read is not None and least_read.unread_updates:
        sentences.append(
            f"Weights, buffers and state were not read after {least_read.unread_updates} of "
            f"{plural(least_read.updates, 'update')}: what was bad then, and overwritten before "
            "anything used it, was not seen."
        )
    skipped = sum(record.skipped_steps for record in records)
    if skipped:
        sentences.append(
            f"The gradient scaler left out {plural(skipped, 'step')}, as it does to find its scale."
        )
    sentences += [f"Rank {record.rank}: {record.alarm}." for record in records if record.alarm]
    absorbed = {place: times for record in records for place, times in record.absorbed.items()}
    if absorbed:
        places = first_few(list(absorbed))
        sentences.append(f"Infinities that were gone before loss and gradient, as of masks: {places}.")
    if verdict.record is not None and verdict.record.steps_by in ("weights", "backward"):
        sentences.append(f"Steps are {STEPS_BY[verdict.record.steps_by]}.")
    near = dict.fromkeys(text for record in records for text in record.headroom_sentences)
    sentences += [f"{text}." for text in list(near)[:8]]
    gaps = dict.fromkeys([*verdict.gaps, *(text for record in records for text in record.not_seen)])
    sentences += [f"Not seen: {text}." for text in list(gaps)[:12]]
    sentences += [f"{plural(len(gaps) - 12, 'more gap')}: see the page."] if len(gaps) > 12 else []
    return sentences


def _headline(verdict: Verdict, records: Sequence[Record]) -> str:
    world = max((record.world for record in records), default=0)
    num_processes = len({record.process for record in records})
    ranks = plural(world, "rank") if world > 1 else plural(num_processes, "process", "processes")
    ranks = f"{ranks} with {plural(len(records), 'model')}"
    updates = plural(max((record.updates for record in records), default=0), "update")
    if verdict.first is not None:
        rank = (
            f", rank {verdict.rank} of {verdict.record.world}"
            if verdict.record and verdict.record.world > 1
            else ""
        )
        return f"Step {verdict.first.step}: {verdict.first}{rank}."
    if verdict.status == "bad":
        return "A gradient scaler could not find its scale."
    if verdict.status == "clean":
        return f"No NaN and no infinity in {updates} on {ranks}, in any stage."
    if verdict.status == "nothing-seen":
        return "Nothing was seen: no forward, no gradient and no update of a watched model."
    return f"No NaN and no infinity in what was seen of {updates} on {ranks}; not everything was seen."


def _details(event: Event) -> list[str]:
    sentences = []
    if event.reason:
        sentences.append(f"Why: {event.reason}")
    if event.unsure:
        sentences.append(f"The place is not certain: {event.unsure}")
    if event.op is not None:
        shapes = ", ".join(
            f"{shape} {dtype}" for shape, dtype in zip(event.op.shapes, event.op.dtypes, strict=False)
        )
        sentences.append(f"Its inputs ({event.op.inputs}): {shapes or 'none that is a tensor'}")
    elif event.op_missing:
        sentences.append(f"No operator is named: {event.op_missing}")
    if event.extremes:
        sentences.append(f"Before it: {'; '.join(event.extremes)}")
    return sentences


def missing(verdict: Verdict, records: Sequence[Record]) -> list[str]:
    """What the analysis rests on and does not have."""
    gaps = []
    if verdict.missing_ranks:
        names = ", ".join(map(str, verdict.missing_ranks[:16]))
        gaps.append(f"no record of {plural(len(verdict.missing_ranks), 'rank')}: {names}")
    cut = [record.rank for record in records if not record.ended]
    if cut:
        gaps.append(
            f"{ranks_text(cut, limit=16)}: the process did not end in order; the record is of its last write"
        )
    gaps += verdict.gaps[:16]
    if verdict.status in ("nothing-seen", "partly-seen"):
        gaps.append(f"the guard's status is {verdict.status}")
    return gaps


def _ranks(records: Sequence[Record], marks: Mapping[str, Mark]) -> pd.DataFrame:
    """One row per process and model; a process without a model has a row, too."""
    rows = [
        {
            "process": process_name(marks[record.process])
            if record.process in marks
            else f"rank {record.rank}",
            "rank": record.rank,
            "host": record.host,
            "model": record.model,
            "status": status_of(record),
            "strategy": record.strategy,
            "updates": record.updates,
            "first": f"step {record.first.step}: {record.first.place}" if record.first else "",
            "unsure": record.first.unsure if record.first else "",
            "seen": ", ".join(f"{stage} {count}" for stage, count in sorted(record.looked_at.items())),
            "torch": record.torch,
        }
        for record in records
    ]
    with_records = {record.process for record in records}
    for key, mark in marks.items():
        if key not in with_records and not (mark.is_idle and (mark.helper or mark.forked)):
            status = "no model" if mark.ended else "no end"
            row = {"process": process_name(mark), "rank": mark.rank, "model": "", "status": status}
            rows.append({**dict.fromkeys(RANK_COLUMNS, ""), **row, "updates": mark.updates})
    table: pd.DataFrame = pd.DataFrame(rows, columns=RANK_COLUMNS)
    return table


RANK_COLUMNS = ["process", "rank", "host", "model", "status", "strategy", "updates"]
RANK_COLUMNS += ["first", "unsure", "seen", "torch"]


def _events(records: Sequence[Record]) -> pd.DataFrame:
    rows = []
    for record in records:
        for step in record.steps:
            for event in sorted(step.events, key=lambda record: record.time):
                row = {"rank": record.rank, "step": event.step, "stage": event.stage, "place": event.place}
                row |= {"tensor": event.name, "nan": _count(event.nan), "inf": _count(event.inf)}
                row |= {"shape": event.shape, "dtype": event.dtype, "why": event.reason or event.unsure}
                rows.append(row | {"operator": str(event.op) if event.op else event.op_missing})
    table: pd.DataFrame = pd.DataFrame(rows)
    return table


def _count(value: float) -> str:
    """-1 is not counted."""
    return "" if value < 0 else f"{int(value)}"


def _headroom(records: Sequence[Record]) -> pd.DataFrame:
    table: pd.DataFrame = pd.DataFrame(
        [{"rank": record.rank, **peak} for record in records for peak in record.headroom]
    )
    return table


def _cards(verdict: Verdict, records: Sequence[Record]) -> list[Card]:
    updates = max((record.updates for record in records), default=0)
    cards = [Card("Status", verdict.status, "tables/ranks.csv")]
    cards += [Card("Updates", str(updates), "tables/ranks.csv")]
    if (event := verdict.first) is not None:
        cards += [Card("First bad stage", event.stage, "tables/events.csv", note=event.place)]
        cards += [Card("First bad step", str(event.step), "tables/events.csv")]
    return cards


def _sections(
    frames: dict[str, pd.DataFrame], records: Sequence[Record], problems: Sequence[str]
) -> list[Section]:
    captions = {
        "ranks": ("Ranks", "One row per rank and model: its own verdict, and how many tensors it looked at"),
        "events": ("What was bad, in order of time", "Per rank; the first row of a rank is its verdict"),
        "headroom": ("Headroom", "Largest magnitude of each class and type"),
    }
    sections = [
        Section(
            captions[name][0],
            [Table(frame, captions[name][1], f"tables/{name}.csv", pills={**STATUS_OF}, open_rows=30)],
        )
        for name, frame in frames.items()
        if len(frame)
    ]
    notes = [f"rank {record.rank}: {text}" for record in records for text in record.notes]
    if problems or notes:
        sections.append(Section("Notes", [Points([*problems, *notes[:40]])]))
    return sections
