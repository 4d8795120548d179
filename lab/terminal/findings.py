"""What an analysis found, for a person or a machine, and the exit code that follows from it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.core.options import Options
from lab.core.plan import Findings
from lab.errors import StepFailed


def raise_for_findings(findings: Findings | None, folder: Path) -> None:
    """An incomplete analysis still has its report, but not exit code 0."""
    if findings is None:
        return
    if findings.lacking:
        raise StepFailed(
            "the analysis is not complete:\n" + "\n".join(f"  {line}" for line in findings.lacking),
            where=folder,
            fix="see the report; everything else is analysed",
        )
    if findings.status == "fail":
        head = findings.verdict[0] if findings.verdict else "nothing usable was found to analyse"
        raise StepFailed(f"{head} (see the report)", where=folder)


def show_findings(root: Path, findings: Findings | None, options: Options) -> None:
    if options.json:
        print(
            msgspec.json.encode(
                {
                    "run": str(root),
                    "verdict": findings.verdict if findings else [],
                    "status": findings.status if findings else None,
                    "lacking": findings.lacking if findings else [],
                    "incomplete": findings.incomplete if findings else [],
                    "terminal": findings.terminal if findings else "",
                    "files": [str(path) for path in (findings.files if findings else [])],
                    **(findings.answer if findings else {}),  # what a room promises to scripts
                }
            ).decode()
        )
    elif findings:
        print(findings.terminal)
