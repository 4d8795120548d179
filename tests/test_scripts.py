"""The old names of the sweep's and nsys' scripts: each calls lab once, with everything that was typed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

ALIASES = {
    "run_train_various_channels.sh": ["sweep"],
    "run_tracelens_analysis.sh": ["gemm", "all", "--in-place"],
    "merge_all_traces.sh": ["gemm", "merge", "--in-place"],
    "extract_all_analyses.sh": ["nsys", "answers"],
    "export_stats_reports.sh": ["analyze"],
    "run_with_nixnan.sh": ["run", "--image", "cuda", "nixnan"],
}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A stand-in for lab that prints its arguments, one a line, and fails with 7."""
    program = tmp_path / "lab"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 7\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("name", ALIASES)
def test_an_old_name_calls_lab_with_every_argument_and_passes_its_exit_code(lab: Path, name: str) -> None:
    typed = ["-c", "28,42", "a folder", "-s"]
    done = subprocess.run([ROOT / "scripts" / name, *typed], env={"LAB": str(lab), "PATH": "/usr/bin:/bin"},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.stdout.splitlines() == [*ALIASES[name], *typed]
    assert done.returncode == 7


def test_the_sweep_takes_the_flags_of_the_original(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from lab.cli import cli

    flags = ["-c", "28", "-t", "256", "-p", "2", "-s", "-o", str(tmp_path / "o"), "-f", "tiny", "--dry-run"]
    done = CliRunner().invoke(cli, ["sweep", *flags])
    assert done.exit_code == 0 and "THREADS" in done.output.upper()
