"""`lab nsys answers`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from lab.errors import BadDataError, StepFailed, UsageError
from lab.rooms.nsys.answers.answer import OK
from lab.rooms.nsys.answers.cli import answers
from tests.rooms.nsys.made import truth, write_trace


def asked_of(*words):
    return CliRunner().invoke(answers, [str(word) for word in words])


def test_the_command_answers_from_one_file(tmp_path):
    path = write_trace(tmp_path / "mine.json")
    done = asked_of(path, "--json", "--model-size", "tiny", "--context-length", 64)
    rows = {row["part"]: row for row in json.loads(done.stdout)}
    assert done.exit_code == 0 and list(rows) == list("abcde")
    assert rows["d"]["values"]["step_matmul_percent"] == pytest.approx(100 * truth()["step_matmul"])
    assert {check["state"] for check in rows["b"]["checks"]} == {OK}
    assert not list(tmp_path.glob("*.html")), "a recording is not written to"


def test_the_command_writes_a_page_where_it_is_told(tmp_path):
    path = write_trace(tmp_path / "mine.json")
    assert asked_of(path, "--out", tmp_path / "page", "-p", "d").exit_code == 0
    assert (tmp_path / "page" / "report.html").exists() and (
        tmp_path / "page" / "tables" / "checks.csv"
    ).exists()


def test_the_command_refuses_what_it_cannot_read(tmp_path):
    (tmp_path / "empty.json").touch()
    assert isinstance(asked_of(tmp_path / "empty.json").exception, BadDataError)
    path = write_trace(tmp_path / "mine.json", kernels=False)
    assert isinstance(asked_of(path, "-p", "e").exception, StepFailed)
    assert isinstance(asked_of(path, "--model-size", "huge").exception, UsageError)
