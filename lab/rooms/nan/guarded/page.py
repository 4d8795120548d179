"""Records of guards -> tables, one page, and the lines on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from lab.core.words import first_few, plural, ranks_text
from lab.report.page import write_page
from lab.report.parts import Card, Page, Points, Section, Status, Table
from lab.report.tables import terminal_table, write_csv
from lab.rooms.nan.guarded.join import Verdict, process_name, status_of, verdict_of
from lab.rooms.nan.guarded.read import Event, Job, Mark, Op, Planted, Record

QUESTION = "Where in the training step is the first NaN or infinity made, and on which rank?"
STATUS_OF: dict[str, Status] = {"clean": "ok", "partly-seen": "warn", "nothing-seen": "fail", "bad": "fail"}
BADGES = {
    "clean": "",
    "bad": "bad numbers found",
    "partly-seen": "not everything was seen",
    "nothing-seen": "nothing was seen",
}
PILLS: dict[str, str] = {**STATUS_OF}
STEPS_BY = {
    "weights": "Steps are counted by writes to the weights: no optimizer of torch has run.",
    "backward": "Steps are counted by calls of backward: no optimizer of torch has run.",
}
FOOTNOTES = (
    "The verdict is the first stage of a step that held a bad number, then module, operator and rank; never "
    "a count. What is bad later in the same step has spread from there.",
    "A place that is marked as unsure is where the bad number was first seen; the reason is given.",
    "Infinities that are gone before loss and gradient are no faults. A gradient scaler's left-out steps are none "
    "while it finds its scale.",
    "Nothing is seen between two borders of modules unless the step was run again (on_bad='replay').",
)


def guarded_page(
    job: Job, out: Path, title: str, provenance: dict[str, dict[str, str]]
) -> dict[str, object]:
    """Tables and report.html in `out`; {verdict, status, files, terminal, lacking} of the findings."""
    records = [record for _, record in job.records]
    verdict = verdict_of(records, job.marks)
    sentences = sentences_of(verdict, records, job.planted)
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
    shown = terminal_table(frames["ranks"][["process", "model", "status", "updates", "first", "unsure"]], width=140)
    lines = [sentences[0], *(f"- {one}" for one in sentences[1:]), "", shown, "", f"report: {files[-1]}"]
    return {
        "verdict": sentences,
        "status": _exit_status(verdict, job.planted, status),
        "files": files,
        "terminal": "\n".join(lines),
        "lacking": lacking,
    }


def _exit_status(verdict: Verdict, planted: Planted | None, status: Status) -> Status:
    """A bad number is a failure, unless it was planted to be found."""
    if verdict.status == "bad" and planted is not None and planted.plant != "none":
        return "ok" if _was_found(verdict, planted) else "fail"
    return status


def _was_found(verdict: Verdict, planted: Planted) -> bool:
    first = verdict.first
    known = (planted.stage, planted.module, planted.step)
    return first is not None and (first.stage, first.module, first.step) == known


def sentences_of(verdict: Verdict, records: Sequence[Record], planted: Planted | None) -> list[str]:
    """The verdict first; then what was planted, what is near an edge, and what was not seen."""
    found = [_headline(verdict, records)]
    if verdict.first is not None:
        found += [f"{one}." for one in _details(verdict.first)]
    if planted is not None and planted.plant != "none":
        found.append(_about_planted(verdict, planted))
    least = max(records, key=lambda one: one.unread_updates, default=None)
    if least is not None and least.unread_updates:
        found.append(
            f"Weights, buffers and state were not read after {least.unread_updates} of "
            f"{plural(least.updates, 'update')}: what was bad then, and overwritten before anything used it, "
            "was not seen."
        )
    skipped = sum(one.skipped_steps for one in records)
    if skipped:
        found.append(f"The gradient scaler left out {plural(skipped, 'step')}, as it does to find its scale.")
    found += [f"Rank {one.rank}: {one.alarm}." for one in records if one.alarm]
    absorbed = {place: times for one in records for place, times in one.absorbed.items()}
    if absorbed:
        places = first_few(list(absorbed))
        found.append(f"Infinities that were gone before loss and gradient, as of masks: {places}.")
    if verdict.record is not None and verdict.record.steps_by in STEPS_BY:
        found.append(STEPS_BY[verdict.record.steps_by])
    near = dict.fromkeys(text for one in records for text in one.headroom_sentences)
    found += [f"{text}." for text in list(near)[:8]]
    gaps = dict.fromkeys([*verdict.gaps, *(text for one in records for text in one.not_seen)])
    found += [f"Not seen: {text}." for text in list(gaps)[:12]]
    found += [f"{plural(len(gaps) - 12, 'more gap')}: see the page."] if len(gaps) > 12 else []
    return found


def _headline(verdict: Verdict, records: Sequence[Record]) -> str:
    world = max((one.world for one in records), default=0)
    num_processes = len({one.process for one in records})
    ranks = plural(world, "rank") if world > 1 else plural(num_processes, "process", "processes")
    ranks = f"{ranks} with {plural(len(records), 'model')}"
    updates = plural(max((one.updates for one in records), default=0), "update")
    if verdict.first is not None:
        rank = (
            f", rank {verdict.rank} of {verdict.record.world}"
            if verdict.record and verdict.record.world > 1
            else ""
        )
        op = f" ({_op(verdict.first.op)})" if verdict.first.op else ""
        return f"Step {verdict.first.step}: first bad number {verdict.first.place}{op}{rank}."
    if verdict.status == "bad":
        return "A gradient scaler could not find its scale."
    if verdict.status == "clean":
        return f"No NaN and no infinity in {updates} on {ranks}, in any stage."
    if verdict.status == "nothing-seen":
        return "Nothing was seen: no forward, no gradient and no update of a watched model."
    return f"No NaN and no infinity in what was seen of {updates} on {ranks}; not everything was seen."


def _op(op: Op) -> str:
    inside = f" in {op.node}" if op.node else ""
    return f"{op.name}{inside}{', ' + op.line if op.line else ''}"


def _details(first: Event) -> list[str]:
    found = []
    if first.why:
        found.append(f"Why: {first.why}")
    if first.unsure:
        found.append(f"The place is not certain: {first.unsure}")
    if first.op is not None:
        shapes = ", ".join(
            f"{shape} {dtype}" for shape, dtype in zip(first.op.shapes, first.op.dtypes, strict=False)
        )
        found.append(f"Its inputs ({first.op.inputs}): {shapes or 'none that is a tensor'}")
    elif first.op_missing:
        found.append(f"No operator is named: {first.op_missing}")
    if first.extremes:
        found.append(f"Before it: {'; '.join(first.extremes)}")
    return found


def _about_planted(verdict: Verdict, planted: Planted) -> str:
    first = verdict.first
    what = f"Planted: {planted.what} (step {planted.step})"
    if first is None:
        return f"{what}. It was NOT found."
    if _was_found(verdict, planted):
        return f"{what}. This is what was found."
    return f"{what}. Found instead: {first.place}{', marked as uncertain' if first.unsure else ''}."


def missing(verdict: Verdict, records: Sequence[Record]) -> list[str]:
    """What the analysis rests on and does not have."""
    found = []
    if verdict.missing_ranks:
        names = ", ".join(map(str, verdict.missing_ranks[:16]))
        found.append(f"no record of {plural(len(verdict.missing_ranks), 'rank')}: {names}")
    cut = [one.rank for one in records if not one.ended]
    if cut:
        found.append(
            f"{ranks_text(cut, limit=16)}: the process did not end in order; the record is of its last write"
        )
    found += verdict.gaps[:16]
    if verdict.status in ("nothing-seen", "partly-seen"):
        found.append(f"the guard's status is {verdict.status}")
    return found


def _ranks(records: Sequence[Record], marks: Mapping[str, Mark]) -> pd.DataFrame:
    """One row per process and model; a process without a model has a row, too."""
    rows = [
        {
            "process": process_name(marks[record.process]) if record.process in marks else f"rank {record.rank}",
            "rank": record.rank,
            "host": record.host,
            "model": record.model,
            "status": status_of(record),
            "strategy": record.strategy,
            "updates": record.updates,
            "first": f"step {record.first.step}: {record.first.place}" if record.first else "",
            "unsure": record.first.unsure if record.first else "",
            "seen": ", ".join(f"{stage} {count}" for stage, count in sorted(record.seen.items())),
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
    for one in records:
        for step in one.steps:
            for event in sorted(step.events, key=lambda one: one.time):
                row = {"rank": one.rank, "step": event.step, "stage": event.stage, "place": event.place}
                row |= {"tensor": event.name, "nan": _count(event.nan), "inf": _count(event.inf)}
                row |= {"shape": event.shape, "dtype": event.dtype, "why": event.why or event.unsure}
                rows.append(row | {"operator": _op(event.op) if event.op else event.op_missing})
    made: pd.DataFrame = pd.DataFrame(rows)
    return made


def _count(value: float | str) -> str:
    """-1 is not counted."""
    return "" if isinstance(value, str) or value < 0 else f"{int(value)}"


def _headroom(records: Sequence[Record]) -> pd.DataFrame:
    rows = []
    for one in records:
        for each in one.headroom:
            for share in each.get("shares") or [{}]:
                row = {"rank": one.rank, "class": each.get("class"), "dtype": each.get("dtype")}
                rows.append(
                    row | {"largest": each.get("largest"), **(share if isinstance(share, dict) else {})}
                )
    made: pd.DataFrame = pd.DataFrame(rows)
    return made


def _cards(verdict: Verdict, records: Sequence[Record]) -> list[Card]:
    cards = [Card("Status", verdict.status, "tables/ranks.csv")]
    cards.append(Card("Updates", str(max((one.updates for one in records), default=0)), "tables/ranks.csv"))
    if verdict.first is not None:
        cards.append(
            Card("First bad stage", verdict.first.stage, "tables/events.csv", note=verdict.first.place)
        )
        cards.append(Card("First bad step", str(verdict.first.step), "tables/events.csv"))
    return cards


def _sections(
    frames: dict[str, pd.DataFrame], records: Sequence[Record], problems: Sequence[str]
) -> list[Section]:
    captions = {
        "ranks": ("Ranks", "One row per rank and model: its own verdict, and how many tensors it looked at"),
        "events": ("What was bad, in order of time", "Per rank; the first row of a rank is its verdict"),
        "headroom": (
            "Headroom",
            "Largest magnitude by class, and the shares of a sample that a cast to each format would lose",
        ),
    }
    found = [
        Section(
            captions[name][0],
            [Table(frame, captions[name][1], f"tables/{name}.csv", pills=PILLS, open_rows=30)],
        )
        for name, frame in frames.items()
        if len(frame)
    ]
    notes = [f"rank {one.rank}: {text}" for one in records for text in one.notes]
    if problems or notes:
        found.append(Section("Notes", [Points([*problems, *notes[:40]])]))
    return found
