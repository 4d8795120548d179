"""When a step has to end: at the user's word, past a limit, or where its log cannot be written."""

from __future__ import annotations

import time

import pytest

from lab.core.step import Step
from lab.core.stop import Stop
from lab.engines.output import LogWriter

STEP = Step(name="s", argv=("x",), timeout_s=10.0, stall_timeout_s=40.0)
FREE = Step(name="s", argv=("x",))


def reason(tmp_path, step: Step, ran_s: float, silent_s: float, disk_full: bool, stop: Stop | None = None):
    log = LogWriter(tmp_path / "run_output.log", lambda _: None)
    log.last_line = time.monotonic() - silent_s
    log.error = OSError(28, "full") if disk_full else None
    return log.reason_to_stop(step, stop or Stop(), ran_s)


@pytest.mark.parametrize(
    "ran_s, silent_s, disk_full, expected",
    [
        (10.0, 0.0, False, None),
        (10.01, 0.0, False, "timeout"),
        (0.0, 40.01, False, "stall"),
        (0.0, 0.0, True, "disk"),
        (10.01, 40.01, True, "timeout"),
        (0.0, 40.01, True, "stall"),
    ],
)
def test_a_step_ends_past_its_limit_and_not_at_it(tmp_path, ran_s, silent_s, disk_full, expected):
    assert reason(tmp_path, STEP, ran_s, silent_s, disk_full) == expected


def test_a_step_without_limits_may_run_and_be_silent_for_ever(tmp_path):
    assert reason(tmp_path, FREE, 1e9, 1e9, False) is None


def test_the_user_comes_before_every_limit(tmp_path):
    stop = Stop()
    stop.set()
    assert reason(tmp_path, STEP, 99.0, 99.0, True, stop) == "user"
