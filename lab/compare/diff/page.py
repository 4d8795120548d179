"""A comparison as a page, with its tables as CSV and its findings as JSON."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.compare.diff.blocks import MOST
from lab.compare.diff.comparison import Compared, Comparison, Difference, Replayed
from lab.compare.diff.modules.groups import KINDS, Group
from lab.compare.diff.text import by_rank, headline, problems, unit_words, waterfall
from lab.compare.diff.timelines import Steps, timelines
from lab.core.files import make_folder, write_atomic
from lab.core.words import plural
from lab.recordings.gantt.bars import packed
from lab.report import figures
from lab.report.page import write_page
from lab.report.parts import Block, Card, Figure, Files, Page, Points, Prose, Section, Table, Timeline
from lab.report.tables import write_csv

ROWS = ["op", "dims", "kernel_a", "kernel_b", "n_a", "n_b", "kind", "change_us", "confidence"]
GROUPS = ["on", "times", "n_a", "n_b", "a_us", "b_us", "change_us", "change_with_inner_us"]
PILLS = {"only in A": "warn", "only in B": "warn", "renamed": "unknown"}
Frames = dict[str, pd.DataFrame]


def write(compared: Compared, out: Path) -> list[Path]:
    """diff.html, findings.json and tables/*.csv; the paths written."""
    tables = make_folder(out / "tables")
    difference, shown = compared.difference, compared.difference.shown
    steps = timelines(*compared.shown.placed) if shown.unit else None
    frames = tables_of(difference, shown)
    if steps is not None:
        frames["steps"] = steps.frame
    written = [write_csv(frame, tables / f"{name}.csv") for name, frame in frames.items()]
    findings = out / "findings.json"
    write_atomic(findings, msgspec.json.format(msgspec.json.encode(difference), indent=1) + b"\n")
    page = out / "diff.html"
    write_page(_page(difference, shown, frames, steps, out), page)
    return [page, findings, *written]


def tables_of(difference: Difference, shown: Comparison) -> Frames:
    """Every table of the page by the name of its file."""
    found = [
        {
            "what": one.text,
            "where": one.where,
            "kind": one.kind,
            "change_us": one.ns and one.ns / 1000,
            "confidence": one.confidence,
            "evidence": "; ".join(f"{e.side} {e.file} at {e.start_ns} ns" for e in one.evidence),
        }
        for one in shown.findings
    ]
    around = [msgspec.to_builtins(one) for one in difference.around]
    return {
        "rows": rows(difference.ranks),
        "waterfall": pd.DataFrame(waterfall(shown) if shown.unit else []),
        "api": pd.DataFrame(
            [msgspec.to_builtins(call) for call in shown.api], columns=["name", "n_a", "n_b"]
        ),
        "ranks": pd.DataFrame(by_rank(difference)),
        "findings": pd.DataFrame(
            found, columns=["what", "where", "kind", "change_us", "confidence", "evidence"]
        ),
        **({} if difference.replayed is None else {"replay": _replays(difference.replayed, shown)}),
        "around": pd.DataFrame(around, columns=["what", "a", "b", "source"]),
        **{f"by_{name}": _groups(name, shown.groups[name]) for name in KINDS if name in shown.groups},
    }


def _replays(found: Sequence[Replayed], shown: Comparison) -> pd.DataFrame:
    rows = [
        {
            "what": shown.findings[one.finding].text,
            "verdict": one.verdict,
            "recorded_us": one.recorded_ns / 1000,
            **{
                name: None if ns is None else ns / 1000
                for name, ns in (
                    ("hot_us", one.hot_ns),
                    ("cold_us", one.cold_ns),
                    ("in_order_us", one.in_order_ns),
                )
            },
            "why": one.reason,
        }
        for one in found
    ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def rows(ranks: list[Comparison]) -> pd.DataFrame:
    """All parts of the change, one row each."""
    found = [
        {
            "configuration": one.configuration,
            "rank": one.rank,
            **msgspec.to_builtins(row),
            "change_us": row.ns / 1000,
        }
        for one in ranks
        for row in one.rows
    ]
    frame: pd.DataFrame = pd.DataFrame(
        found, columns=["configuration", "rank", *ROWS, "types", "ns", "ns_a", "ns_b", "block"]
    )
    return frame


def _groups(name: str, groups: list[Group]) -> pd.DataFrame:
    found: list[dict[str, Any]] = [
        {
            name: one.key,
            "on": one.on,
            "times": one.times,
            "n_a": one.n_a,
            "n_b": one.n_b,
            "a_us": one.ns_a / 1000,
            "b_us": one.ns_b / 1000,
            "change_us": one.change_ns / 1000,
            "change_with_inner_us": None if one.whole_change_ns is None else one.whole_change_ns / 1000,
        }
        for one in groups
    ]
    kept = (
        GROUPS
        if name == "module"
        else [one for one in GROUPS if one not in ("times", "change_with_inner_us")]
    )
    frame: pd.DataFrame = pd.DataFrame(found, columns=[name, *kept])
    return frame


def _page(difference: Difference, shown: Comparison, frames: Frames, steps: Steps | None, out: Path) -> Page:
    files = [(f"tables/{name}.csv", plural(len(frame), "row")) for name, frame in frames.items()]
    sections = [
        Section("The change", _change(shown, frames, out)),
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
        Section("What else differs", _around(frames)),
        Section("Ranks", [Table(frames["ranks"], "Change per rank, B - A", "tables/ranks.csv")]),
        Section("Limits", [Points([*shown.notes, *problems(difference)])]),
        Section(
            "Export",
            [Files("Everything here as files", [("findings.json", "all of it, with evidence"), *files])],
        ),
    ]
    verdict = headline(shown) if shown.unit else f"Not comparable: {shown.reason}."
    if shown.unit and not shown.comparable:
        verdict = f"Not comparable: {shown.reason}. {verdict}"
    return Page(
        title=f"{Path(difference.a).name} → {Path(difference.b).name}",
        question="What changed from A to B, and how sure is it?",
        verdict=[verdict, *(finding.text for finding in shown.findings[:8]), *_more(shown)],
        status="warn" if shown.findings or problems(difference) or not shown.comparable else "ok",
        cards=[
            Card("Change of the span", f"{shown.span_ns / 1000:+,.1f}", "tables/waterfall.csv", "µs"),
            Card(
                "Change of kernel time", f"{shown.delta_kernel_ns / 1000:+,.1f}", "tables/waterfall.csv", "µs"
            ),
            Card("Change of idle time", f"{shown.idle_ns / 1000:+,.1f}", "tables/waterfall.csv", "µs"),
            Card("Named changes", str(len(shown.findings)), "tables/findings.csv"),
        ],
        sections=[one for one in sections if one.blocks],
        provenance={
            "compared": {"A": difference.a, "B": difference.b},
            **{
                f"{one.side}, rank {one.rank}": {"file": one.path, "sha256": one.sha256 or "a folder"}
                for one in difference.files
            },
        },
        room="diff",
    )


def _more(shown: Comparison) -> list[str]:
    more = len(shown.findings) - 8
    return [f"And {plural(more, 'further change')}, below."] if more > 0 else []


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


def _side_by_side(shown: Comparison, steps: Steps | None) -> list[Block]:
    if steps is None:
        why = f"no unit is marked as a step, or one has more than {MOST:,} operations"
        return [Prose(f"No timelines: {why}.")] if shown.unit else []
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
    found = frames["findings"]
    weak: list[Block] = [Prose(f"Not named: {text}.") for text in shown.unnamed]
    if not len(found):
        return weak or [Prose("Nothing differs by more than equal runs do.")]
    return [
        *weak,
        Table(found.drop(columns="evidence"), "Named changes, per unit", "tables/findings.csv", open_rows=40),
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
