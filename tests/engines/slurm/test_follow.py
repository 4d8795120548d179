"""What becomes of a step whose job left the queue, without a cluster."""

from __future__ import annotations

import pytest

from lab.core.run import Run
from lab.engines.slurm.follow import FollowedStep
from tests.core.test_manifest import a_manifest
from tests.core.test_run import a_step


@pytest.mark.parametrize(
    ("began", "reason"), [(False, "job 7 waited in vain"), (True, "left the queue without a word")]
)
def test_a_step_that_began_after_it_was_given_up_is_lost_for_another_reason(
    tmp_path, monkeypatch, began, reason
):
    monkeypatch.setattr("lab.engines.slurm.queue.describe_end", lambda job: "left the queue without a word")
    one = FollowedStep(Run(tmp_path, a_manifest()), a_step("a"), "7", 0, lambda line: None)
    one.given_up = "waited in vain"
    if began:
        one.update_queue_state("RUNNING", cancelled=False)
    monkeypatch.setattr("lab.engines.slurm.follow.SETTLE_S", -1.0)
    monkeypatch.setattr("time.monotonic", iter(range(0, 100, 10)).__next__)
    one.update_queue_state(None, cancelled=False)
    assert reason in one.poll(set()).reason
