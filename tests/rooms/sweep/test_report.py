"""The sweep's report: what it says in words, and what it writes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pandas as pd
import pytest

from lab.errors import StorageError
from lab.rooms.sweep.analyze import analyze
from lab.rooms.sweep.report import Findings, report
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


def test_a_clear_winner_over_repeats_is_named_with_its_lead_and_the_odds_of_chance(tmp_path: Path) -> None:
    found = write(sweep({A: [100.0, 101.0, 99.0], B: [110.0, 111.0, 109.0], C: [150.0] * 3}), tmp_path)
    assert re.fullmatch(
        r"256 threads, 28 channels is fastest: (100|50)\.0 ms per step \([\d.]+ to [\d.]+\) \(median over "
        r"ranks\); the next, 256 threads, 42 channels, takes 10\.0 % longer \((110|55)\.0 ms\)\.",
        found.verdict[0],
    )
    assert "The repeats do not overlap" in found.verdict[1]
    assert "once in 20 sweeps" in found.verdict[1]  # 6 choose 3
    assert found.best is not None and found.best.knobs[:2] == A


def test_one_repeat_makes_no_claim_of_significance(tmp_path: Path) -> None:
    found = write(sweep({A: [100.0], B: [110.0]}), tmp_path)
    assert "one run each" in found.verdict[1]
    assert "no claim of significance" in found.verdict[1]


def test_a_lead_inside_the_spread_of_the_repeats_is_indistinguishable_and_nobody_wins(tmp_path: Path) -> None:
    found = write(sweep({A: [100.0, 120.0, 101.0], B: [102.0, 119.0, 103.0]}), tmp_path)
    assert "is within noise of" in found.verdict[0]
    assert found.best is None
    assert "once in" not in said(found)


def test_a_failed_configuration_is_named_with_its_reason_and_never_wins(tmp_path: Path) -> None:
    tables = sweep({A: [100.0], B: [110.0]}, failed={C: "rank 3 ran out of memory"})
    tables.configs.loc[tables.configs["status"] == "failed", "total_time_ms"] = 1.0  # a torn run looks fast
    found = write(tables, tmp_path)
    assert found.best is not None and found.best.knobs[:2] == A
    assert "Left out, failed (rank 3 ran out of memory): 512t 28ch (repeat 0)." in found.verdict
    assert found.status == "warn"
    assert "512t 28ch failed" in (tmp_path / "report.html").read_text()


def test_an_incomplete_configuration_never_wins_though_its_ranks_are_shown(tmp_path: Path) -> None:
    tables = sweep({A: [100.0], B: [110.0]})
    first = tables.configs["threads"].eq(A[0]) & tables.configs["channel"].eq(A[1])
    tables.configs.loc[first, ["status", "reason"]] = ["incomplete", "1 of 4 ranks has no trace"]
    found = write(tables, tmp_path)
    assert found.best is not None and found.best.knobs[:2] == B
    assert "1 of 4 ranks has no trace" in said(found)
    assert "256t 28ch incomplete" in (tmp_path / "report.html").read_text()


def test_a_clamped_channel_count_shows_what_was_asked_and_what_came(tmp_path: Path) -> None:
    found = write(sweep({A: [100.0], (256, 70): [110.0]}, got_channels={70: 64}), tmp_path)
    assert "Channels 28: honoured at every message size." in found.verdict
    assert "Channels 70: clamped (70 -> 64) at 8 MiB and 96 MiB." in found.verdict
    assert "70 → 64" in (tmp_path / "report.html").read_text()


def test_threads_that_small_messages_ignore_are_told_by_message_size(tmp_path: Path) -> None:
    found = write(sweep({A: [100.0], C: [110.0]}), tmp_path)
    assert "Threads 256, 512: honoured at 96 MiB; ignored (256 -> 640, 512 -> 640) at 8 MiB." in found.verdict


def test_fewer_channels_than_the_log_promises_are_told_apart_from_a_real_clamp(tmp_path: Path) -> None:
    tables = sweep({A: [100.0], B: [110.0]}, got_channels={28: 27})
    tables.effective["log_channels"] = tables.effective["requested_channels"]
    found = write(tables, tmp_path)
    assert (
        "Channels 28: clamped (28 -> 27, though the log reports all of them) at 8 MiB and 96 MiB."
        in found.verdict
    )


def test_on_a_cpu_no_setting_wins_because_gloo_has_none(tmp_path: Path) -> None:
    found = write(sweep({A: [100.0, 101.0], B: [110.0, 111.0]}, device="cpu"), tmp_path)
    assert "gloo, which has no channels and no GPU threads" in found.verdict[0]
    assert "CPU operators stand in for GPU kernels" in said(found)
    assert "honoured" not in said(found) and "instead of" not in said(found)
    assert found.best is None
    assert found.status == "warn"


def test_nothing_analysed_is_a_failure_that_still_writes_a_page_with_the_reasons(tmp_path: Path) -> None:
    found = write(sweep({}, failed={A: "no such image"}), tmp_path)
    assert found.status == "fail"
    assert found.best is None
    assert "no result" in found.verdict[0]
    page = (tmp_path / "report.html").read_text()
    assert "no such image" in page


def test_windows_of_different_length_are_not_compared(tmp_path: Path) -> None:
    tables = sweep({A: [100.0], B: [110.0]})
    tables.timeline.loc[tables.timeline["channel"] == A[1], "steps"] = 1
    found = write(tables, tmp_path)
    assert "1 and 2 profiled steps" in found.verdict[0]
    assert found.best is None


def test_gemm_change_names_the_shape_that_loses_most(tmp_path: Path) -> None:
    tables = sweep({A: [100.0], B: [100.0]})
    worse = tables.gemm["channel"].eq(B[1]) & tables.gemm["N"].eq(8192)
    tables.gemm.loc[worse, ["median_us", "sum_us"]] *= 1.5
    text = said(write(tables, tmp_path))
    assert "GEMMs take from 2.4 ms per rank (256 threads, 28 channels) to 3.0 ms" in text
    assert "mm 4096×8192×2048 TN loses most, with a median of 100 µs against 150 µs (1.50 times)" in text


def test_each_knob_says_how_many_gemm_shapes_it_slows_with_the_other_knob_equal(tmp_path: Path) -> None:
    tables = sweep({A: [100.0], B: [100.0], C: [100.0], (512, 42): [100.0]})
    worse = tables.gemm["channel"].eq(42) & tables.gemm["N"].eq(8192)
    tables.gemm.loc[worse, "median_us"] *= 1.2
    found = write(tables, tmp_path)
    assert (
        "With 42 instead of 28 channels, 1 of 2 GEMM shapes takes over 5 % longer (at most 20 %)."
        in found.verdict
    )
    assert "With 512 instead of 256 threads, none of 2 GEMM shapes changes by over 5 %." in found.verdict


def test_a_knob_is_not_judged_where_the_other_one_changes_too(tmp_path: Path) -> None:
    found = write(sweep({A: [100.0], (512, 42): [150.0]}), tmp_path)
    assert "instead of" not in said(found)


@pytest.mark.parametrize("kind", ["replayed", "synthetic"])
def test_numbers_that_were_not_measured_say_so(tmp_path: Path, kind: str) -> None:
    found = write(sweep({A: [100.0], B: [110.0]}), tmp_path, kind)
    assert f"The numbers are {kind}" in found.verdict[1]


def test_every_table_comes_back_from_its_csv_to_the_last_digit(tmp_path: Path) -> None:
    tables = sweep({A: [100.0 / 3], B: [1e-9 + 1 / 7]})
    write(tables, tmp_path)
    for name in ("timeline", "gemm", "effective"):
        table = getattr(tables, name).drop(columns="bias", errors="ignore")  # astype reads "False" as true
        texts = pd.read_csv(tmp_path / "tables" / f"{name}.csv", dtype=str, na_values=["NaN"])
        how = {column: texts[column].fillna("") for column in table if (table[column] == "").all()}
        again = texts.assign(**how)[list(table)].astype(table.dtypes)
        pd.testing.assert_frame_equal(again, table, check_exact=True)


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


def test_a_page_for_64_configurations_of_8_ranks_stays_under_5_mb(tmp_path: Path) -> None:
    """By what each of twelve further configurations adds."""
    small, large = (_page_bytes(tmp_path / str(channels), channels) for channels in (2, 8))
    assert large + (64 - 16) * (large - small) / 12 < 5_000_000


def _page_bytes(folder: Path, channels: int) -> int:
    totals = {(threads, c): [100.0 + c] for threads in (64, 512) for c in range(1, channels + 1)}
    folder.mkdir()
    write(sweep(totals, ranks=8), folder)
    return (folder / "report.html").stat().st_size


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    with pytest.raises(StorageError):
        write(sweep({A: [100.0]}), tmp_path / "taken")


@pytest.mark.data
def test_the_h200_recording_reports_one_run_each_and_settings_that_reach_large_messages_only(
    tmp_path: Path,
) -> None:
    folder = SHARED / "sweep_h200"
    if not folder.is_dir():
        pytest.skip(f"the recording {folder} is not here (LAB_SHARED_DATA)")
    found = write(analyze(folder), tmp_path, "replayed")
    text = said(found)
    assert found.best is not None and found.best.knobs[:2] == (256, 42)
    assert "no claim of significance" in text
    assert "Threads 256, 512: honoured at 96 MiB and 192 MiB; ignored (256 -> 640, 512 -> 640)" in text
    assert "With 42 instead of 28 channels, 5 of 13 GEMM shapes take over 5 % longer (at most 15 %)." in text
    assert "With 512 instead of 256 threads, none of 13 GEMM shapes changes by over 5 %." in text
