"""`lab ranks import`, alone and beside a recording."""

from __future__ import annotations

import csv
import json
import math

import pytest
from click.testing import CliRunner, Result

from lab.errors import StepFailed
from lab.rooms.sweep.ranks.cli import alone_us, ranks
from tests.recordings.nccl.made import speed, write
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


def test_a_table_is_written_and_wrong_results_end_with_1(tmp_path):
    document = speed({1024: 3.0})
    document["results"][0]["out_of_place"]["nwrong"] = 1
    done = call(write(tmp_path / "x", document), "--out", tmp_path / "out", ok=False)
    assert isinstance(done.exception, StepFailed) and "1 result wrong" in str(done.exception)
    rows = list(csv.DictReader((tmp_path / "out/nccl_tests.csv").open()))
    assert [(row["place"], row["wrong"]) for row in rows] == [("out_of_place", "1"), ("in_place", "0")]
