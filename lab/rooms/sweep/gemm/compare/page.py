"""The comparison as a page with its tables. The first sweep is the base that the others are compared to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import lab
from lab.core.provenance import lab_identity
from lab.core.words import plural
from lab.errors import UsageError
from lab.report.page import write_page
from lab.report.parts import Card, Page, Section, Table
from lab.report.tables import write_csv
from lab.report.terminal import Heading
from lab.rooms.sweep.gemm.compare.changes import config_changes, gemm_changes
from lab.rooms.sweep.gemm.compare.charts import PLOTS, config_chart, gemm_blocks, variance_blocks
from lab.rooms.sweep.gemm.compare.sentences import compared_in_words, not_compared
from lab.rooms.sweep.gemm.compare.sweeps import Sweep, environments, read_for_comparison
from lab.rooms.sweep.gemm.report import Report
from lab.rooms.sweep.names import name_of
from lab.rooms.sweep.tables import SETTING
from lab.rooms.sweep.verdict.time import left_out

PAGE = "sweep_comparison.html"
QUESTION = "What changed between these sweeps, can it be chance, and what else differs between them?"
PILLS = {
    "faster": "ok",
    "slower": "fail",
    "no difference shown": "unknown",
    "one run each": "warn",
    "one run on one side": "warn",
    "other numbers of steps": "warn",
    "too few repeats": "warn",
    "not in both": "unknown",
    "differs": "warn",
    "same": "unknown",
}
FOOTNOTES = (
    "A change is the later sweep's median over the base's, minus one: above zero is slower. Every figure of "
    "a repeat is the median over its complete ranks.",
    "A configuration is called faster or slower only if a permutation test over repeats finds p < 0.05 after "
    "Holm's correction for all configurations of all sweeps compared. With one run each there is no test.",
    "The interval is a 95 % bootstrap interval of the ratio of medians over ranks (and repeats). Ranks of "
    "one run wait for each other and share its clocks, so it shows the spread within runs, not between them.",
    "GEMMs are matched by launching operator, sizes, dtype and transposition, never by kernel name.",
)


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
    labels, MissingError where a folder holds no traces.
    """
    if len(folders) < 2:
        raise UsageError("a comparison needs at least two sweeps", fix="lab gemm compare A B [C...]")
    names = _labels(folders, labels)
    sweeps = [
        read_for_comparison(folder, name, workers, progress)
        for folder, name in zip(folders, names, strict=True)
    ]
    base, heads = sweeps[0], sweeps[1:]
    configs = rounded(config_changes(base, heads))
    gemm = rounded(pd.concat([gemm_changes(base, head) for head in heads], ignore_index=True))
    environment = environments(sweeps)
    by_rank = rounded(_by_rank(sweeps))
    tables = {"configurations": configs, "gemm": gemm, "environment": environment, "ranks": by_rank}
    files = [write_csv(table, out / "comparison" / f"{name}.csv") for name, table in tables.items()]
    missing = [
        f"{sweep.label}: {sentence}" for sweep in sweeps for sentence in left_out(sweep.tables.configs)
    ]
    missing += not_compared(base, heads, configs)
    verdict = compared_in_words(configs, gemm, environment, base, heads)
    page = Page(
        title=" · ".join(names),
        question=QUESTION,
        verdict=[*verdict, *missing],
        status=_status(configs, missing),
        cards=_cards(configs, environment),
        sections=[
            *_sections(sweeps, configs, gemm, environment),
            Section("How GEMM times vary", variance_blocks(sweeps, out)),
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


def rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """The same without digits that no clock gave: floats to six decimals, times thereby to ns or finer."""
    result: pd.DataFrame = frame.round(6)
    return result


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


def _status(configs: pd.DataFrame, missing: Sequence[str]) -> Any:
    if configs["change_percent"].isna().all():
        return "fail"
    shown = configs["judgement"].isin(["faster", "slower", "no difference shown"]).all()
    return "ok" if shown and not missing else "warn"


def _cards(configs: pd.DataFrame, environment: pd.DataFrame) -> list[Card]:
    source = "comparison/configurations.csv"
    changes = configs["change_percent"].dropna()
    cards = [Card("Configurations in both", f"{len(changes)} of {len(configs)}", source)]
    if len(changes):
        low, high = changes.min(), changes.max()
        value = f"{low:+.1f}" if len(changes) == 1 else f"{low:+.1f} to {high:+.1f}"
        cards.insert(0, Card("Change of total time", value, source, "%", "medians, all configurations"))
    proven = int(configs["judgement"].isin(["faster", "slower"]).sum())
    differs = int((environment["state"] == "differs").sum())
    return [
        *cards,
        Card(
            "Shown by repeats", f"{proven} of {len(configs)}", source, note="p < 0.05 after Holm's correction"
        ),
        Card(
            "Environment facts that differ", f"{differs} of {len(environment)}", "comparison/environment.csv"
        ),
    ]


def _sections(
    sweeps: Sequence[Sweep], configs: pd.DataFrame, gemm: pd.DataFrame, environment: pd.DataFrame
) -> list[Section]:
    source = "comparison/configurations.csv"
    shown = configs.drop(columns=SETTING).dropna(axis="columns", how="all")
    shown.insert(2, "configuration", [name_of(row) for row in configs.itertuples()])
    changes = Table(shown, "Total time by configuration", source, pills=PILLS, open_rows=40)
    facts = Table(
        environment,
        "Recorded environment of each sweep, differences first",
        "comparison/environment.csv",
        headings={sweep.label: Heading(sweep.label, "") for sweep in sweeps},
        pills=PILLS,
        open_rows=60,
    )
    return [
        Section("By configuration", [config_chart(sweeps), changes]),
        Section("GEMMs", gemm_blocks(gemm, sweeps)),
        Section("Environment", [facts]),
    ]


def _by_rank(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    parts = [sweep.tables.timeline.assign(sweep=sweep.label) for sweep in sweeps]
    frame: pd.DataFrame = pd.concat(parts, ignore_index=True)
    ordered: pd.DataFrame = frame[["sweep", *[name for name in frame if name != "sweep"]]]
    return ordered


def _provenance(sweeps: Sequence[Sweep]) -> dict[str, dict[str, str]]:
    identity = lab_identity()
    entries = {
        sweep.label: {"folder": str(sweep.folder), "traces read": str(len(sweep.tables.timeline))}
        for sweep in sweeps
    }
    return entries | {"Analysed by": {"lab": lab.__version__, "commit": identity.commit or "unknown"}}
