"""Starts of one trial: requeues are attempts, a node that goes down is a failure, a resumed one is not."""

from __future__ import annotations

import pytest

from lab.core.manifest import StepRecord
from lab.core.step import Outcome, Status, Step
from lab.rooms.trials.analyze import _row
from lab.rooms.trials.workload import main
from lab.rooms.trials.workload.main import begin_attempt


@pytest.fixture
def boot(monkeypatch):
    names = ["boot-1"]
    monkeypatch.setattr(main, "_boot", lambda: names[0])
    return names


def requeued(times):
    return {"SLURM_RESTART_COUNT": str(times)} if times else {}


def test_a_job_that_slurm_requeued_without_a_warning_lost_its_node_and_the_trial_failed(tmp_path, boot):
    assert begin_attempt(tmp_path, "n1", requeued(0))[1] == ""
    boot[0] = "boot-2"
    attempt, died = begin_attempt(tmp_path, "n2", requeued(1))
    assert attempt.number == 2 and died == "its node n1 went down under it (Slurm requeued it)"


def test_a_trial_that_was_asked_to_end_runs_again_and_counts_its_attempts(tmp_path, boot):
    """As a preempted job, or one whose driver was stopped."""
    first, _ = begin_attempt(tmp_path, "n1", requeued(0))
    main._write_attempt(tmp_path, main.msgspec.structs.replace(first, ended=True))
    attempt, died = begin_attempt(tmp_path, "n2", requeued(1))
    assert (attempt.number, died) == (2, "")


def test_a_driver_that_was_killed_is_no_node_that_went_down_and_a_reboot_is(tmp_path, boot):
    begin_attempt(tmp_path, "n1", {})
    assert begin_attempt(tmp_path, "n1", {})[1] == ""
    boot[0] = "boot-2"
    attempt, died = begin_attempt(tmp_path, "n1", {})
    assert attempt.number == 3 and died == "its node n1 went down under it (it has booted since)"


@pytest.mark.parametrize(
    ("state", "verdict"), [("NODE_FAIL", "fail"), ("FAILED", "error"), ("BOOT_FAIL", "error")]
)
def test_a_job_that_ended_with_its_node_is_a_failure_of_the_trial(tmp_path, state, verdict):
    step = Step(name="none-0000", argv=("x",), labels={"cell": "none", "trial": 0, "order": 0, "seed": 0})
    reason = f"job 7 ended without an outcome: JobState {state}, NodeList n1"
    record = StepRecord(
        step=step, fingerprint="", attempts=2, outcome=Outcome(status=Status.failed, reason=reason)
    )
    row = _row(None, record)
    assert (row.verdict, row.reason, row.attempts) == (verdict, reason, 2)
