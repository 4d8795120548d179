"""The page of a replay: what its recordings say is shown, and never run."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas")
from lab.rooms.trials.replay.page import report
from tests.compare.same.test_steps import write


def test_hostile_names_neither_command_the_terminal_nor_become_html(tmp_path):
    path = write(tmp_path / "steps/run-0/bits_rank0.jsonl")
    text = path.read_text().replace("blocks.0", "=1+1<script>alert(1)</script>\\u001b[31m")
    path.write_text(text)
    other = tmp_path / "steps/run-1/bits_rank0.jsonl"
    other.parent.mkdir()
    other.write_text(text.replace('"21"', '"22"'))
    found = report(tmp_path, tmp_path / "out", None)
    page = (tmp_path / "out/report.html").read_text()
    assert "<script>alert(1)" not in page and "\x1b[31m" not in found.terminal
    assert ",=1+1" not in (tmp_path / "out/tables/divergences.csv").read_text()


def test_a_record_without_a_value_is_no_all_clear(tmp_path):
    path = tmp_path / "bits_rank0.jsonl"
    path.write_text('{"meta":{"format":2,"rank":0}}\n{"end":{"rows":0,"steps":0}}\n')
    assert report(tmp_path, tmp_path / "out", None).status == "fail"
