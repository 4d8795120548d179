"""Where the three pages begin: a run of the room -> tables, figures and report.html."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.words import plural
from lab.report.parts import Card, Section, Table
from lab.report.tables import write_csv
from lab.rooms.semicrf.analyze import read_checks, read_examination, read_trainings
from lab.rooms.semicrf.report import FOUND, PILLS, finish, short_numbers
from lab.rooms.semicrf.report.examination import examination
from lab.rooms.semicrf.report.trainings import trainings


def analyse_semicrf(out: Path, run: Run, progress: Callable[[str], None]) -> Findings:
    """Tables, figures and report.html into `out`."""
    command = run.manifest.config.get("command")
    progress(f"  {command}: {plural(len(run.manifest.steps), 'step')}")
    if command == "diagnose":
        return examination(read_examination(run), out, run)
    if command == "check":
        return checks(*read_checks(run), out, run)
    return trainings(read_trainings(run), out, run)


# The page of a check: every check of this device's kernels with its value beside its limit.

QUESTION = "Do this device's kernels agree with float64 from the definition?"
FOOTNOTES = ("Limits are those of docs/semicrf.md; the reference is float64 from the definition.",)
NEVER = (
    "any other device",
    "scores of single segments",
    "second derivatives",
    "k best, draws and entropy, which run in torch",
    "float16 and bfloat16",
    "more than 3,000 frames",
)
SHOWN = 8  # failed checks in the verdict; the table has all


def checks(frame: pd.DataFrame, missing: list[str], out: Path, run: Run) -> Findings:
    """Write the page and its table."""
    files = [write_csv(frame, out / "tables" / "checks.csv")]
    failed = frame[frame["verdict"] == "fail"]
    backends = ", ".join(sorted(frame["backend"].unique()))
    passed = f"{len(frame) - len(failed)} of {len(frame)}"
    summary = frame.groupby(["backend", "verdict"]).size().reset_index(name="checks")
    return finish(
        *(run, out, files, summary, missing),
        question=QUESTION,
        verdict=[*_sentences(frame, failed, backends), *_not_covered(frame)],
        status="fail" if len(failed) else "ok",
        cards=[Card("Checks", passed, "tables/checks.csv", note=backends)],
        sections=[Section("Checks", [_table(frame)])],
        footnotes=FOOTNOTES,
        badge=FOUND if len(failed) else "",
    )


def _sentences(frame: pd.DataFrame, failed: pd.DataFrame, backends: str) -> list[str]:
    if failed.empty:
        return [f"All {plural(len(frame), 'check')} of {backends} passed on this device."]
    head = f"{len(failed)} of {plural(len(frame), 'check')} of {backends} failed on this device."
    shown = [
        f"{row.backend}, {row.check} {row.shape} {row.dtype}: {row.text}.".replace("  ", " ")
        for row in failed.head(SHOWN).itertuples()
    ]
    return [head, *shown]


def _not_covered(frame: pd.DataFrame) -> list[str]:
    """What no row looked at: compiled and tensor forms that did not run, and what no check has."""
    ran = " ".join(frame["backend"].unique())
    left = [name for name in ("torch", "native") if name not in ran]
    return [f"Not covered by this run: {', '.join([*left, *NEVER])}."]


def _table(frame: pd.DataFrame) -> Table:
    heading = "Every check; values beside their limits"
    return Table(short_numbers(frame), heading, "tables/checks.csv", pills=PILLS, open_rows=120)
