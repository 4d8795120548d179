"""The sentences at the top of the page, from planted cells and answers."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.rooms.nsys.answers.answer import Answer, Check
from lab.rooms.nsys.report.tables import Results, summary_text, verdict

NUMBERS = ["wall_ms", "plain_ms", "kernel_ms", "matmul_percent", "peak_mib"]


def results(*cells, answers=()):
    """Cells of (outcome, collector), and answers."""
    rows = [{"cell": f"cell {n}", "outcome": one, "collector": by} for n, (one, by) in enumerate(cells)]
    frame = pd.DataFrame(rows, columns=["cell", "outcome", "collector"])
    return Results(frame.assign(**dict.fromkeys(NUMBERS, 1.0)), [], list(answers), pd.DataFrame())


def answer(part, cell, *states, given=True):
    checks = tuple(Check(f"check {n}", state, f"want {n}", f"got {n}") for n, state in enumerate(states))
    return Answer(part, cell, f"answer of {cell}", checks=checks, is_answered=given)


@pytest.mark.parametrize(
    ("cells", "head"),
    [
        ([("ok", "nsys")], "1 of 1 cells recorded by nsys."),
        ([("ok", "nsys"), ("ok", "kineto"), ("ok", "nsys")], "3 of 3 cells recorded by kineto and nsys."),
        ([("ok", "nsys"), ("oom", ""), ("oom", "")], "1 of 3 cells recorded by nsys (2 oom)."),
        ([("oom", ""), ("oom", ""), ("timeout", "")], "0 of 3 cells recorded (2 oom, 1 timeout)."),
        ([], "0 of 0 cells recorded."),
    ],
)
def test_the_head_counts_the_recorded_cells_and_names_the_collectors(cells, head):
    assert verdict(results(*cells))[0] == head


@pytest.mark.parametrize(
    ("outcomes", "open_"),
    [
        (["no_gpu_data", "no_gpu_data"], True),
        (["no_gpu_data"], True),
        (["no_gpu_data", "ok"], False),
        (["ok"], False),
        ([], False),
    ],
)
def test_gpu_questions_are_open_only_if_no_cell_has_kernels(outcomes, open_):
    sentences = verdict(results(*((one, "nsys") for one in outcomes)))
    assert len(sentences) == 1 + open_ and any("no GPU kernels" in text for text in sentences) is open_


def test_each_question_is_answered_by_its_last_cell_with_an_answer():
    answers = [
        answer("b", "small"),
        answer("a", "small"),
        answer("b", "large"),
        answer("b", "xl", given=False),
        answer("c", "small", given=False),
    ]
    assert verdict(results(("ok", "nsys"), answers=answers))[1:] == [
        "(a) small: answer of small",
        "(b) large: answer of large",
    ]


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (["ok"], "1 of 1 self-checks hold."),
        (["ok", "ok", "not checked"], "2 of 3 self-checks hold, 1 could not be made."),
        (["not checked", "not checked"], "0 of 2 self-checks hold, 2 could not be made."),
        (
            ["ok", "failed", "failed", "not checked"],
            "1 of 4 self-checks hold, 1 could not be made; 2 failed, the first in (a) small: check 1, "
            "expected want 1, found got 1.",
        ),
        (
            ["failed"],
            "0 of 1 self-checks hold; 1 failed, the first in (a) small: check 0, "
            "expected want 0, found got 0.",
        ),
    ],
)
def test_self_checks_are_counted_by_state_and_the_first_failure_is_quoted(states, words):
    assert verdict(results(("ok", "nsys"), answers=[answer("a", "small", *states)]))[-1] == words


def test_checks_of_all_answers_count_and_without_any_there_is_no_sentence():
    answers = [answer("a", "small", "ok"), answer("b", "large", "ok", "failed", given=False)]
    text = verdict(results(("ok", "nsys"), answers=answers))[-1]
    assert text.startswith("2 of 3") and "1 failed, the first in (b) large: check 1" in text
    assert len(verdict(results(("ok", "nsys")))) == 1


def test_the_summary_lists_every_answer_with_its_checks_under_its_question():
    answers = [answer("b", "small", "ok", "failed"), answer("b", "large", given=False), answer("d", "small")]
    lines = summary_text(results(("ok", "nsys"), answers=answers), ["first.", "second."]).splitlines()
    assert lines[:5] == ["NSYS ANALYSIS SUMMARY", "", "first.", "second.", ""]
    assert lines[5].startswith("(b) Which kernel") and lines[12].startswith("(d) How does the share")
    assert lines[6:12] == [
        "",
        "  small: answer of small",
        "    [ok] check 0: expected want 0, found got 0",
        "    [failed] check 1: expected want 1, found got 1",
        "  large: answer of large",
        "",
    ]
    assert lines[13:16] == ["", "  small: answer of small", ""]
    assert "cell 0" in lines[-2] and not any(line.startswith(("(a)", "(c)", "(e)")) for line in lines)
