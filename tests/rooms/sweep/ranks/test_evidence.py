"""`lab ranks import`, alone and beside a recording."""

from __future__ import annotations

import csv
import json
import math

import pytest
from click.testing import CliRunner, Result

from lab.errors import StepFailed
from lab.rooms.sweep.ranks.cli import ranks
from lab.rooms.sweep.ranks.evidence import alone_us
from tests.recordings.nccl.made import operation, ras, speed, write
from tests.rooms.sweep.tuner.made import NELEMS, write_run

SIZE = 4 * NELEMS


def call(*words: object, ok: bool = True) -> Result:
    done = CliRunner().invoke(ranks, ["import", *(str(word) for word in words)])
    if ok and done.exception:
        raise done.exception
    return done


def test_a_transfer_is_set_beside_the_same_size_alone(tmp_path):
    write_run(tmp_path / "job", 180.0)
    file = write(tmp_path / "x.json", speed({SIZE // 4: 30.0, SIZE * 4: 270.0}, ranks=2))
    found = json.loads(call(file, "--with", tmp_path / "job", "--json").stdout)
    (row,) = found["beside"]
    assert row["alone_us"] == pytest.approx(90.0) and row["ratio"] == pytest.approx(2.0, rel=0.02)
    assert "slower than the fabric allows" in row["text"]


def test_sizes_that_were_not_measured_are_no_comparison(tmp_path):
    write_run(tmp_path / "job", 180.0)
    file = write(tmp_path / "x.json", speed({1024: 3.0}, ranks=2))
    done = call(file, "--with", tmp_path / "job", ok=False)
    assert isinstance(done.exception, StepFailed) and "no collective of the recording" in str(done.exception)


def test_nothing_is_told_outside_the_measured_sizes():
    speeds = {("all_reduce", 1024, 2): 5.0, ("all_reduce", 4096, 2): 10.0}
    assert alone_us(speeds, "all_reduce", 1024, 2) == 5.0
    assert math.isnan(alone_us(speeds, "all_reduce", 512, 2)) and math.isnan(
        alone_us(speeds, "reduce", 1024, 2)
    )
    assert math.isnan(alone_us(speeds, "all_reduce", 8192, 2)) and math.isnan(
        alone_us({}, "all_reduce", 1, 2)
    )


def test_tables_are_written_and_one_answer_of_ras_is_not_enough(tmp_path):
    file = write(tmp_path / "x", ras({0: 3, 1: 2}))
    done = call(file, "--out", tmp_path / "out", ok=False)
    assert isinstance(done.exception, StepFailed) and "ask RAS again" in str(done.exception)
    rows = list(csv.DictReader((tmp_path / "out/ras.csv").open()))
    assert [(row["rank"], row["AllReduce"]) for row in rows] == [("0", "3"), ("1", "2")]


def test_what_inspector_saw_in_a_run_is_not_called_alone_and_nccl_tests_come_first(tmp_path):
    write_run(tmp_path / "job", 180.0)
    seen = [operation(rank, n, 60.0, ranks=2, size=SIZE) for rank in range(2) for n in range(3)]
    lines = write(tmp_path / "inspector", *seen)
    (row,) = json.loads(call(lines, "--with", tmp_path / "job", "--json").stdout)["beside"]
    assert row["alone_us"] == 60.0 and "at best under NCCL Inspector" in row["text"]
    file = write(tmp_path / "x.json", speed({SIZE: 90.0}, ranks=2))
    (row,) = json.loads(call(lines, file, "--with", tmp_path / "job", "--json").stdout)["beside"]
    assert row["alone_us"] == 90.0 and "90 us alone" in row["text"]
