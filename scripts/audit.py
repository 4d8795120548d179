"""Known vulnerabilities of what the images install, from their locks. Needs pip-audit and a network.

What cannot be fixed is accepted in images/NAME/audit.ignore, one line each: `ID # reason`, or
`PACKAGE==VERSION # reason` for all findings in that very version. Accepted findings are printed too.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"(?P<what>\S+)\s+#\s*(?P<reason>\S.*)")


class Finding(NamedTuple):
    package: str
    ids: tuple[str, ...]  # its own first, then its aliases
    fixed_in: str


def accepted(path: Path) -> dict[str, str]:
    """What -> why. Raises ValueError for a line without a reason."""
    found = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"{path}:{number}: not `ID # reason` or `PACKAGE==VERSION # reason`: {line}")
        found[match["what"].lower()] = match["reason"]
    return found


def findings(report: dict) -> tuple[list[Finding], list[str]]:
    """-> the findings in pip-audit's JSON, and the packages that it could not look up."""
    found, unknown = [], []
    for one in report["dependencies"]:
        if "skip_reason" in one:
            unknown.append(f"{one['name']}: {one['skip_reason']}")
        for vulnerability in one.get("vulns", ()):
            ids = (vulnerability["id"], *vulnerability.get("aliases", ()))
            fixed = ", ".join(vulnerability.get("fix_versions", ())) or "no version"
            found.append(Finding(f"{one['name']}=={one['version']}", ids, fixed))
    return found, unknown


def reason_for(finding: Finding, reasons: dict[str, str]) -> str | None:
    names = (*finding.ids, finding.package)
    return next((reasons[name.lower()] for name in names if name.lower() in reasons), None)


def audit(lock: Path) -> bool:
    """Whether all that is known about this lock is accepted, and all of it could be looked up."""
    print(f"== {lock.relative_to(ROOT)}", flush=True)
    reasons = accepted(lock.with_name("audit.ignore"))
    only = ["--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json"]
    argv = ["pip-audit", *only, "--requirement", str(lock)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    try:
        found, unknown = findings(json.loads(done.stdout))
    except (json.JSONDecodeError, KeyError, TypeError):
        print(f"pip-audit gave no report (exit code {done.returncode}): {done.stderr.strip()}")
        return False
    for finding in found:
        reason = reason_for(finding, reasons)
        state = f"accepted: {reason}" if reason else f"OPEN, fixed in {finding.fixed_in}"
        print(f"{finding.package} {finding.ids[0]} {state}")
    for text in unknown:
        print(f"NOT LOOKED UP {text}")
    for what in (
        set() if unknown else reasons.keys() - {n.lower() for f in found for n in (*f.ids, f.package)}
    ):
        print(f"accepted and not found: {what}; remove it from audit.ignore if no lock of this image has it")
    return not unknown and all(reason_for(finding, reasons) for finding in found)


def main() -> int:
    results = [audit(lock) for lock in sorted(ROOT.glob("images/*/*.lock"))]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
