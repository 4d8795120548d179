"""A comparison as a page, with its tables as CSV and its findings as JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from lab.compare.diff import Comparison, Difference
from lab.compare.text import by_rank, headline, problems, waterfall
from lab.core.files import make_folder, write_atomic
from lab.report.figures import save, stacked_bars
from lab.report.page import Block, Card, Figure, Page, Points, Prose, Section, Table, write_page
from lab.report.tables import write_csv

ROWS = ["op", "dims", "kernel_a", "kernel_b", "n_a", "n_b", "kind", "change_us", "confidence"]


def write(difference: Difference, out: Path) -> list[Path]:
    """diff.html, tables/rows.csv, tables/waterfall.csv, tables/api.csv, tables/ranks.csv, findings.json."""
    tables = make_folder(out / "tables")
    shown = difference.shown
    frames = {
        "rows": rows(difference.ranks),
        "waterfall": pd.DataFrame(waterfall(shown) if shown.unit else []),
        "api": pd.DataFrame(
            [msgspec.to_builtins(call) for call in shown.api], columns=["name", "n_a", "n_b"]
        ),
        "ranks": pd.DataFrame(by_rank(difference)),
        "findings": pd.DataFrame(
            [
                {
                    "what": one.text,
                    "kind": one.kind,
                    "change_us": one.ns and one.ns / 1000,
                    "confidence": one.confidence,
                }
                for one in shown.findings
            ]
        ),
    }
    written = [write_csv(frame, tables / f"{name}.csv") for name, frame in frames.items()]
    findings = out / "findings.json"
    write_atomic(findings, msgspec.json.format(msgspec.json.encode(difference), indent=1) + b"\n")
    page = out / "diff.html"
    write_page(_page(difference, shown, frames, out), page)
    return [page, findings, *written]


def rows(ranks: list[Comparison]) -> pd.DataFrame:
    """All parts of the change, one row each."""
    found = [
        {"rank": one.rank, **msgspec.to_builtins(row), "change_us": row.ns / 1000}
        for one in ranks
        for row in one.rows
    ]
    frame: pd.DataFrame = pd.DataFrame(found, columns=["rank", *ROWS, "types", "ns", "ns_a", "ns_b", "block"])
    return frame


def _page(difference: Difference, shown: Comparison, frames: dict[str, pd.DataFrame], out: Path) -> Page:
    title = f"{Path(difference.a).name} → {Path(difference.b).name}"
    points = [finding.text for finding in shown.findings[:8]]
    verdict = headline(shown) if shown.unit else f"Not comparable: {shown.reason}."
    changed: list[Block] = []
    if shown.unit:
        steps = frames["waterfall"]
        values = steps["change_us"].to_numpy(float)[:-1]
        drawing = stacked_bars(
            list(steps["class"])[:-1],
            {"fail": np.maximum(values, 0), "ok": np.minimum(values, 0)},
            axis="change per unit, µs",
            words={"fail": "more", "ok": "less"},
        )
        svg = save(drawing, make_folder(out / "figures"), "waterfall")
        changed = [
            Figure(
                svg, "The change of a unit's span, by class", "figures/waterfall.png", "tables/waterfall.csv"
            ),
            Table(steps, "The classes; they add up to the change of the span", "tables/waterfall.csv"),
        ]
    largest = frames["rows"].head(200)[["rank", *ROWS]]
    sections = [
        Section("The change", changed),
        Section("What changed", [Table(frames["findings"], "Named changes, per unit", "tables/findings.csv")])
        if len(frames["findings"])
        else Section("What changed", [Prose("Nothing differs by more than equal runs do.")]),
        Section(
            "Rows", [Table(largest, "Parts of the change, largest first", "tables/rows.csv", open_rows=40)]
        ),
        Section(
            "API calls per unit", [Table(frames["api"], "Calls that differ come first", "tables/api.csv")]
        ),
        Section("Ranks", [Table(frames["ranks"], "Change per rank, B - A", "tables/ranks.csv")]),
        Section("Limits", [Points([*shown.notes, *problems(difference)])]),
    ]
    cards = [
        Card("Change of the span", f"{shown.span_ns / 1000:+,.1f}", "tables/waterfall.csv", "µs"),
        Card("Change of kernel time", f"{shown.delta_kernel_ns / 1000:+,.1f}", "tables/waterfall.csv", "µs"),
        Card("Change of idle time", f"{shown.idle_ns / 1000:+,.1f}", "tables/waterfall.csv", "µs"),
        Card("Named changes", str(len(shown.findings)), "tables/findings.csv"),
    ]
    return Page(
        title=title,
        question="What changed from A to B, and how sure is it?",
        verdict=[verdict, *points],
        status="warn" if shown.findings or problems(difference) or not shown.comparable else "ok",
        cards=cards,
        sections=[one for one in sections if one.blocks],
        provenance={"compared": {"A": difference.a, "B": difference.b}},
        room="diff",
    )
