"""A detached run outlives its terminal, its lines are read elsewhere; a killed one is resumed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from click.testing import CliRunner

from lab.cli.main import cli
from lab.core.run import Run
from lab.driver.detached import DRIVER_LOG, follow_logs
from tests.command import lab, until


def started(root: Path, command: str) -> Run:
    words = "run --detach --analysis none -o"
    done = lab(words, root, *("trials", "-n", "2", "--", "sh", "-c", command), cwd=root.parent)
    assert done.returncode == 0 and "goes on when you log out" in done.stderr, done.stderr
    return Run.open(root)


def test_it_goes_on_in_a_session_of_its_own_and_its_log_is_followed_to_the_end(tmp_path):
    run = started(tmp_path / "run", "echo tick")
    lines = list(follow_logs(run, None, follow=True))
    assert sum("tick" in line for line in lines) == 2
    assert all(record.outcome.ok for record in Run.open(run.root).manifest.steps)
    assert next(iter(follow_logs(Run.open(run.root), "none-0000", follow=False))) == "tick"


def test_after_kill_9_of_every_process_the_run_is_resumed_and_loses_only_the_step_that_ran(tmp_path):
    marker = tmp_path / "first"
    run = started(tmp_path / "run", f"[ -e {marker} ] || {{ touch {marker}; exec sleep 300; }}")
    driver = run.driver_pid()
    until(marker.exists)
    os.kill(driver, signal.SIGKILL)
    until(lambda: run.driver_pid() is None)
    assert (run.root / DRIVER_LOG).exists() and Run.open(run.root).open_steps()
    shown = CliRunner().invoke(cli, ["runs", "show", str(run.root)]).output
    assert "unfinished, and nothing drives it" in shown
    assert lab("run --quiet --analysis none --resume", run.root).returncode == 0
    first, second = Run.open(run.root).manifest.steps
    assert first.outcome.ok and second.outcome.ok and first.attempts == 2 and second.attempts == 1
