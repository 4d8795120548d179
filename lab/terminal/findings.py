"""Print the findings of an analysis, and end with the exit code that follows from them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.core.options import Options
from lab.core.plan import Findings
from lab.errors import StepFailed


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


def show_findings(root: Path, findings: Findings | None, options: Options) -> None:
    """Print the findings on stdout: for a person, or with --json as one object."""
    if not options.json:
        if findings:
            print(findings.terminal)
        return
    summary: dict[str, object] = {"run": str(root), "verdict": [], "status": None, "lacking": []}
    summary |= {"incomplete": [], "terminal": "", "files": []}
    if findings:
        summary |= {name: getattr(findings, name) for name in Findings.__struct_fields__ if name in summary}
        summary |= {"files": [str(path) for path in findings.files], **findings.answer}
    print(msgspec.json.encode(summary).decode())
