"""`lab gemm`: every step, where it writes, what it says when something is missing, and that twice is once."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.errors import MissingError, StepFailed
from lab.recordings.load import load_capture
from lab.recordings.processes import rank_captures
from tests.rooms.sweep.gemm.recorded import write_sweep
from tests.tracegen import TraceWriter

KNOWN = (
    "256thread/individual_reports/perf_28ch_rank0.xlsx",
    "256thread/collective_reports/collective_28ch.xlsx",
    "comparisons/compare_28ch_rank1_across_threads.xlsx",
    "timeline.csv",
    "collectives.csv",
    "effective.csv",
    "stragglers.csv",
    "top5_gemm_kernels_time_variance.csv",
    "top5_gemm_kernels_time_variance_with_timestamps.csv",
    "top5_gemm_kernels_time_variance_with_collective_overlap.csv",
    "gemm_overlap_effect.csv",
    "plots/variance_by_threads_boxplot.png",
    "plots/variance_by_channels_boxplot.png",
    "plots/variance_by_ranks_boxplot.png",
    "plots/variance_violin_combined.png",
    "plots/variance_thread_channel_interaction.png",
)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_sweep(tmp_path / "sweep_a")


def gemm(*words: str | Path) -> str:
    """Runs `lab gemm`; errors of lab come out as they are."""
    argv = ["gemm", *map(str, words)]
    done = CliRunner().invoke(cli, argv, catch_exceptions=False, standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.stdout


def state(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A sweep, and what `lab gemm all` made of it."""
    root = tmp_path_factory.mktemp("all")
    sweep, out = write_sweep(root / "sweep_a"), root / "out"
    gemm("all", sweep, "-o", out, "-w", "1", "-q")
    return sweep, out


def test_all_leaves_the_known_files_and_the_same_bytes_twice(analysed: tuple[Path, Path]) -> None:
    sweep, out = analysed
    before = state(sweep), state(out)
    assert [name for name in KNOWN if name not in before[1]] == []
    assert "merged_traces/256thread_28ch_merged.json.gz" in before[1]
    gemm("all", sweep, "-o", out, "-w", "1", "-q")
    assert (state(sweep), state(out)) == before


def test_without_a_folder_a_recording_is_left_as_it_is(sweep: Path, tmp_path: Path) -> None:
    before = state(sweep)
    gemm("merge", sweep, "--workers", "1", "-q")
    assert (tmp_path / "experiments/sweep_a_analysis/merged_traces/256thread_28ch_merged.json.gz").exists()
    assert state(sweep) == before


def test_a_broken_trace_is_said_the_rest_is_done_and_the_command_fails(sweep: Path, tmp_path: Path) -> None:
    trace = next(sweep.rglob("256thread/**/rank1/*.json.gz"))
    trace.write_bytes(trace.read_bytes()[:-40])
    with pytest.raises(StepFailed) as error:
        gemm("all", sweep, "-o", tmp_path / "out", "-w", "1", "-q")
    assert "256thread_28ch_merged.json.gz: without rank 1" in str(error.value)
    assert "512thread" not in str(error.value)
    assert (tmp_path / "out" / "512thread/individual_reports/perf_28ch_rank1.xlsx").exists()


def test_report_and_variance_write_the_same_as_all(analysed: tuple[Path, Path], tmp_path: Path) -> None:
    sweep, out = analysed
    for step in ("report", "variance"):
        gemm(step, sweep, "-o", tmp_path, "-w", "1", "-q")
    written = {
        name: digest for name, digest in state(out).items() if not name.startswith(("merged", ".cache"))
    }
    assert {
        name: digest for name, digest in state(tmp_path).items() if not name.startswith(".cache")
    } == written


def test_json_lists_files_and_findings(sweep: Path, tmp_path: Path) -> None:
    result = json.loads(
        gemm("merge", sweep, "-o", tmp_path / "o", "-w", "1", "-q", "--json", "--format", "original")
    )
    assert sorted(result) == ["files", "findings", "lacking", "problems"]
    assert [Path(name).name for name in result["files"]] == [
        f"{t}thread_28ch_merged.json" for t in (256, 512)
    ]


