"""A comparison as a page, with its tables as CSV and its findings as JSON."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from lab.compare.diff.comparison import Compared, Comparison, Difference, Pair
from lab.compare.diff.groups import KINDS, ONLY_A, ONLY_B
from lab.compare.diff.split import MOST
from lab.compare.diff.text import (
    NO_REPLAY,
    by_rank,
    group_records,
    headline,
    job_words,
    nothing,
    problems,
    records,
    unit_words,
    waterfall,
)
from lab.compare.diff.timelines import Steps, timelines
from lab.core.files import make_folder, write_atomic
from lab.core.words import plural
from lab.recordings.gantt.bars import packed
from lab.report import figures
from lab.report.page import write_page
from lab.report.parts import Block, Card, Figure, Files, Page, Points, Prose, Section, Table, Timeline
from lab.report.tables import write_csv

ROWS = ["op", "dims", "kernel_a", "kernel_b", "n_a", "n_b", "kind", "change_us", "confidence"]
TOTALS = ["name", "statistic", "outcome", "n_base", "n_head", "base_ns", "head_ns", "change", "low", "high"]
STEP_TIMES = {"kernel_us": "kernel_sum", "span_us": "span", "idle_us": "idle"}
COLUMNS = {  # of each table; else what its rows have
    "rows": ["configuration", "rank", *ROWS, "types", "ns", "ns_a", "ns_b", "block"],
    "api": ["name", "n_a", "n_b"],
    "findings": ["what", "where", "kind", "change_us", "confidence", "evidence"],
    "axes": ["name", "state", "a", "b", "share"],
    "totals": TOTALS,
    "replay": ["what", "verdict", "recorded_us", "hot_us", "cold_us", "in_order_us", "why"],
    "around": ["what", "a", "b", "source"],
    "step_times": ["side", "step", *STEP_TIMES],
}
TICKS = 20  # numbers below the figure of steps
HEADLINES = 8  # findings in the verdict of the page
PILLS = {ONLY_A: "warn", ONLY_B: "warn"}
CAPTIONS = {  # of the tables that are on the page as they are
    "findings": "Named changes, per unit; their rows of the recordings in findings.json",
    "replay": "Recorded and replayed change per unit: alone with warm and with cold caches, and in order",
    "by_phase": "By phase",
    "by_module": "By module: one row per module without its inner ones; layers that are alike are one row",
    "by_op": "By op",
    "by_kernel": "By kernel",
    "rows": "Parts of the change, largest first",
    "api": "API calls per unit; those that differ come first",
    "totals": "Totals over processes: mean, median, tail and first step",
    "axes": "The same work? Absent is not compared",
    "ranks": "Change per rank, B - A",
    "around": "What else differs, beside the work",
}
Frames = dict[str, pd.DataFrame]


def write(compared: Compared, out: Path) -> list[Path]:
    """diff.html, findings.json and tables/*.csv; the paths written."""
    tables = make_folder(out / "tables")
    difference, shown = compared.difference, compared.difference.shown
    timeline = timelines(*compared.shown.placed) if shown.unit else None
    frames = _frames(difference, shown, compared.shown)
    if timeline is not None:
        frames["steps"] = timeline.frame
    written = [write_csv(frame, tables / f"{name}.csv") for name, frame in frames.items()]
    findings = out / "findings.json"
    write_atomic(findings, msgspec.json.format(msgspec.json.encode(difference), indent=1) + b"\n")
    page = write_page(_page(difference, shown, frames, timeline, out), out / "diff.html")
    return [page, findings, *written]


def _frames(difference: Difference, shown: Comparison, pair: Pair) -> Frames:
    """Every table of the page by the name of its file."""
    rows = [
        {"configuration": rank.configuration, "rank": rank.rank, **row}
        for rank in difference.ranks
        for row in records(rank.rows)
    ]
    findings = [
        {
            **record,
            "what": finding.text,
            "evidence": "; ".join(f"{row.side} {row.file} at {row.start_ns} ns" for row in finding.evidence),
        }
        for record, finding in zip(records(shown.findings), shown.findings, strict=True)
    ]
    replayed = difference.replayed or ()
    replays = [
        {**record, "what": shown.findings[result.finding].text, "why": result.reason}
        for record, result in zip(records(replayed), replayed, strict=True)
    ]
    steps = [
        {"side": side, "step": number}
        | {column: units.times_ns[name][index] / 1000 for column, name in STEP_TIMES.items()}
        for side, units in zip("AB", pair.units or (), strict=False)
        for index, number in enumerate(units.numbers)
    ]
    tables = {
        "rows": rows,
        "waterfall": waterfall(shown) if shown.unit else [],
        "api": records(shown.api),
        "ranks": by_rank(difference),
        "findings": findings,
        "axes": records(shown.axes),
        "totals": records(shown.totals),
        **({"replay": replays} if replays else {}),
        "around": records(difference.around),
        **{f"by_{name}": group_records(name, shown) for name in KINDS if name in shown.groups},
        "step_times": steps,
    }
    return {name: pd.DataFrame(table, columns=COLUMNS.get(name)) for name, table in tables.items()}


def _page(difference: Difference, shown: Comparison, frames: Frames, steps: Steps | None, out: Path) -> Page:
    verdict = headline(shown)
    if not shown.comparable:
        verdict = f"Not comparable: {shown.reason}. {verdict}"
    hidden = len(shown.findings) - HEADLINES
    cards = {"span": shown.span_ns, "kernel time": shown.delta_kernel_ns, "idle time": shown.idle_ns}
    return Page(
        title=f"{Path(difference.a).name} → {Path(difference.b).name}",
        question="What changed from A to B, and how sure is it?",
        verdict=[
            *map(job_words, difference.jobs),
            verdict,
            *(finding.text for finding in shown.findings[:HEADLINES]),
            *([f"And {plural(hidden, 'further change')}, below."] if hidden > 0 else []),
        ],
        status="warn" if shown.findings or problems(difference) or not shown.comparable else "ok",
        cards=[
            *(
                Card(f"Change of the {name}", f"{ns / 1000:+,.1f}", "tables/waterfall.csv", "µs")
                for name, ns in cards.items()
            ),
            Card("Named changes", str(len(shown.findings)), "tables/findings.csv"),
        ],
        sections=[s for s in _sections(difference, shown, frames, steps, out) if s.blocks],
        provenance={
            "compared": {"A": difference.a, "B": difference.b},
            **{
                f"{file.side}, rank {file.rank}": {"file": file.path, "sha256": file.sha256 or "a folder"}
                for file in difference.files
            },
        },
        room="diff",
    )


def _tables(frames: Frames, *names: str, **settings: Any) -> list[Block]:
    """Those of these tables that have rows."""
    blocks: list[Block] = []
    for name in names:
        if name in frames and len(frame := frames[name]):
            shown = (
                ["rank", *ROWS] if name == "rows" else [column for column in frame if column != "evidence"]
            )
            blocks.append(Table(frame[shown], CAPTIONS[name], f"tables/{name}.csv", **settings))
    return blocks


def _sections(
    difference: Difference, shown: Comparison, frames: Frames, steps: Steps | None, out: Path
) -> list[Section]:
    tables = functools.partial(_tables, frames)
    not_named = [Prose(f"Not named: {text}.") for text in shown.unnamed]
    replay = tables("replay")
    if difference.replayed is not None:
        replay.append(Points(difference.replay_notes or [NO_REPLAY]))
    files = [(f"tables/{name}.csv", plural(len(frame), "row")) for name, frame in frames.items()]
    return [
        Section("The change", [*_change(shown, frames, out), *_by_step(frames, out)]),
        Section("Side by side", _side_by_side(shown, steps)),
        Section("What changed", [*not_named, *(tables("findings") or [Prose(nothing(shown))])]),
        Section("Replay", replay),
        Section("By structure", tables(*(f"by_{name}" for name in KINDS), pills=PILLS, open_rows=30)),
        Section("Rows", tables("rows", "api", open_rows=0)),
        Section("The whole", tables("totals", "axes", "ranks", "around")),
        Section("Limits", [Points([*shown.notes, *problems(difference)])]),
        Section(
            "Export",
            [Files("Everything here as files", [("findings.json", "all of it, with evidence"), *files])],
        ),
    ]


def _change(shown: Comparison, frames: Frames, out: Path) -> list[Block]:
    if not shown.unit:
        return []
    steps = frames["waterfall"]
    parts = list(zip(steps["class"], steps["change_us"], strict=True))[:-1]
    unit = unit_words(shown.unit)
    draw = functools.partial(
        figures.waterfall,
        (f"A: span of a {unit}", shown.a["span_ns"] / 1000),
        [(name, change) for name, change in parts if change],
        f"B: span of a {unit}",
        axis="µs per unit",
        words=("span", "more", "less"),
    )
    svg = figures.save(draw, make_folder(out / "figures"), "waterfall")
    return [
        Figure(svg, "From A to B, class by class", "figures/waterfall.png", "tables/waterfall.csv"),
        Table(steps, "The classes; they add up to the change of the span", "tables/waterfall.csv"),
    ]


def _by_step(frames: Frames, out: Path) -> list[Block]:
    """Which steps carry the change: kernel time of every step on both sides."""
    sides = {side: part["kernel_us"].to_numpy() for side, part in frames["step_times"].groupby("side")}
    longest = max(map(len, sides.values()), default=0)
    if longest < 2:
        return []
    series = {
        str(side): np.pad(kernel_us, (0, longest - len(kernel_us)), constant_values=np.nan)
        for side, kernel_us in sides.items()
    }
    tick_step = max(1, longest // TICKS)
    positions = [str(index) if index % tick_step == 0 else "" for index in range(longest)]
    drawing = figures.lines(positions, series, across="step of the recording", axis="kernel time, µs")
    svg = figures.save(drawing, make_folder(out / "figures"), "steps")
    return [Figure(svg, "Kernel time of every step", "figures/steps.png", "tables/step_times.csv")]


def _side_by_side(shown: Comparison, steps: Steps | None) -> list[Block]:
    if steps is None:
        reason = f"no unit is marked as a step, or one has more than {MOST:,} operations"
        return [Prose(f"No timelines: {reason}.")] if shown.unit else []
    aligned = (
        "One step of each side; every segment of the work begins at the same place on both, and the shorter "
        "side waits at its end. Coloured by change: slower, another kernel, on one side only"
    )
    recorded = "The same two steps as they were recorded, from the first operation on"
    views = {
        "A and B, aligned by their structure": ({**packed(steps.aligned), "by": "change"}, aligned),
        "A and B as recorded": (packed(steps.recorded), recorded),
    }
    return [Timeline(name, bars, caption, "tables/steps.csv") for name, (bars, caption) in views.items()]
