"""The pages, one module each, and what they share: how they are written, what comes back, small texts."""

from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.plan import Findings
from lab.core.run import Run
from lab.report.page import write_page
from lab.report.parts import Page
from lab.report.provenance import provenance
from lab.report.tables import terminal_table

FOUND = "✕ a fault was found"  # the badge of a diagnosis or check that is complete and not clean
PILLS = {
    **dict.fromkeys(("ok", "passed", "clean", "pass"), "ok"),
    **dict.fromkeys(("skipped", "missing", "note"), "warn"),
    **dict.fromkeys(("failed", "dirty", "fail"), "fail"),
}


def finish(
    run: Run, out: Path, files: list[Path], table: pd.DataFrame, missing: list[str], **parts: Any
) -> Findings:
    """Write the page of these parts; `table` is shown on the terminal below the verdict."""
    manifest = run.manifest
    run_parts = {"provenance": provenance(run.root, manifest), "room": "semicrf", "kind": manifest.kind.value}
    page = Page(f"Semi-CRF {manifest.config.get('command')} {manifest.id}", **{**run_parts, **parts})
    files += [out / png for png in page.pictures]
    files.append(write_page(page, out / "report.html"))
    verdict = [page.verdict[0], *(f"- {sentence}" for sentence in page.verdict[1:])]
    shown = [terminal_table(table), ""] if len(table) else []
    terminal = "\n".join([*verdict, "", *shown, f"report: {files[-1]}"])
    return Findings(list(page.verdict), page.status, files, terminal, missing)


def short_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Values and limits from 1e-16 to 1e3 as people write them; the CSV keeps every digit."""
    texts = {
        name: ["" if pd.isna(value) else f"{value:.2g}" for value in frame[name]]
        for name in ("value", "limit")
    }
    short: pd.DataFrame = frame.assign(**texts)
    return short
