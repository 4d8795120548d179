"""Print the findings of an analysis, and end with the exit code that follows once everything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.core.options import Options
from lab.core.plan import Findings
from lab.core.words import listed
from lab.errors import StepFailed
from lab.terminal.options import print_json

if TYPE_CHECKING:
    from lab.recordings.lacks import Lack

_FIX = "where rows are missing, figures are bounds (at least, at most); record again for exact ones"

REQUIRE = click.option(
    "--require",
    type=click.Choice(["complete"]),
    help="Exit 1 unless the recording is complete. [default: only for a hole in it]",
)


def show_findings(root: Path, findings: Findings | None, options: Options) -> None:
    """Print the findings on stdout: for a person, or with --json as one object."""
    if not options.json:
        if findings:
            print(findings.terminal)
        return
    summary: dict[str, object] = {"verdict": [], "status": None, "lacking": [], "incomplete": []}
    summary |= {"terminal": "", "files": []}
    if findings:
        summary = {name: getattr(findings, name) for name in summary}
        summary |= {"files": [str(path) for path in findings.files], **findings.answer}
    print_json({"run": str(root), **summary})


def raise_for_findings(findings: Findings | None, folder: Path) -> None:
    """Raises StepFailed for an incomplete or failed analysis: its report is there, but not exit code 0."""
    if findings is None:
        return
    if findings.lacking:
        raise StepFailed(
            "the analysis is not complete:\n" + "\n".join(f"  {line}" for line in findings.lacking),
            location=folder,
            fix="see the report; everything else is analysed",
        )
    if findings.status == "fail":
        head = findings.verdict[0] if findings.verdict else "nothing usable was found to analyse"
        raise StepFailed(f"{head} (see the report)", location=folder)


def raise_for_lacks(lacks: Sequence[Lack], source: Path | str, *, require: str | None = None) -> None:
    """Raises StepFailed for a hole, which no edge of the recorded window explains; with `require` for
    anything but a complete recording."""
    from lab.recordings.integrity.words import sentences
    from lab.recordings.lacks import counted

    if require == "complete":
        raise_unless_complete(sentences(counted(lacks)), source)
    raise_for_holes({source: lacks})


def raise_for_holes(recordings: Mapping[Path | str, Sequence[Lack]]) -> None:
    """Raises StepFailed where one of these recordings, by its path, has a hole."""
    from lab.recordings.integrity.words import sentences
    from lab.recordings.lacks import holes

    torn = {path: texts for path, lacks in recordings.items() if (texts := sentences(holes(lacks)))}
    if torn and len(recordings) > 1:
        lines = [f"{path}: {text}" for path, texts in torn.items() for text in texts]
        raise StepFailed(
            listed(f"{len(torn)} of {len(recordings)} recordings are incomplete", lines), fix=_FIX
        )
    for path, texts in torn.items():
        raise StepFailed(listed("the recording is incomplete", texts), location=path, fix=_FIX)


def raise_unless_complete(incomplete: Sequence[str], source: Path | str) -> None:
    """Raises StepFailed if any sentence names something that a recording lacks."""
    if incomplete:
        problem = "--require complete: the recording is not, or not known to be"
        raise StepFailed(listed(problem, incomplete), location=source, fix=_FIX)
