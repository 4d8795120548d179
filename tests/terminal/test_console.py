"""What a person reads of steps that end, one line each, and of those that were not needed, in one."""

from __future__ import annotations

import io

from lab.core.step import Outcome, Status, Step
from lab.terminal.console import Console, StepDisplay


def told(*ends: tuple[str, Status, str]) -> list[str]:
    out = io.StringIO()
    with StepDisplay(Console(stream=out), len(ends)) as display:
        for name, status, reason in ends:
            step = Step(name=name, argv=("x",))
            if status is not Status.skipped:
                display.begin(step)
            display.end(step, Outcome(status=status, reason=reason, started_utc="", seconds=1.0))
    return out.getvalue().splitlines()


def test_steps_that_were_not_needed_are_one_line_in_their_place():
    many = [(f"none-{n}", Status.skipped, "decided before") for n in range(150)]
    lines = told(("a", Status.ok, ""), *many, ("b", Status.failed, "exit code 1"))
    assert lines == [
        "> a starts (1 of 152)",
        "✓ a: ok in 1.0 s",
        "- 150 steps, none-0 to none-149: skipped - decided before",
        "> b starts (152 of 152)",
        "✗ b: failed in 1.0 s - exit code 1",
    ]


def test_each_reason_has_its_line_and_the_last_ones_are_not_lost():
    lines = told(("a", Status.skipped, "x"), ("b", Status.skipped, "y"), ("c", Status.skipped, "x"))
    assert lines == ["- 2 steps, a to c: skipped - x", "- b: skipped - y"]


def test_a_step_that_was_taken_up_and_begins_again_is_counted_once_and_one_beside_it_as_the_next():
    out = io.StringIO()
    with StepDisplay(Console(stream=out), 2) as display:
        a, b = (Step(name=name, argv=("x",)) for name in "ab")
        display.end(a, Outcome(status=Status.failed, started_utc="", seconds=1.0))
        display.begin(a)
        display.begin(b)
    starts = [line for line in out.getvalue().splitlines() if "starts" in line]
    assert starts == ["> a starts (1 of 2)", "> b starts (2 of 2)"]
