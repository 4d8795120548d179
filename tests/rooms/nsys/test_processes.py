"""Summary, reports and answers of a capture of two processes: each equals that of the single one."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from lab.rooms.nsys.answers.cli import answers
from lab.rooms.nsys.cli import nsys as nsys_group
from tests.conftest import SHARED
from tests.recordings.nsys.twice import twice

RECORDED = SHARED / "nsys_h200" / "transformer_2layer.sqlite.gz"
PID_STEP = 3


def call(*arguments):
    return CliRunner().invoke(nsys_group, [str(one) for one in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    if not RECORDED.exists():
        pytest.skip("no shared data")
    folder = tmp_path_factory.mktemp("twice")
    return twice(RECORDED, folder / "both.sqlite", shift_ns=12_345_678, pids=PID_STEP)


@pytest.mark.data
def test_the_summary_of_each_process_is_that_of_the_single_one(both):
    alone = json.loads(call("summary", RECORDED, "--json").stdout)
    found = json.loads(call("summary", both, "--json").stdout)["processes"]
    assert [one["process"] for one in found] == [0, 1]
    assert found[1]["pid"] - found[0]["pid"] == PID_STEP and found[0]["pid"] == alone["pid"]
    assert found[0]["phases"][0]["kernels"] == [118], "not 236"
    for one in found:
        for key in (
            "steps",
            "phases",
            "classes",
            "top",
            "origins",
            "matmul_share",
            "gpus",
            "rules",
            "left_out",
        ):
            assert one[key] == alone[key], key
    text = call("summary", both).stdout
    assert text.startswith("2 processes: per step, ms") and text.count("step                  ") >= 2


@pytest.mark.data
def test_the_answers_have_one_entry_per_process_equal_to_the_single_one(both):
    alone = {
        row["part"]: row for row in json.loads(CliRunner().invoke(answers, [str(RECORDED), "--json"]).stdout)
    }
    rows = json.loads(CliRunner().invoke(answers, [str(both), "--json"]).stdout)
    assert [(row["part"], row["process"]) for row in rows] == [(part, i) for part in "abcde" for i in (0, 1)]
    for row in rows:
        assert row["values"] == alone[row["part"]]["values"]
        assert row["checks"] == alone[row["part"]]["checks"]
    forward = [row["values"]["range_ms"] for row in rows if row["part"] == "a"]
    assert forward == pytest.approx([2.583, 2.583], abs=1e-3), "not 5.17"


@pytest.mark.data
def test_reports_add_processes_up_as_nsys_does_or_tell_them_apart(both):
    alone = call("stats", RECORDED).stdout.splitlines()
    folded = call("stats", both)
    assert "2 processes in one table" in folded.stderr
    totals = [
        [int(line.split(",")[1]) for line in lines[1:]] for lines in (alone, folded.stdout.splitlines())
    ]
    assert [2 * one for one in totals[0]] == totals[1]
    each = call("stats", both, "--each-process").stdout.split("# cuda_gpu_kern_sum process ")[1:]
    assert [part.strip().splitlines()[1:] for part in each] == [alone, alone]
    pid = each[1].split("\n")[0]
    assert call("stats", both, "--process", pid).stdout.splitlines() == alone


@pytest.mark.data
def test_the_public_capture_has_a_row_per_process():
    path = SHARED / "nsys_public" / "h100_2gpu_1s.sqlite.gz"
    found = json.loads(call("summary", path, "--json").stdout)["processes"]
    assert len(found) == 2 and len({one["pid"] for one in found}) == 2
    assert sum(one["rules"]["unattributed"][0] for one in found) == 2276
    assert [len(one["gpus"]) for one in found] == [1, 1]
