"""A comparison as a page, with its tables as CSV and its findings as JSON."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from lab.compare.diff.blocks import MOST
from lab.compare.diff.comparison import Compared, Comparison, Difference, Pair, Replayed
from lab.compare.diff.groups import KINDS, Group
from lab.compare.diff.text import by_rank, headline, job_words, problems, unit_words, waterfall
from lab.compare.diff.timelines import Steps, timelines
from lab.core.files import make_folder, write_atomic
from lab.core.words import plural
from lab.recordings.gantt.packed import packed
from lab.report import figures
from lab.report.page import write_page
from lab.report.parts import Block, Card, Figure, Files, Page, Points, Prose, Section, Table, Timeline
from lab.report.tables import write_csv

ROWS = ["op", "dims", "kernel_a", "kernel_b", "n_a", "n_b", "kind", "change_us", "confidence"]
GROUPS = ["on", "times", "n_a", "n_b", "a_us", "b_us", "change_us", "change_with_inner_us"]
TOTALS = ["name", "statistic", "outcome", "n_base", "n_head", "base_ns", "head_ns", "change", "low", "high"]
TICKS = 20  # numbers below the figure of steps
PILLS = {"only in A": "warn", "only in B": "warn"}
Frames = dict[str, pd.DataFrame]


def write(compared: Compared, out: Path) -> list[Path]:
    """diff.html, findings.json and tables/*.csv; the paths written."""
    tables = make_folder(out / "tables")
    difference, shown = compared.difference, compared.difference.shown
    timeline = timelines(*compared.shown.placed) if shown.unit else None
    frames = tables_of(difference, shown)
    frames["step_times"] = step_frame(compared.shown)
    if timeline is not None:
        frames["steps"] = timeline.frame
    written = [write_csv(frame, tables / f"{name}.csv") for name, frame in frames.items()]
    findings = out / "findings.json"
    write_atomic(findings, msgspec.json.format(msgspec.json.encode(difference), indent=1) + b"\n")
    page = out / "diff.html"
    write_page(_page(difference, shown, frames, timeline, out), page)
    return [page, findings, *written]


def tables_of(difference: Difference, shown: Comparison) -> Frames:
    """Every table of the page by the name of its file."""
    findings = [
        {
            "what": finding.text,
            "where": finding.module_path,
            "kind": finding.kind,
            "change_us": finding.ns and finding.ns / 1000,
            "confidence": finding.confidence,
            "evidence": "; ".join(f"{row.side} {row.file} at {row.start_ns} ns" for row in finding.evidence),
        }
        for finding in shown.findings
    ]
    columns = ["what", "where", "kind", "change_us", "confidence", "evidence"]
    return {
        "rows": rows(difference.ranks),
        "waterfall": pd.DataFrame(waterfall(shown) if shown.unit else []),
        "api": _frame(shown.api, ["name", "n_a", "n_b"]),
        "ranks": pd.DataFrame(by_rank(difference)),
        "findings": pd.DataFrame(findings, columns=columns),
        "axes": _frame(shown.axes, ["name", "state", "a", "b", "share"]),
        "totals": _frame(shown.totals, TOTALS),
        **({} if difference.replayed is None else {"replay": _replays(difference.replayed, shown)}),
        "around": _frame(difference.around, ["what", "a", "b", "source"]),
        **{f"by_{name}": _groups(name, shown.groups[name]) for name in KINDS if name in shown.groups},
    }


def _frame(structs: Sequence[msgspec.Struct], columns: Sequence[str]) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame([msgspec.to_builtins(row) for row in structs], columns=list(columns))
    return frame


def step_frame(pair: Pair) -> pd.DataFrame:
    """One row per step of the shown rank on each side."""
    records = [
        {
            "side": side,
            "step": number,
            "kernel_us": kernel_ns / 1000,
            "span_us": span_ns / 1000,
            "idle_us": idle_ns / 1000,
        }
        for side, units in (("A", pair.of_a), ("B", pair.of_b))
        if units is not None
        for number, kernel_ns, span_ns, idle_ns in zip(
            units.numbers, *(units.times_ns[name] for name in ("kernel_sum", "span", "idle")), strict=True
        )
    ]
    frame: pd.DataFrame = pd.DataFrame(records, columns=["side", "step", "kernel_us", "span_us", "idle_us"])
    return frame


def _replays(results: Sequence[Replayed], shown: Comparison) -> pd.DataFrame:
    records = [
        {
            "what": shown.findings[result.finding].text,
            "verdict": result.verdict,
            "recorded_us": result.recorded_ns / 1000,
            "hot_us": _us(result.hot_ns),
            "cold_us": _us(result.cold_ns),
            "in_order_us": _us(result.in_order_ns),
            "why": result.reason,
        }
        for result in results
    ]
    frame: pd.DataFrame = pd.DataFrame(records)
    return frame


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1000


def rows(ranks: list[Comparison]) -> pd.DataFrame:
    """All parts of the change, one row each."""
    records = [
        {
            "configuration": rank.configuration,
            "rank": rank.rank,
            **msgspec.to_builtins(row),
            "change_us": row.ns / 1000,
        }
        for rank in ranks
        for row in rank.rows
    ]
    columns = ["configuration", "rank", *ROWS, "types", "ns", "ns_a", "ns_b", "block"]
    frame: pd.DataFrame = pd.DataFrame(records, columns=columns)
    return frame


def _groups(name: str, groups: list[Group]) -> pd.DataFrame:
    records: list[dict[str, Any]] = [
        {
            name: group.key,
            "on": group.on,
            "times": group.times,
            "n_a": group.n_a,
            "n_b": group.n_b,
            "a_us": group.ns_a / 1000,
            "b_us": group.ns_b / 1000,
            "change_us": group.change_ns / 1000,
            "change_with_inner_us": _us(group.whole_change_ns),
        }
        for group in groups
    ]
    of_modules = ("times", "change_with_inner_us")
    columns = [column for column in GROUPS if name == "module" or column not in of_modules]
    frame: pd.DataFrame = pd.DataFrame(records, columns=[name, *columns])
    return frame


def _page(difference: Difference, shown: Comparison, frames: Frames, steps: Steps | None, out: Path) -> Page:
    files = [(f"tables/{name}.csv", plural(len(frame), "row")) for name, frame in frames.items()]
    sections = [
        Section("The change", _change(shown, frames, out)),
        Section("Step by step", _by_step(frames, out)),
        Section("Side by side", _side_by_side(shown, steps)),
        Section("What changed", _named(shown, frames)),
        Section("Replay", _replayed(difference, shown, frames)),
        Section("By structure", _by_structure(frames)),
        Section(
            "Rows",
            [
                Table(
                    frames["rows"][["rank", *ROWS]],
                    "Parts of the change, largest first",
                    "tables/rows.csv",
                    open_rows=0,
                )
            ],
        ),
        Section(
            "API calls per unit",
            [Table(frames["api"], "Calls that differ come first", "tables/api.csv", open_rows=0)],
        ),
        Section("The whole", _whole(frames)),
        Section("What else differs", _around(frames)),
        Section("Ranks", [Table(frames["ranks"], "Change per rank, B - A", "tables/ranks.csv")]),
        Section("Limits", [Points([*shown.notes, *problems(difference)])]),
        Section(
            "Export",
            [Files("Everything here as files", [("findings.json", "all of it, with evidence"), *files])],
        ),
    ]
    verdict = headline(shown)
    if not shown.comparable:
        verdict = f"Not comparable: {shown.reason}. {verdict}"
    return Page(
        title=f"{Path(difference.a).name} → {Path(difference.b).name}",
        question="What changed from A to B, and how sure is it?",
        verdict=[
            *map(job_words, difference.jobs),
            verdict,
            *(finding.text for finding in shown.findings[:8]),
            *_further(shown),
        ],
        status="warn" if shown.findings or problems(difference) or not shown.comparable else "ok",
        cards=[
            Card("Change of the span", f"{shown.span_ns / 1000:+,.1f}", "tables/waterfall.csv", "µs"),
            Card(
                "Change of kernel time", f"{shown.delta_kernel_ns / 1000:+,.1f}", "tables/waterfall.csv", "µs"
            ),
            Card("Change of idle time", f"{shown.idle_ns / 1000:+,.1f}", "tables/waterfall.csv", "µs"),
            Card("Named changes", str(len(shown.findings)), "tables/findings.csv"),
        ],
        sections=[section for section in sections if section.blocks],
        provenance={
            "compared": {"A": difference.a, "B": difference.b},
            **{
                f"{file.side}, rank {file.rank}": {"file": file.path, "sha256": file.sha256 or "a folder"}
                for file in difference.files
            },
        },
        room="diff",
    )


def _further(shown: Comparison) -> list[str]:
    hidden = len(shown.findings) - 8
    return [f"And {plural(hidden, 'further change')}, below."] if hidden > 0 else []


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
    times = frames["step_times"]
    sides = {side: part["kernel_us"].to_numpy() for side, part in times.groupby("side")}
    longest = max(map(len, sides.values()), default=0)
    if longest < 2:
        return []
    series = {
        str(side): np.concatenate([kernel_us, np.full(longest - len(kernel_us), np.nan)])
        for side, kernel_us in sides.items()
    }
    tick_step = max(1, longest // TICKS)
    positions = [str(index) if index % tick_step == 0 else "" for index in range(longest)]
    drawing = figures.lines(positions, series, across="step of the recording", axis="kernel time, µs")
    svg = figures.save(drawing, make_folder(out / "figures"), "steps")
    return [Figure(svg, "Kernel time of every step", "figures/steps.png", "tables/step_times.csv")]


def _whole(frames: Frames) -> list[Block]:
    """The test of the totals, and in what the work may be another."""
    blocks: list[Block] = []
    if len(frames["totals"]):
        caption = "Totals over processes: mean, median, tail and first step"
        blocks.append(Table(frames["totals"], caption, "tables/totals.csv", open_rows=12))
    if len(frames["axes"]):
        blocks.append(Table(frames["axes"], "The same work? Absent is not compared", "tables/axes.csv"))
    return blocks


def _side_by_side(shown: Comparison, steps: Steps | None) -> list[Block]:
    if steps is None:
        reason = f"no unit is marked as a step, or one has more than {MOST:,} operations"
        return [Prose(f"No timelines: {reason}.")] if shown.unit else []
    aligned = (
        "One step of each side; every segment of the work begins at the same place on both, and the shorter "
        "side waits at its end. Coloured by change: slower, another kernel, on one side only"
    )
    recorded = "The same two steps as they were recorded, from the first operation on"
    return [
        Timeline(
            "A and B, aligned by their structure",
            {**packed(steps.aligned), "by": "change"},
            aligned,
            "tables/steps.csv",
        ),
        Timeline("A and B as recorded", packed(steps.recorded), recorded, "tables/steps.csv"),
    ]


def _named(shown: Comparison, frames: Frames) -> list[Block]:
    named = frames["findings"]
    weak: list[Block] = [Prose(f"Not named: {text}.") for text in shown.unnamed]
    if not len(named) and not shown.comparable:
        return [*weak, Prose("Not comparable, so no change is named; the rows are below.")]
    if not len(named):
        return weak or [Prose("Nothing differs by more than equal runs do.")]
    return [
        *weak,
        Table(named.drop(columns="evidence"), "Named changes, per unit", "tables/findings.csv", open_rows=40),
        Prose("The rows of the recordings behind each change are in findings.json and findings.csv."),
    ]


def _replayed(difference: Difference, shown: Comparison, frames: Frames) -> list[Block]:
    if difference.replayed is None:
        return []
    if not difference.replayed:
        return [
            Prose("No change of a kernel, or of ops that replaced others, is named: nothing was replayed.")
        ]
    words = "Recorded and replayed change per unit: alone with warm and with cold caches, and in order"
    return [Table(frames["replay"], words, "tables/replay.csv"), Points(difference.replay_notes)]


def _by_structure(frames: Frames) -> list[Block]:
    captions = {
        "phase": "By phase",
        "module": "By module: one row per module without its inner ones; layers that are alike are one row",
        "op": "By op",
        "kernel": "By kernel",
    }
    return [
        Table(frames[f"by_{name}"], captions[name], f"tables/by_{name}.csv", pills=PILLS, open_rows=30)
        for name in KINDS
        if f"by_{name}" in frames
    ]


def _around(frames: Frames) -> list[Block]:
    if not len(frames["around"]):
        return [Prose("Nothing that both recordings say of themselves differs.")]
    return [Table(frames["around"], "Beside the work", "tables/around.csv", open_rows=12)]
