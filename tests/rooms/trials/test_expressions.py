"""Expressions that would never come to an end are undecided, and hold no trial up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lab.rooms.trials import expressions
from lab.rooms.trials.expressions import Expressions
from lab.rooms.trials.failure import Reader, parse

TRAP = "a" * 40 + "!"  # 2 to the 40 ways for (a+)+$


def judged(fail, *lines, code=0):
    reader = Reader(parse(fail))
    for line in lines:
        reader.line(line)
    return reader.verdict(code)


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The same judge with a clock of hundredths of a second."""
    text = Path(expressions.__file__).read_text().replace("TICK_S = 1.0", "TICK_S = 0.02")
    (tmp_path / "expressions.py").write_text(text)
    monkeypatch.setattr(expressions, "__file__", str(tmp_path / "expressions.py"))


def test_a_search_without_end_is_undecided_and_never_a_pass(quick):
    verdict, why = judged("/(a+)+$/", "fine", TRAP, "fine")
    assert verdict == "error" and why == "undecided: /(a+)+$/ takes too long on line 2"


def test_what_was_found_before_or_by_another_term_is_a_failure_all_the_same(quick):
    assert judged("/(a+)+$/ or /bad/", TRAP, "so bad") == ("fail", "/bad/: line 2")
    assert judged("/(a+)+$/", "aaa", TRAP) == ("fail", "/(a+)+$/: line 1")
    assert judged("/(a+)+$/ or exit!=0", TRAP, code=3) == ("fail", "exit code 3")
    assert judged("/(a+)+$/ or nan in loss", TRAP, "loss: nan")[0] == "fail"


def test_many_lines_that_each_take_long_are_too_slow_together(quick):
    """None of them alone reaches the clock's end."""
    assert judged("/(a+)+$/", *["a" * 17 + "!"] * 400)[1].startswith("undecided: ")


def test_lines_are_judged_as_they_are():
    odd = ["", "\x1b[31mred\x1b[0m", "caf\u00e9 \ud800", "x" * 200_000, "bad\r", "last"]
    assert judged("/^red$/", *odd) == ("fail", "/^red$/: line 2")
    assert judged("/^caf\u00e9/", *odd)[1].endswith("line 3") and judged("/x{100}$/", *odd)[1].endswith(
        "line 4"
    )
    assert judged("/^last$/", *odd)[1].endswith("line 6") and judged("/none/", *odd) == ("pass", "")


def test_a_judge_that_was_killed_says_so():
    reader = Reader(parse("/bad/"))
    reader.line("bad")
    os.kill(reader.expressions.pid, signal.SIGKILL)
    for _ in range(1000):
        reader.line("x" * 1000)
    assert reader.verdict(0) == ("error", "undecided: the process that judges expressions was killed")


def test_none_is_left_running():
    judge = Expressions(["a"])
    judge.end()
    with pytest.raises(ProcessLookupError):
        os.kill(judge.pid, 0)
