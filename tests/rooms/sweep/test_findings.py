"""A sweep's page, with the GEMM pipeline's findings where traces are from GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.rooms.sweep.findings import analyse_sweep
from tests.rooms.sweep.gemm.recorded import write_sweep
from tests.tracegen import TraceWriter, cpu_step


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_sweep(tmp_path / "sweep_a")


def test_a_sweeps_page_holds_the_pipelines_findings_and_links_that_lead_somewhere(
    sweep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    findings = analyse_sweep(sweep, out, None, lambda _: None)
    page = (out / "report.html").read_text()
    assert "Why GEMM times vary" in page and "varies most" in page
    assert all((out / name).exists() for name in ("tracelens_analysis/timeline.csv", "merged_traces"))
    assert 'href="tracelens_analysis/gemm_overlap_effect.csv"' in page
    assert out / "merged_traces" / "512thread_28ch_merged.json.gz" in findings.files


def test_a_sweep_on_a_cpu_gets_its_page_without_the_pipeline(tmp_path: Path) -> None:
    writer = TraceWriter(vendor="none", world_size=1)
    cpu_step(writer, 1, 100)
    writer.write(
        tmp_path / "s" / "256thread" / "nccl_28channels" / "torch_profiler" / "rank0" / "trace_step1.json"
    )
    for name in ("other.sqlite", "notes.txt", "trace_of_all.json"):
        (tmp_path / "s" / name).touch()
    found = analyse_sweep(tmp_path / "s", tmp_path / "out", None, lambda _: None)
    assert [text.split()[0] for text in found.lacking if "not looked at" in text] == ["other.sqlite"]
    assert not (tmp_path / "out" / "tracelens_analysis").exists()
