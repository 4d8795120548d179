"""The comparison as a page with its tables. The first sweep is the base that the others are compared to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

import lab
from lab.core.provenance import lab_identity
from lab.core.words import plural
from lab.errors import MissingError, UsageError
from lab.report.figures import save
from lab.report.page import write_page
from lab.report.parts import Card, Figure, Page, Prose, Section, Status, Table
from lab.report.tables import write_csv
from lab.report.terminal import Heading
from lab.rooms.sweep.gemm import Report
from lab.rooms.sweep.gemm.changes import (
    NO_DIFFERENCE,
    NOT_IN_BOTH,
    PROVEN,
    TOO_FEW,
    UNEVEN,
    Sweep,
    compared_in_words,
    config_changes,
    environments,
    not_compared,
    read_for_comparison,
)
from lab.rooms.sweep.gemm.variance import VARIANCE, groups, settings_of, sheet_columns, top_rows
from lab.rooms.sweep.tables import SETTING, name_of

PAGE = "sweep_comparison.html"
QUESTION = "What changed between these sweeps, can it be chance, and what else differs between them?"
PILLS = {
    "faster": "ok",
    "slower": "fail",
    "differs": "warn",
    "same": "unknown",
    NO_DIFFERENCE: "unknown",
    NOT_IN_BOTH: "unknown",
    UNEVEN: "warn",
    TOO_FEW: "warn",
}
FOOTNOTES = (
    "A change is the later sweep's median over the base's, minus one: above zero is slower. A repeat's step "
    "is the median total time over its ranks, divided by the profiled steps.",
    "A configuration is called faster or slower only if a permutation test over repeats finds p < 0.05 after "
    "Holm's correction for all configurations of all sweeps compared.",
)
PLOTS, TOP_K = "comparison/plots", 5


def write_comparison(
    folders: Sequence[Path],
    out: Path,
    *,
    labels: Sequence[str] = (),
    workers: int = 2,
    progress: Callable[[int, int, Path], None] | None = None,
    page_path: Path | None = None,
) -> Report:
    """Write `out/sweep_comparison.html` (page_path instead), its tables and plots for two or more sweeps.

    labels: names of the sweeps on the page. Raises UsageError for fewer than two sweeps or a wrong number of
    labels, MissingError for a folder without traces.
    """
    if len(folders) < 2:
        raise UsageError("a comparison needs at least two sweeps", fix="lab gemm compare A B [C...]")
    names = _labels(folders, labels)
    sweeps = [
        read_for_comparison(folder, name, workers, progress)
        for folder, name in zip(folders, names, strict=True)
    ]
    base, heads = sweeps[0], sweeps[1:]
    # Six decimals, times thereby to ns or finer: no digits that no clock gave.
    configs = config_changes(base, heads).round(6)
    environment = environments(sweeps)
    by_rank = pd.concat([sweep.tables.timeline.assign(sweep=sweep.label) for sweep in sweeps]).round(6)
    by_rank.insert(0, "sweep", by_rank.pop("sweep"))
    tops = [_top_gemms(sweep) for sweep in sweeps]
    varying = pd.concat([top.assign(sweep=sweep.label) for sweep, top in zip(sweeps, tops, strict=True)])
    tables = {
        "configurations": configs,
        "environment": environment,
        "ranks": by_rank,
        "variance": varying.round(6),
    }
    files = [write_csv(table, out / "comparison" / f"{name}.csv") for name, table in tables.items()]
    missing = not_compared(base, heads, configs)
    verdict = compared_in_words(configs, environment, base, heads)
    page = Page(
        title=" · ".join(names),
        question=QUESTION,
        verdict=[*verdict, *missing],
        status=_status(configs, missing),
        cards=_cards(configs, environment),
        sections=[
            *_sections(sweeps, configs, environment),
            Section("How GEMM times vary", _variance_blocks(sweeps, tops, out)),
        ],
        provenance=_provenance(sweeps),
        footnotes=FOOTNOTES,
        room="gemm compare",
    )
    files += sorted((out / PLOTS).rglob("*.png"))
    files.append(write_page(page, page_path or out / PAGE))
    problems = [f"{sweep.label}: {problem}" for sweep in sweeps for problem in sweep.tables.problems["what"]]
    return Report(
        files=files, missing=missing, problems=problems, incomplete=_incomplete(sweeps), findings=verdict
    )


def _incomplete(sweeps: Sequence[Sweep]) -> list[str]:
    """A sentence per trace whose recording is not, or not known to be, complete."""
    return [
        f"{sweep.label}: {name_of(row)} rank {row.rank}: the recording is {row.recording}"
        for sweep in sweeps
        for row in sweep.tables.timeline.itertuples()
        if row.recording != "complete"
    ]


def _labels(folders: Sequence[Path], labels: Sequence[str]) -> list[str]:
    if labels and len(labels) != len(folders):
        raise UsageError(
            f"{plural(len(labels), 'label')} for {plural(len(folders), 'sweep')}",
            fix="give one --label per sweep",
        )
    names = list(labels) or [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [f"{chr(ord('A') + index)} {name}" for index, name in enumerate(names)]
    return names


def _status(configs: pd.DataFrame, missing: Sequence[str]) -> Status:
    if configs["change_percent"].isna().all():
        return "fail"
    shown = configs["judgement"].isin([*PROVEN, NO_DIFFERENCE]).all()
    return "ok" if shown and not missing else "warn"


def _cards(configs: pd.DataFrame, environment: pd.DataFrame) -> list[Card]:
    source = "comparison/configurations.csv"
    changes = configs["change_percent"].dropna()
    proven = int(configs["judgement"].isin(PROVEN).sum())
    differs = int((environment["state"] == "differs").sum())
    value = f"{changes.min():+.1f} to {changes.max():+.1f}" if len(changes) else "–"
    facts = f"{differs} of {len(environment)}"
    return [
        Card("Change of a step", value, source, "%", "medians, all configurations"),
        Card("Shown by repeats", f"{proven} of {len(configs)}", source, note="p < 0.05 after Holm"),
        Card("Environment facts that differ", facts, "comparison/environment.csv"),
    ]


def _sections(sweeps: Sequence[Sweep], configs: pd.DataFrame, environment: pd.DataFrame) -> list[Section]:
    source = "comparison/configurations.csv"
    shown = configs.drop(columns=SETTING).dropna(axis="columns", how="all")
    shown.insert(2, "configuration", [name_of(row) for row in configs.itertuples()])
    changes = Table(shown, "Time per step by configuration", source, pills=PILLS, open_rows=40)
    facts = Table(
        environment,
        "Recorded environment of each sweep, differences first",
        "comparison/environment.csv",
        headings={sweep.label: Heading(sweep.label, "") for sweep in sweeps},
        pills=PILLS,
        open_rows=60,
    )
    return [
        Section("By configuration", [changes]),
        Section("Environment", [facts]),
    ]


def _provenance(sweeps: Sequence[Sweep]) -> dict[str, dict[str, str]]:
    identity = lab_identity()
    entries = {
        sweep.label: {"folder": str(sweep.folder), "traces read": str(len(sweep.tables.timeline))}
        for sweep in sweeps
    }
    return entries | {"Analysed by": {"lab": lab.__version__, "commit": identity.commit or "unknown"}}


def _top_gemms(sweep: Sweep) -> pd.DataFrame:
    """The GEMMs of a sweep whose time varies most; none where no op launched one."""
    top: pd.DataFrame = pd.DataFrame()
    if sweep.data:
        with suppress(MissingError):
            rows = top_rows(groups(sweep.data), TOP_K)
            # The sheet's columns hold texts of every kernel, which no plot shows.
            top = rows.drop(columns=sheet_columns(rows))
    return top


def _variance_blocks(sweeps: Sequence[Sweep], tops: Sequence[pd.DataFrame], out: Path) -> list[Any]:
    """The five plots of the original pipeline, of all sweeps side by side; each is a file in PLOTS, too."""
    drawn: dict[str, list[tuple[str, str, str]]] = {name: [] for name in VARIANCE}
    for number, (sweep, top) in enumerate(zip(sweeps, tops, strict=True)):
        folder = f"{PLOTS}/{number}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', sweep.label)[:60]}"
        if sweep.data is None or top.empty:
            continue
        settings = settings_of(top, sweep.data.traces)
        for name, draw in VARIANCE.items():
            svg = save(draw(top, settings), out / folder, name)
            svg = re.sub(rf'(#|id="){name}-', rf"\g<1>{name}-{number}-", svg)  # unique on the page
            drawn[name].append((sweep.label, svg, f"{folder}/{name}.png"))
    blocks: list[Any] = []
    for name, plots in drawn.items():
        if plots:
            columns = "".join(f"<div><p>{escape(label)}</p>{svg}</div>" for label, svg, _ in plots)
            pair = f'<div style="display:grid;grid-auto-flow:column;gap:1rem;overflow-x:auto">{columns}</div>'
            caption = f"{name.replace('_', ' ').capitalize()}: {', '.join(label for label, *_ in plots)}."
            blocks.append(Figure(pair, caption, plots[0][2], "comparison/variance.csv"))
    return blocks or [Prose("No sweep has a GEMM that ran more than once, so nothing varies.")]
