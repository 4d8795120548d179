"""The sweep's report: what it says in words, and what it writes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lab.core.plan import Findings
from lab.rooms.sweep.gemm.data import read_sweep
from lab.rooms.sweep.report import report
from lab.rooms.sweep.tables import SweepTables
from tests.rooms.sweep.made import sweep

SHARED = Path(os.environ.get("LAB_SHARED_DATA", Path(__file__).parents[3].parent / "shared" / "data"))
A, B, C = (256, 28), (256, 42), (512, 28)


def write(tables: SweepTables, out: Path, kind: str = "measured") -> Findings:
    return report(
        tables, out=out, title="a sweep", provenance={"Run": {"command": "lab run sweep"}}, kind=kind
    )


def said(findings: Findings) -> str:
    return "\n".join(findings.verdict)


def test_the_fastest_is_one_figure_in_ms_per_step_on_page_cards_and_terminal(tmp_path: Path) -> None:
    found = write(
        sweep({A: [100.0, 101.0, 99.0], B: [110.0, 111.0, 109.0], C: [150.0, 151.0, 149.0]}), tmp_path
    )
    assert found.verdict[0].startswith("256 threads, 28 channels is fastest: 50.0 ms per step (48.8 to 51.2)")
    assert sum("fastest" in text for text in found.verdict) == 1
    page = (tmp_path / "report.html").read_text()
    card = re.search(r"Fastest.*?</", page, re.S)
    assert card and "ms per step" in page and "Shortest total time" not in page
    assert found.terminal.startswith(found.verdict[0])


def test_a_failed_configuration_is_named_with_its_reason_and_never_wins(tmp_path: Path) -> None:
    tables = sweep({A: [100.0], B: [110.0]}, failed={C: "rank 3 ran out of memory"})
    tables.configs.loc[tables.configs["status"] == "failed", "total_time_ms"] = 1.0  # a torn run looks fast
    found = write(tables, tmp_path)
    assert "256 threads, 28 channels is fastest" in said(found)
    assert "Left out, failed (rank 3 ran out of memory): 512t 28ch (repeat 0)." in found.verdict
    assert found.status == "warn"
    assert "512t 28ch failed" in (tmp_path / "report.html").read_text()


def test_an_incomplete_configuration_never_wins_though_its_ranks_are_shown(tmp_path: Path) -> None:
    tables = sweep({A: [100.0], B: [110.0]})
    first = tables.configs["threads"].eq(A[0]) & tables.configs["channel"].eq(A[1])
    tables.configs.loc[first, ["status", "reason"]] = ["incomplete", "1 of 4 ranks has no trace"]
    found = write(tables, tmp_path)
    assert "Only 256 threads, 42 channels was analysed completely" in said(found)
    assert "1 of 4 ranks has no trace" in said(found)
    assert "256t 28ch incomplete" in (tmp_path / "report.html").read_text()


def test_a_clamped_channel_count_shows_what_was_asked_and_what_came(tmp_path: Path) -> None:
    found = write(sweep({A: [100.0], (256, 70): [110.0]}, got_channels={70: 64}), tmp_path)
    assert "Channels 28: honoured." in found.verdict
    assert "Channels 70: clamped (70 -> 64)." in found.verdict
    assert "70 → 64" in (tmp_path / "report.html").read_text()


def test_on_a_cpu_no_setting_wins_because_gloo_has_none(tmp_path: Path) -> None:
    found = write(sweep({A: [100.0, 101.0], B: [110.0, 111.0]}, device="cpu"), tmp_path)
    assert "gloo, which has no channels and no GPU threads" in found.verdict[0]
    assert "CPU operators stand in for GPU kernels" in said(found)
    assert "honoured" not in said(found) and "instead of" not in said(found)
    assert "is fastest" not in said(found)
    assert found.status == "warn"
    assert "ms per step" not in (tmp_path / "report.html").read_text()


def test_nothing_analysed_is_a_failure_that_still_writes_a_page_with_the_reasons(tmp_path: Path) -> None:
    found = write(sweep({}, failed={A: "no such image"}), tmp_path)
    assert found.status == "fail"
    assert "is fastest" not in said(found)
    assert "no result" in found.verdict[0]
    page = (tmp_path / "report.html").read_text()
    assert "no such image" in page


def test_windows_of_different_length_are_not_compared(tmp_path: Path) -> None:
    tables = sweep({A: [100.0], B: [110.0]})
    tables.timeline.loc[tables.timeline["channel"] == A[1], "steps"] = 1
    found = write(tables, tmp_path)
    assert "1 and 2 profiled steps" in found.verdict[0]
    assert "is fastest" not in said(found)


@pytest.mark.parametrize("kind", ["replayed", "synthetic"])
def test_numbers_that_were_not_measured_say_so(tmp_path: Path, kind: str) -> None:
    found = write(sweep({A: [100.0], B: [110.0]}), tmp_path, kind)
    assert f"The numbers are {kind}" in found.verdict[1]


def test_every_file_it_names_and_every_source_on_the_page_exists(tmp_path: Path) -> None:
    found = write(sweep({A: [100.0], B: [110.0]}), tmp_path)
    page = (tmp_path / "report.html").read_text()
    sources = re.findall(r'(?:href|data-source)="([^"#]+)"', page)
    assert len(sources) > 20
    assert {source for source in sources if not (tmp_path / source).is_file()} == set()
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert {*found.files, tmp_path / "findings.json"} == written


def test_the_same_tables_give_the_same_page(tmp_path: Path) -> None:
    pages = []
    for name in ("one", "two"):
        write(sweep({A: [100.0], B: [110.0]}), tmp_path / name)
        pages.append((tmp_path / name / "report.html").read_bytes())
    assert pages[0] == pages[1]


def test_hostile_names_stay_text_on_the_page_and_in_the_figures(tmp_path: Path) -> None:
    tables = sweep({A: [100.0], B: [110.0]}, failed={C: "<script>alert(1)</script>"})
    hostile = '"><script>alert(2)</script>$\\frac{'
    tables.effective["collective"] = hostile
    tables.gemm["op"] = hostile
    write(tables, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<script") == 1  # the page's own
    assert "alert(2)" in page


@pytest.mark.data
def test_the_h200_recording_reports_one_run_each_and_settings_that_reach_large_messages_only(
    tmp_path: Path,
) -> None:
    folder = SHARED / "sweep_h200"
    if not folder.is_dir():
        pytest.skip(f"the recording {folder} is not here (LAB_SHARED_DATA)")
    found = write(read_sweep(folder).tables, tmp_path, "replayed")
    text = said(found)
    assert (
        "256 threads, 42 channels is fastest: 63.9 ms per step from first to last kernel, as profiled" in text
    )
    assert "one run each this order may be chance" in text
    assert "Threads 256, 512: honoured for >= 96 MiB, ignored below (256 -> 640, 512 -> 640)." in text
    assert "With 42 instead of 28 channels, 5 of 13 GEMM shapes take over 5 % longer (at most 15 %)." in text
    assert "With 512 instead of 256 threads, none of 13 GEMM shapes changes by over 5 %." in text