def test_a_recording_without_gemms_says_so_once(tmp_path: Path) -> None:
    writer = TraceWriter(vendor="amd")
    writer.kernel("Cijk_Ailk_MT16", 10, 5)
    writer.write(tmp_path / "ranks/rank0/t.json")
    words = (tmp_path / "ranks", "-o", tmp_path / "out", "-w", "1", "-q")
    with pytest.raises(MissingError, match="no GEMM in these traces"):
        gemm("variance", *words)
    with pytest.raises(StepFailed) as error:
        gemm("all", *words)
    assert str(error.value).count("no GEMM in these traces") == 1


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_variance_takes_the_settings_and_ranks_it_is_given(
    analysed: tuple[Path, Path], tmp_path: Path
) -> None:
    sweep, out = analysed
    gemm("variance", sweep, "-o", tmp_path, "-w", "1", "--threads", "256", "--channels", "28", "--ranks", "1")
    some, every = (rows_of(folder / KNOWN[7]) for folder in (tmp_path, out))
    wanted = [row for row in every if (row["threads"], row["channel"], row["rank"]) == ("256", "28", "1")]
    assert some == wanted and 0 < len(some) < len(every)
    with pytest.raises(MissingError, match="no trace is of these"):
        gemm("variance", sweep, "-o", tmp_path / "none", "--threads", "7")


def test_an_analysis_folder_gives_its_sweeps_table_with_and_without_the_traces(
    sweep: Path, tmp_path: Path
) -> None:
    before = state(sweep)
    gemm("all", sweep, "--in-place", "-w", "1")
    after = state(sweep)
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[0] for name in after.keys() - before.keys()} == {
        "tracelens_analysis",
        "merged_traces",
    }
    table = rows_of(sweep / "tracelens_analysis" / KNOWN[7])
    gemm("variance", sweep / "tracelens_analysis", "-o", tmp_path / "beside", "-w", "1")
    assert rows_of(tmp_path / "beside" / KNOWN[7]) == table
    alone = shutil.copytree(sweep / "tracelens_analysis", tmp_path / "alone/tracelens_analysis")
    gemm("variance", alone, "-o", tmp_path / "extracted")
    extracted = rows_of(tmp_path / "extracted" / KNOWN[7])
    for name in ("threads", "channel", "rank", "kernel_name", "op", "M", "N", "K", "n"):
        assert [row[name] for row in extracted] == [row[name] for row in table]
    for name in ("kernel_time_min_us", "kernel_time_max_us", "time_diff_us", "median_us"):
        assert [float(row[name]) for row in extracted] == pytest.approx([float(row[name]) for row in table])
    assert {name for name in extracted[0] if name.startswith("col_")} == {
        name for name in table[0] if name.startswith("col_")
    }
    assert (tmp_path / "extracted" / KNOWN[-1]).is_file()


def test_merge_writes_the_original_sweeps_form(sweep: Path, tmp_path: Path) -> None:
    gemm("merge", sweep, "-o", tmp_path / "out", "-w", "1", "--format", "original")
    path = tmp_path / "out/merged_traces/256thread_28ch_merged.json"
    slices = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["name"][:5] for event in slices} == {f"[R{event['args']['rank']}] " for event in slices}
    assert {event["args"]["rank"] for event in slices} == {0, 1}
    ranks = rank_captures(load_capture(path))
    assert [trace.meta.rank for trace in ranks] == [0, 1]
    assert not any(text.startswith("[R0] aten") for text in ranks[0].strings)
    gemm("merge", sweep, "-o", tmp_path / "one", "-w", "1", "--format", "original", "-n", "1")
    (first,) = rank_captures(load_capture(tmp_path / "one/merged_traces/256thread_28ch_merged.json"))
    assert len(first.ops) == len(ranks[0].ops)
    with pytest.raises(StepFailed, match=r"no other\.json of ranks 0, 1"):
        gemm("merge", sweep, "-o", tmp_path / "two", "-w", "1", "--trace-name", "other.json")
