"""`lab ranks tuner`: from the traces of a sweep to a file, and proof by a run under it."""

from __future__ import annotations

import csv
import json

import pytest
from click.testing import CliRunner, Result

from lab.errors import StepFailed
from lab.rooms.sweep.ranks.cli import ranks
from lab.rooms.sweep.tuner.file import read_rows
from tests.rooms.sweep.tuner.made import NELEMS, applied, tuning, write_run, write_sweep

SIZE = 4 * NELEMS


def call(*words: object, ok: bool = True) -> Result:
    done = CliRunner().invoke(ranks, ["tuner", *(str(word) for word in words), "-q", "--workers", "1"])
    if ok and done.exception:
        raise done.exception
    return done


def test_the_planted_best_is_written_with_its_size(tmp_path):
    sweep = write_sweep(tmp_path / "s", {28: 120.0, 42: 180.0}, log=tuning(SIZE))
    done = call(sweep, "--for", "nccl", "--out", tmp_path / "out")
    (row,) = read_rows(tmp_path / "out/nccl_tuner.conf")
    assert row.text() == f"allreduce,{SIZE // 2},{2 * SIZE},ring,simple,28,-1,2"
    assert "lead 0.179 ms" in done.stdout  # 3 calls a step, each 60 us longer but for the scatter
    evidence = list(csv.DictReader((tmp_path / "out/tuner.csv").open()))
    assert [(one["channels"], one["may_be_best"]) for one in evidence] == [("28", "True"), ("42", "False")]
    assert float(evidence[0]["latency_us"]) == pytest.approx(160.0, abs=0.5)


def test_a_late_rank_does_not_choose_the_channels(tmp_path):
    sweep = write_sweep(tmp_path / "s", {28: 120.0, 42: 180.0}, log=tuning(SIZE))
    for repeat in ("", "repeat2", "repeat3"):  # the better setting has the late host
        write_run(sweep / "256thread/nccl_28channels" / repeat, 160.0, late={1: 700.0}, log=tuning(SIZE))
    call(sweep, "--for", "rccl", "--out", tmp_path / "out")
    (row,) = read_rows(tmp_path / "out/rccl_tuner.csv")
    assert row.channels == 28


def test_equal_settings_are_left_at_default_and_that_is_an_answer(tmp_path):
    sweep = write_sweep(tmp_path / "s", {28: 150.0, 42: 150.0}, scatter_us=8.0, log=tuning(SIZE))
    done = call(sweep, "--for", "nccl", "--out", tmp_path / "out", "--json")
    found = json.loads(done.stdout)
    assert found["classes"][0]["set"] is None and "cannot be told apart" in found["classes"][0]["reason"]
    assert read_rows(tmp_path / "out/nccl_tuner.conf") == []


def test_what_was_not_recorded_ends_with_1(tmp_path):
    sweep = write_sweep(tmp_path / "s", {28: 120.0, 42: 180.0}, block=999)
    done = call(sweep, "--for", "nccl", "--out", tmp_path / "out", ok=False)
    assert isinstance(done.exception, StepFailed) and "algorithm and protocol are unknown" in str(
        done.exception
    )


def test_a_run_under_the_file_proves_it(tmp_path):
    sweep = write_sweep(tmp_path / "s", {28: 120.0, 42: 180.0}, log=tuning(SIZE))
    run = write_run(tmp_path / "run/0thread/nccl_0channels", 140.0, log=tuning(SIZE) + applied(SIZE)).parents[
        1
    ]
    done = call(sweep, "--for", "nccl", "--out", tmp_path / "out", "--run", run)
    assert "took effect: allreduce of 16 MiB over 2 ranks: 12 kernels on 28 blocks" in done.stdout
    other = write_run(tmp_path / "other/0thread/nccl_0channels", 140.0, grid=24, log=tuning(SIZE)).parents[1]
    done = call(sweep, "--for", "nccl", "--out", tmp_path / "out", "--run", other, "--json", ok=False)
    assert isinstance(done.exception, StepFailed) and "did not take effect" in str(done.exception)
    assert json.loads(done.stdout)["proofs"][0]["verdict"] == "did not take effect"


def test_nothing_set_is_nothing_proven(tmp_path):
    sweep = write_sweep(tmp_path / "s", {28: 150.0, 42: 150.0}, scatter_us=8.0, log=tuning(SIZE))
    done = call(sweep, "--for", "rccl", "--out", tmp_path / "out", "--run", sweep, ok=False)
    assert isinstance(done.exception, StepFailed) and "nothing to prove" in str(done.exception)
