"""What a step that left no result still tells."""

from __future__ import annotations

from pathlib import Path

from lab.core.plan import Findings
from lab.rooms.kernels.verdict import no_findings


def test_a_step_without_a_result_fails_and_names_the_missing_file():
    found = no_findings("the replay left no result", Path("steps") / "replay" / "result.json")
    assert found.status == "fail" and found.files == []
    assert found.verdict == ["the replay left no result"] and found.terminal == found.verdict[0]
    assert found.lacking == ["the replay left no result: result.json is missing"]


def test_findings_lack_nothing_unless_told():
    one, two = (Findings(["fine"], "ok", [], "fine") for _ in range(2))
    assert one.lacking == [] and one.lacking is not two.lacking
