"""The log and summary of a sweep, in the words of the original one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

from lab.core.manifest import StepRecord
from lab.core.plan import Site
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step
from lab.rooms.sweep.config.train import SweepConfig
from lab.rooms.sweep.journal import Journal, expected_runs, summary_text
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.plan import plan
from tests.core.test_manifest import a_manifest


def four_steps() -> tuple[Step, ...]:
    config = SweepConfig(channels=[28, 42], threads=[256, 512], order="given")
    return plan(config, Site(vendor="none"), Path("nowhere")).steps


def test_log_and_summary_speak_as_the_original_sweep_did(tmp_path):
    steps = four_steps()
    run = Run.create(tmp_path / "sweep_x", a_manifest(*steps))
    run.manifest.config = {"config": "tiny", "threads": [256, 512], "channels": [28, 42]}
    journal = Journal(run)
    ends = [
        Outcome(status=Status.ok, exit_code=0, seconds=12.4),
        Outcome(status=Status.oom, exit_code=1, seconds=3.0),
    ]
    for step, outcome in zip(steps, ends, strict=False):
        journal.begin(step)
        run.begin(step)
        run.finish(step, outcome)
        journal.end(step, outcome)
    log = [line.split("] ", 1)[1] for line in journal.log.read_text().splitlines()]
    assert log[:3] == ["Config file: tiny", "Testing threads per block: 256 512", "Testing channels: 28 42"]
    assert "Running with RCCL_THREADS_PER_BLOCK=256, NCCL_MAX_NCHANNELS=28" in log
    assert "✓ Completed run with THREADS=256, CHANNELS=28 (duration: 12s)" in log
    assert "✗ Failed run with THREADS=256, CHANNELS=42 (exit code: 1, duration: 3s)" in log
    assert "All runs completed!" not in log
    assert journal.log.name.startswith("nccl_thread_sweep_2026") and "_summary_" in journal.summary.name


def test_the_summary_is_in_the_known_columns():
    steps = four_steps()
    ends = [
        Outcome(status=Status.ok, seconds=61.7),
        Outcome(status=Status.failed),
        Outcome(status=Status.skipped),
        None,
    ]
    records = [StepRecord(step=s, fingerprint="", outcome=o) for s, o in zip(steps, ends, strict=True)]
    lines = summary_text(reversed(records), datetime(2026, 1, 2)).splitlines()
    assert lines[0] == "NCCL Channel & Thread Sweep Summary" and lines[1].startswith("Generated: ")
    assert lines[3].split() == ["THREADS", "CHANNELS", "STATUS", "DURATION(s)"] and lines[4] == "-" * 52
    assert [line.split() for line in lines[5:10]] == [
        ["256", "28", "SUCCESS", "62"],
        ["256", "42", "FAILED", "0"],
        [],
        ["512", "28", "SKIPPED", "N/A"],
        ["512", "42", "UNKNOWN", "N/A"],
    ]
    assert "Output directories:" in lines


def _run(*steps: tuple[int, int, Status | None]) -> SimpleNamespace:
    """Steps of (channels, repeat, status)."""
    records = []
    for channels, repeat, status in steps:
        labels = {"threads": 0, "channels": channels, "algorithm": "ring", "repeat": repeat}
        step = Step(name=f"{channels}ch_{repeat}", argv=("x",), labels=labels)
        outcome = status and Outcome(status=status)
        records.append(SimpleNamespace(step=step, outcome=outcome))
    return SimpleNamespace(manifest=SimpleNamespace(steps=records))


def test_a_planned_run_has_its_whole_setting():
    runs = expected_runs(_run((28, 1, Status.ok), (28, 2, None)))
    assert runs == {
        Key(0, 28, "ring", "", 1): ("ok", ""),
        Key(0, 28, "ring", "", 2): ("missing", "did not run"),
    }
