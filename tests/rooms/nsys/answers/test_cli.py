"""`lab nsys answers`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from lab.errors import BadDataError, StepFailed, UsageError
from lab.rooms.nsys.answers.answer import OK
from lab.rooms.nsys.answers.cli import answers
from tests.recordings.sqlgen import Export
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


def test_a_phase_by_another_name_is_offered_and_answered_for_once_it_is_named(tmp_path):
    export = Export()
    for step in range(2):
        t = 100_000 * step
        export.range(f"step_{step}", (1, 1), t, t + 90_000)
        export.range("forward", (1, 1), t + 100, t + 10_000)
        export.launch("gemm_f", (1, 1), (t + 200, t + 210), (t + 300, t + 1_300))
        export.range("bwd", (1, 1), t + 20_000, t + 60_000)
        export.launch("gemm_b", (1, 2), (t + 21_000, t + 21_010), (t + 22_000, t + 25_000))
    path = export.write(tmp_path / "a.sqlite")
    plain = asked_of(path, "-p", "b")
    assert "Over forward and backward" not in plain.stdout
    assert "2 kernels ran under `bwd`: --phase bwd" in plain.stdout, "they are not silently lost"
    (row,) = json.loads(asked_of(path, "-p", "b", "--json", "--phase", "backward=bwd").stdout)
    assert row["values"]["both_kernel"] == "gemm_b" and row["values"]["both_ms"] == pytest.approx(3e-3)
    assert not [note for note in row["notes"] if "bwd" in note]
    guessed = json.loads(asked_of(path, "-p", "b", "--json", "--phase", "bwd").stdout)
    assert guessed[0]["values"] == row["values"]
    assert isinstance(asked_of(path, "--phase", "xyz").exception, UsageError)
    assert isinstance(asked_of(tmp_path, "--phase", "bwd").exception, UsageError)


def test_a_row_names_its_process_and_its_number_of_steps(tmp_path):
    (row, *_) = json.loads(asked_of(write_trace(tmp_path / "mine.json"), "--json").stdout)
    assert (row["process"], row["pid"], row["steps"]) == (0, 4321, 2)
    assert "(a) mine.json training (2 steps): The range" in asked_of(tmp_path / "mine.json").stdout


def test_the_command_refuses_what_it_cannot_read(tmp_path):
    (tmp_path / "empty.json").touch()
    assert isinstance(asked_of(tmp_path / "empty.json").exception, BadDataError)
    path = write_trace(tmp_path / "mine.json", kernels=False)
    assert isinstance(asked_of(path, "-p", "e").exception, StepFailed)
    assert isinstance(asked_of(path, "--model-size", "huge").exception, UsageError)


def test_a_named_question_without_an_answer_and_a_failed_check_are_known_to_the_exit_code(tmp_path):
    export = Export()
    export.range("step_0", (1, 1), 0, 20_000)
    export.range("forward", (1, 1), 100, 10_000)
    export.launch("gemm_f", (1, 1), (200, 210), (300, 1_300))
    path = export.write(tmp_path / "a.sqlite")
    assert asked_of(path).exit_code == 0, "of all questions those that it can answer"
    error = asked_of(path, "-p", "b,e").exception
    assert isinstance(error, StepFailed) and "(e): no recording here answers it" in str(error)
    error = asked_of(path, "-p", "b", "--model-size", "small").exception
    assert isinstance(error, StepFailed) and "GEMMs of forward are the model's" in str(error)
